"""Plays a transcript: commands in plain words drive the real ``Partition`` machine, which is then told."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.protocol.checkers import Sent
from tests.protocol.model_client import append_batch
from tests.protocol.model_replica import Replica, ZooKeeper
from tests.scenarios.cast import Cast, Server
from tests.scenarios.telling import tell_record
from waltz_ray.config import ServerConfig
from waltz_ray.protocol.ids import ReqId
from waltz_ray.protocol.messages.client import FeedMode, Mount
from waltz_ray.protocol.partition.events import (
    NO_SUCH_SESSION,
    AppendReceived,
    Assigned,
    FlushReceived,
    MountReceived,
    Unassigned,
)
from waltz_ray.protocol.roster import Roster
from waltz_ray.protocol.session_types import ReplicaAvailable

__all__ = ["COMMANDS", "Runner", "play"]

PLENTY = 1 << 30
QUIETLY = "quietly, "


class Runner(Cast):
    """``do(command)`` returns the lines that it led to."""

    def __init__(self) -> None:
        super().__init__()
        self.config = ServerConfig(lock_table_size=1000)
        self.connections: dict[tuple[int, str], int] = {}  # (client, server) -> connection
        self.numbers: dict[int, int] = {}  # client -> next sequence number

    def do(self, command: str) -> list[str]:
        """``quietly, <command>`` does it and tells nothing: for what another transcript shows."""
        self.lines = []
        for pattern, action in COMMANDS.items():
            if found := re.fullmatch(pattern, command.removeprefix(QUIETLY)):
                action(self, *found.groups())
                self.settle()
                return [] if command.startswith(QUIETLY) else self.lines
        raise ValueError(f"no such command: {command!r}; known are {list(COMMANDS)}")

    def replicas_are(self, names: str, interval: str | None) -> None:
        replica_ids = [int(name) for name in names.split()]
        self.replicas = {replica_id: Replica(replica_id) for replica_id in replica_ids}
        self.zookeeper = ZooKeeper(Roster.initial(replica_ids))
        if interval is not None:
            self.config = ServerConfig(lock_table_size=1000, checkpoint_interval=int(interval))

    def assign(self, name: str, generation: str) -> None:
        server = self.servers.setdefault(name, Server(name, self.config, self.replicas))
        server.inbox.append(Assigned(int(generation)))

    def unassign(self, name: str) -> None:
        self.servers[name].inbox.append(Unassigned("moved"))

    def sleep(self, name: str, what: str) -> None:
        self.servers[name].asleep = what == "sleeps"

    def mount(self, client: str, name: str, generation: str, mark: str | None) -> None:
        connection_id = self.connections.setdefault((int(client), name), len(self.connections))
        self.client_of[connection_id] = int(client)
        req_id = ReqId(int(client), int(generation), 0, self._next_number(int(client), 1))
        wanted = Mount(req_id, -1 if mark is None else int(mark), FeedMode.HEADERS, PLENTY)
        self.servers[name].inbox.append(MountReceived(connection_id, wanted))

    def append(self, client: str, count: str, name: str, generation: str, lock: str | None, mark: str | None) -> None:
        first = self._next_number(int(client), int(count))
        sent = Sent(-1 if mark is None else int(mark), write=() if lock is None else (int(lock),))
        batch = append_batch(int(client), int(generation), first, [sent] * int(count))
        self.servers[name].inbox += [AppendReceived(self.connections[int(client), name], batch)]

    def flush(self, client: str, name: str, generation: str) -> None:
        req_id = ReqId(int(client), int(generation), 0, self._next_number(int(client), 1))
        self.servers[name].inbox.append(FlushReceived(self.connections[int(client), name], req_id))

    def _next_number(self, client: int, count: int) -> int:
        first = self.numbers.get(client, 0)
        self.numbers[client] = first + count
        return first

    def hang(self, replica: str, what: str) -> None:
        (self.hanging.add if what == "hangs" else self.hanging.discard)(int(replica))

    def stop(self, replica: str) -> None:
        self.replicas[int(replica)].crash(self.chance)
        for server in self.servers.values():
            server.links[int(replica)].cut(int(replica))

    def start(self, replica: str) -> None:
        self.hanging.discard(int(replica))
        self.replicas[int(replica)].restart()
        for server in self.servers.values():
            server.links[int(replica)].restore(int(replica))

    def damage(self, replica: str, first_id: str) -> None:
        self.replicas[int(replica)].damaged_from = int(first_id)

    def zookeeper_is(self, what: str) -> None:
        self.zookeeper.away = what == "goes away"

    def assigned_replicas(self, names: str) -> None:
        record = self.zookeeper.roster.with_replicas(int(name) for name in names.split())
        self.zookeeper.roster, self.zookeeper.version = record, self.zookeeper.version + 1

    def pass_time(self) -> None:
        """Every timer that was started goes off; replicas that refused something are tried again."""
        for server in self.servers.values():
            server.inbox += server.timers
            server.timers = []
            for replica_id, link in server.links.items():
                if link.up and link.refused:
                    link.refused = False
                    link.to_server.append(ReplicaAvailable(NO_SUCH_SESSION, replica_id))

    def show(self) -> None:
        self.lines.append(f"zookeeper: {tell_record(self.zookeeper.roster)}")
        for replica in self.replicas.values():
            down = "" if replica.up else ", stopped"
            self.lines.append(f"replica {replica.replica_id}: last {len(replica.log) - 1}, fence {replica.fence}{down}")
        for server in self.servers.values():
            partition = server.partition
            asleep = ", asleep" if server.asleep else ""
            mark = partition.high_water_mark
            self.lines.append(f"{server.name}: {partition.stage.name}, high-water mark {mark}{asleep}")


COMMANDS: dict[str, Callable[..., None]] = {
    r"replicas ([\d ]+?)(?:, checkpoint every (\d+))?": Runner.replicas_are,
    r"server (\w+) is assigned generation (\d+)": Runner.assign,
    r"server (\w+) is unassigned": Runner.unassign,
    r"server (\w+) (sleeps|wakes)": Runner.sleep,
    r"client (\d+) mounts at (\w+), generation (\d+)(?:, mark (-?\d+))?": Runner.mount,
    r"client (\d+) appends (\d+) at (\w+), generation (\d+)(?:, lock (\d+), mark (-?\d+))?": Runner.append,
    r"client (\d+) flushes at (\w+), generation (\d+)": Runner.flush,
    r"replica (\d+) (hangs|goes on)": Runner.hang,
    r"replica (\d+) stops": Runner.stop,
    r"replica (\d+) starts": Runner.start,
    r"replica (\d+) is damaged from (\d+)": Runner.damage,
    r"zookeeper (goes away|is back)": Runner.zookeeper_is,
    r"the operator assigns replicas ([\d ]+)": Runner.assigned_replicas,
    r"time passes": Runner.pass_time,
    r"show": Runner.show,
}


def play(text: str) -> str:
    """The transcript with what the commands lead to now: what was indented is replaced, all else stays."""
    runner, out = Runner(), []
    for line in text.splitlines():
        if line.startswith(" "):
            continue
        out.append(line)
        if line and not line.startswith("#"):
            out += [f"    {told}" for told in runner.do(line)]
    return "\n".join(out) + "\n"
