"""The typed view of one cluster's ZooKeeper nodes, for servers, the manager, clients and the command line.

The nodes themselves are drawn in ``cluster_nodes.py``.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from waltz_ray.coordination.access_store import AccessStore
from waltz_ray.coordination.api import EphemeralNode, Watch, Write, ZooKeeper, release
from waltz_ray.coordination.cluster_nodes import (
    NEVER_JOINED,
    WRITES_AT_ONCE,
    ClusterInfo,
    complete_info,
    create_nodes,
    given_up_of,
    naming,
    partition_path,
    read_info,
    servers_at_first,
    to_fields,
    to_json,
)
from waltz_ray.coordination.leadership import Leadership
from waltz_ray.coordination.member_store import MemberStore
from waltz_ray.coordination.move_store import MoveStore
from waltz_ray.coordination.seeding import Seed, seed_nodes
from waltz_ray.coordination.space_store import SpaceStore, first_space_nodes
from waltz_ray.coordination.trim_store import TrimStore
from waltz_ray.errors import (
    ClusterMismatch,
    CoordinationError,
    InvalidInput,
    NodeExists,
    NoNode,
    VersionConflict,
    ZooKeeperUnreachable,
)
from waltz_ray.protocol.cluster_members import ClusterMembers
from waltz_ray.protocol.disaster import GivenUp
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.placement import Assignment
from waltz_ray.protocol.replica_sets import ReplicaPlace, nowhere_in_particular
from waltz_ray.protocol.roster import UNRESOLVED, Roster
from waltz_ray.protocol.spaces import most_partitions
from waltz_ray.wire import znodes
from waltz_ray.wire.znodes import AssignmentNode, ServerDescriptor

__all__ = ["ClusterInfo", "ClusterStore", "AnnouncedReplica", "Watches"]

_LAST_ID = (1 << 31) - 1  # of an int
_NO_VERSION = (1 << 31) - 1  # which no node ever has
_locks = itertools.count(1)


class AnnouncedReplica(NamedTuple):
    """The endpoint at which a replica listens; ``incarnation`` differs for every start of its actor."""

    endpoint: Endpoint
    incarnation: str


class Watches:
    """Several watches that are cancelled together."""

    def __init__(self, watches: Sequence[Watch]) -> None:
        self._watches = watches

    def cancel(self) -> None:
        for watch in self._watches:
            watch.cancel()


class ClusterStore:
    """The nodes of ``cluster``. It holds no state of its own beyond ``info`` and admin locks of which it is not known
    whether they are there, so any number may be made.

    Every call may raise ZooKeeperUnreachable, and CoordinationError for a node whose bytes make no sense.
    """

    def __init__(self, zookeeper: ZooKeeper, cluster: str) -> None:
        if not cluster or "/" in cluster or cluster in (".", "..", "zookeeper") or not cluster.isprintable():
            raise InvalidInput(f"{cluster!r:.60} cannot name a cluster: it must be one ZooKeeper path part")
        self.zookeeper = self._zookeeper = zookeeper
        self.cluster = cluster
        self._root = "/" + cluster
        self._servers = self._root + "/serverDescriptors"
        self._info: ClusterInfo | None = None
        self._left_locks: set[bytes] = set()  # admin locks of ours that may be there still
        self.spaces = SpaceStore(zookeeper, cluster)
        self.trims = TrimStore(zookeeper, cluster)
        self.members = MemberStore(zookeeper, cluster)
        self.access = AccessStore(zookeeper, cluster)
        self.moves = MoveStore(zookeeper, cluster)

    # -- the cluster ---------------------------------------------------------------------------------

    def initialize(
        self,
        partitions: int,
        replicas: Sequence[int],
        settings: Mapping[str, Any] | None = None,
        replication: int = 0,
        places: Mapping[int, ReplicaPlace] | None = None,
    ) -> ClusterInfo:
        """Make the cluster's nodes, or finish making them. Of an existing cluster the stored settings and places stay.

        Each partition is made on ``replication`` of the replicas (0: on all), which ``places``, where they are, and
        ``protocol.replica_sets`` choose. ClusterMismatch if the root exists and has another shape or is another
        program's. InvalidInput.
        """
        if partitions < 1 or not replicas or len(set(replicas)) != len(replicas) or min(replicas) < 0:
            raise InvalidInput(f"a cluster needs partitions and distinct replica IDs, not {partitions} and {replicas}")
        held = replication or len(replicas)
        if not 0 < held <= len(replicas):
            raise InvalidInput(f"a partition cannot be on {replication} replicas, there are {len(replicas)}")
        at = {**nowhere_in_particular(sorted(replicas)), **(places or {})}
        members = ClusterMembers(at, held, servers_at_first(settings or {}))
        wanted = ClusterInfo(self.cluster, partitions, uuid.uuid4(), members, dict(settings or {}))
        most = most_partitions(held)
        if partitions > most:
            raise InvalidInput(
                f"a cluster with {held} replicas of each partition has {most} partitions at most, not {partitions}"
            )
        self._info = create_nodes(self._zookeeper, self._root, wanted, first_space_nodes(partitions))
        return self._info

    def plant(
        self,
        seed: Seed,
        replicas: Sequence[int],
        settings: Mapping[str, Any],
        replication: int = 0,
        places: Mapping[int, ReplicaPlace] | None = None,
    ) -> ClusterInfo:
        """``initialize`` for a cluster whose replicas begin with logs; its key is the seed's, and so is who has what.
        ``replication`` and ``places`` are for partitions to come. ClusterMismatch if there is another cluster of that
        name."""
        wanted = ClusterInfo(
            self.cluster,
            seed.spaces.partitions,
            seed.cluster_key,
            ClusterMembers(
                {**nowhere_in_particular(sorted(replicas)), **(places or {})},
                replication or len(replicas),
                servers_at_first(settings),
            ),
            dict(settings),
        )
        info = create_nodes(self._zookeeper, self._root, wanted, seed_nodes(seed, replicas))
        if info.cluster_key != seed.cluster_key:
            raise ClusterMismatch(
                f"ZooKeeper has another cluster {self.cluster!r} than the one that was restored; use another name"
            )
        self._info = info
        return info

    def info(self) -> ClusterInfo:
        """ClusterNotFound if there is no such cluster, or its initialisation was never completed."""
        if self._info is None:
            self._info = complete_info(self._zookeeper, self._root)[0]
        return self._info

    def partitions(self) -> int:
        """How many partitions there are now: their number only grows, ``info`` tells what it was."""
        self.info()
        return read_info(self._zookeeper, self._root)[0].partitions

    def check_may_change(self) -> None:
        """ZooKeeperRefused if this client may only read the cluster's nodes. Nothing is changed."""
        path = self._root + "/store/cluster"
        try:
            self._zookeeper.set(path, b"", _NO_VERSION)  # who may do it is looked at before the version is
        except VersionConflict:
            return

    def recovery(self) -> str:
        """Which recovery from the disks has made the cluster's nodes: another text each time; "" if none has. What was
        in a log before need not be in it now, whatever their IDs."""
        path, fields = self._recovered()
        with naming(path):
            return str(fields["recovery"]) if fields else ""

    def given_up(self) -> dict[int, list[GivenUp]]:
        """Partition -> what recoveries from the disks have given up of it: a disk that has it is of no use any more."""
        path, fields = self._recovered()
        with naming(path):
            return given_up_of(fields)

    def _recovered(self) -> tuple[str, dict[str, Any]]:
        """(the node that a recovery has left, what is in it, {} if there is none)."""
        path = self._root + "/store/recovered"
        try:
            data, _ = self._zookeeper.get(path)
        except NoNode:
            return path, {}
        return path, to_fields(path, data)

    # -- IDs -----------------------------------------------------------------------------------------

    def next_client_id(self) -> int:
        """A client ID nobody was ever given; the first is 1."""
        return self._next_id(self._root + "/ids/client")

    def next_server_id(self) -> int:
        """A server ID nobody was ever given; the first is 1."""
        return self._next_id(self._root + "/ids/server")

    def last_ids(self) -> tuple[int, int]:
        """The client ID and the server ID that were given out last, 0 if none was."""
        paths = self._root + "/ids/client", self._root + "/ids/server"
        client_id, server_id = (znodes.decode_counter(path, self._zookeeper.get(path)[0]) for path in paths)
        return client_id, server_id

    def _next_id(self, path: str) -> int:
        # A lost reply burns an ID, which is harmless: IDs must differ, not be dense.
        while True:
            data, version = self._zookeeper.get(path)
            value = znodes.decode_counter(path, data) + 1
            if not 0 < value <= _LAST_ID:  # clients' counter may be written by everybody who reaches ZooKeeper
                raise CoordinationError(
                    f"ZooKeeper node {path}: no ID can follow {value - 1}, which nobody was given; set it to a higher "
                    "one than all that were given out (four bytes, the highest first)"
                )
            try:
                self._zookeeper.set(path, znodes.encode_counter(value), version)
            except VersionConflict:
                continue  # somebody else got that one: each such turn means that one of us has moved on
            return value

    # -- servers -------------------------------------------------------------------------------------

    def register_server(self, server_id: int, endpoint: Endpoint, preferred: Sequence[int] = ()) -> EphemeralNode:
        """Keep this server's descriptor there, through expired sessions, until ``cancel()``.

        A node of the same server ID that a predecessor left is deleted first. If a successor takes our place
        while our session is expired, the registration ends (``active`` is False). ``preferred`` counts only
        where nothing was persisted by ``set_preferred``.
        """

        sessions: set[int] = set()

        def data() -> bytes:
            persisted = self._preferred_map()[0].get(server_id)
            mine = tuple(preferred) if persisted is None else persisted
            return znodes.encode_server(ServerDescriptor(server_id, endpoint, mine))

        def may_create(first: bool) -> bool:
            # Our own expired session's node may still be listed by a ZooKeeper server that lags: not a successor's.
            earlier = set(sessions)
            sessions.add(self._zookeeper.session_id)
            for path in self._descriptor_paths(server_id):
                owner = self._zookeeper.owner(path)
                if owner is None or owner == self._zookeeper.session_id:
                    continue
                if not first and owner not in earlier:
                    return False
                self._delete_if_there(path)
            return True

        return self._zookeeper.register_ephemeral(self._servers + "/s_", data, sequence=True, may_create=may_create)

    def remove_server_registration(self, server_id: int) -> None:
        """Delete the descriptor of a server whose process is known to be gone. Idempotent.

        A server that is alive after all registers again.
        """
        for path in self._descriptor_paths(server_id):
            self._delete_if_there(path)

    def servers(self) -> dict[int, ServerDescriptor]:
        """The live servers by ID, with their persisted preferred partitions."""
        preferred = self._preferred_map()[0]
        return {
            server.server_id: server._replace(preferred=preferred.get(server.server_id, server.preferred))
            for _, server in self._descriptors()
        }

    def watch_servers(self, callback: Callable[[dict[int, ServerDescriptor]], None]) -> Watches:
        """``callback`` now and whenever a server comes or goes or its preferred partitions change."""
        zookeeper = self._zookeeper
        return Watches(
            [
                zookeeper.watch_children(self._servers, lambda names: callback(self.servers())),
                zookeeper.watch_data(self._root + "/store/preferred", lambda data, version: callback(self.servers())),
            ]
        )

    def _descriptors(self) -> list[tuple[str, ServerDescriptor]]:
        """In order of registration, so that the latest of one server ID wins in a dict."""
        found = []
        for name in self._zookeeper.children(self._servers):
            path = f"{self._servers}/{name}"
            try:
                found.append((path, znodes.decode_server(path, self._zookeeper.get(path)[0])))
            except NoNode:
                continue  # gone since it was listed
        return found

    def _descriptor_paths(self, server_id: int) -> list[str]:
        return [path for path, server in self._descriptors() if server.server_id == server_id]

    def _delete_if_there(self, path: str) -> None:
        try:
            self._zookeeper.delete(path)
        except NoNode:
            return

    def preferred(self, server_id: int) -> tuple[int, ...]:
        """The persisted preferred partitions of a server, alive or not."""
        return self._preferred_map()[0].get(server_id, ())

    def set_preferred(self, server_id: int, partitions: Sequence[int]) -> None:
        """Persist the preferred partitions of a server; a live server's descriptor follows."""
        self.change_preferred(lambda servers: {server_id: partitions})

    def change_preferred(self, change: Callable[[Mapping[int, Sequence[int]]], Mapping[int, Sequence[int]]]) -> None:
        """What ``change`` makes of the preferred partitions of all servers, of some of them, by one compare-and-set: it
        may be asked several times. Live servers' descriptors follow. InvalidInput for a partition that is none."""
        count = self.partitions()
        path = self._root + "/store/preferred"
        while True:
            servers, version = self._preferred_map()
            wanted = {s: tuple(dict.fromkeys(partitions)) for s, partitions in change(servers).items()}
            if bad := [p for partitions in wanted.values() for p in partitions if not 0 <= p < count]:
                raise InvalidInput(f"cluster {self.cluster!r} has no partition {bad[0]}, only 0 to {count - 1}")
            servers |= wanted
            try:
                self._zookeeper.set(path, to_json({"servers": {str(s): list(p) for s, p in servers.items()}}), version)
                break
            except VersionConflict:
                continue  # something else was changed: read that, and change it again
        for node, server in self._descriptors():
            if server.server_id in wanted:
                preferred = wanted[server.server_id]
                try:
                    self._zookeeper.set(node, znodes.encode_server(server._replace(preferred=preferred)), -1)
                except NoNode:
                    continue

    def _preferred_map(self) -> tuple[dict[int, tuple[int, ...]], int]:
        path = self._root + "/store/preferred"
        data, version = self._zookeeper.get(path)
        fields = to_fields(path, data)
        with naming(path):
            return {int(s): tuple(int(p) for p in mine) for s, mine in fields["servers"].items()}, version

    # -- the assignment ------------------------------------------------------------------------------

    def assignment(self) -> tuple[Assignment, int]:
        """(who has which partition, the version to set the next one with)."""
        data, version = self._zookeeper.get(self._servers)
        return znodes.decode_assignment(self._servers, data).assignment, version

    def set_assignment(self, assignment: Assignment, version: int) -> int:
        """Compare-and-set: the new version. VersionConflict if somebody else has set one."""
        children_version = self._zookeeper.children_version(self._servers)
        node = AssignmentNode(children_version, self.partitions(), assignment)
        return self._zookeeper.set(self._servers, znodes.encode_assignment(node), version)

    def watch_assignment(self, callback: Callable[[Assignment, int], None]) -> Watch:
        """``callback(assignment, version)`` now and after each change; not while there is no cluster."""

        def changed(data: bytes | None, version: int) -> None:
            if data is not None:
                callback(znodes.decode_assignment(self._servers, data).assignment, version)

        return self._zookeeper.watch_data(self._servers, changed)

    # -- partitions ----------------------------------------------------------------------------------

    def roster(self, p: int) -> tuple[Roster, int]:
        """(roster, the version to set the next one with)."""
        path = self._partition_path(p)
        data, version = self._zookeeper.get(path)
        with naming(path):
            return Roster.from_json(data), version

    def set_roster(self, p: int, roster: Roster, version: int) -> int:
        """Compare-and-set: the new version. VersionConflict. After ZooKeeperUnreachable read before going on."""
        return self._zookeeper.set(self._partition_path(p), roster.to_json().encode(), version)

    def _partition_path(self, p: int) -> str:
        return partition_path(self._root, p)

    def replace_replica(self, replica_id: int, partitions: Sequence[int] | None = None) -> None:
        """Declare that a replica's disk is lost and that it may come back empty: it never joined anything.

        ``partitions``: only what it had of these; it must be in their sets. CoordinationError, and nothing is changed,
        if it is a member of some partition's last session: there its vote may be needed, so a server has to open a
        session without it first.
        """
        count = self.partitions()
        wanted = self.spaces.table().kept if partitions is None else partitions
        may_be_others = partitions is None and replica_id in self.members.read().places  # also of who came later
        if bad := [p for p in wanted if not 0 <= p < count]:
            raise InvalidInput(f"cluster {self.cluster!r} has no partition {bad[0]}, only 0 to {count - 1}")
        while True:
            writes = []
            for p in wanted:
                try:
                    roster, version = self.roster(p)
                except NoNode:
                    continue  # its space is being made: nobody ever joined it
                if may_be_others and replica_id not in roster.replicas:
                    continue
                if roster.replicas.get(replica_id) != NEVER_JOINED:
                    writes.append(Write(self._partition_path(p), _replaced(p, roster, replica_id), version))
            try:
                for start in range(0, len(writes), WRITES_AT_ONCE):
                    self._zookeeper.write_all(writes[start : start + WRITES_AT_ONCE])
            except VersionConflict:
                continue  # a server has opened a session meanwhile: look at everything again
            return

    # -- replicas ------------------------------------------------------------------------------------

    def announce_replica(self, replica_id: int, endpoint: Endpoint, incarnation: str) -> None:
        """Say where a replica listens; stays after its death, the next start overwrites it."""
        there = sorted(self.members.read().places)
        if replica_id not in there:
            raise InvalidInput(f"cluster {self.cluster!r} has no replica {replica_id}: {there}")
        path = self._replica_path(replica_id)
        data = to_json({"host": endpoint.host, "port": endpoint.port, "incarnation": incarnation})
        try:
            self._zookeeper.set(path, data, -1)
        except NoNode:
            # Two incarnations at once: NodeExists tells the later one, which may simply start over.
            self._zookeeper.create(path, data)

    def replicas(self) -> dict[int, AnnouncedReplica]:
        """What was announced last of each replica that has ever started."""
        found = {}
        for replica_id in sorted(map(int, self._zookeeper.children(self._root + "/store/replicas"))):
            path = self._replica_path(replica_id)
            try:
                fields = to_fields(path, self._zookeeper.get(path)[0])
            except NoNode:
                continue  # removed since it was listed
            with naming(path):
                endpoint = Endpoint(str(fields["host"]), int(fields["port"]))
                found[replica_id] = AnnouncedReplica(endpoint, str(fields["incarnation"]))
        return found

    def watch_replicas(self, callback: Callable[[dict[int, AnnouncedReplica]], None]) -> Watches:
        """``callback`` now and whenever a replica announces itself that belonged to the cluster when this was made."""
        return Watches([self.watch_replica(replica_id, callback) for replica_id in self.info().replica_ids])

    def watch_replica(self, replica_id: int, callback: Callable[[dict[int, AnnouncedReplica]], None]) -> Watch:
        """``callback`` with all that are announced, now and whenever this one announces itself."""
        path = self._replica_path(replica_id)
        return self._zookeeper.watch_data(path, lambda data, version: callback(self.replicas()))

    def _replica_path(self, replica_id: int) -> str:
        return f"{self._root}/store/replicas/{replica_id}"

    # -- locks ---------------------------------------------------------------------------------------

    def lead(self, identity: str, on_elected: Callable[[], None], on_lost: Callable[[], None]) -> Leadership:
        """Contend for the leader lock (see Leadership) as ``identity``, which people see."""
        path = self._root + "/store/leader"
        return Leadership(self._zookeeper, path, to_json({"identity": identity}), on_elected, on_lost)

    def leader(self) -> str | None:
        """Who has the leader lock."""
        return self._holder(self._root + "/store/leader")

    @contextmanager
    def admin_lock(self, identity: str) -> Iterator[Callable[[], None]]:
        """Held by one operator command at a time. CoordinationError names the holder; it does not wait.

        What it gives raises CoordinationError once the lock is lost, with the session of ZooKeeper: who needs minutes
        asks before each step."""
        path = self._root + "/store/admin"
        data = to_json({"identity": identity, "number": next(_locks)})  # no other lock of this process is like it
        self._lock_admin(path, data)

        def check_held() -> None:
            if self._zookeeper.owner(path) != self._zookeeper.session_id:
                raise CoordinationError(
                    f"cluster {self.cluster!r}: the admin lock was lost with the session of ZooKeeper, which had not "
                    "heard of this process for too long (was it stopped?), and somebody else may have it by now; "
                    "nothing more is done, and the same command goes on"
                )

        try:
            yield check_held
        finally:
            if not release(self._zookeeper, path):
                self._left_locks.add(data)

    def _lock_admin(self, path: str, data: bytes) -> None:
        while True:
            try:
                self._zookeeper.create(path, data, ephemeral=True)
            except ZooKeeperUnreachable:
                self._left_locks.add(data)  # it may be there all the same
                raise
            except NodeExists as error:
                if self._take_left_lock(path):
                    continue
                holder = self._holder(path) or "somebody who has just finished"
                raise CoordinationError(
                    f"cluster {self.cluster!r}: the admin lock is held by {holder}; try again when that is done"
                ) from error
            return

    def _take_left_lock(self, path: str) -> bool:
        """Whether what is there was left by us, who were not told of its making, or did not get through to end it: it
        would stay for as long as our session lives. Then it is gone."""
        try:
            data, version = self._zookeeper.get(path)
            if data not in self._left_locks or self._zookeeper.owner(path) != self._zookeeper.session_id:
                return False
            self._zookeeper.delete(path, version)
        except NoNode:
            return True
        self._left_locks.discard(data)
        return True

    def _holder(self, path: str) -> str | None:
        try:
            return str(to_fields(path, self._zookeeper.get(path)[0]).get("identity"))
        except NoNode:
            return None


def _replaced(p: int, roster: Roster, replica_id: int) -> bytes:
    entry = roster.replicas.get(replica_id)
    if entry is None:
        raise CoordinationError(f"replica {replica_id} is not assigned to partition {p}: {sorted(roster.replicas)} are")
    if entry.closing_mark is UNRESOLVED:
        raise CoordinationError(
            f"replica {replica_id} is a member of partition {p}'s last session: "
            f"nothing was changed; let a server open a session without it, then replace it, or only what is damaged: "
            f"waltz replace-replica {replica_id} --partition P"
        )
    return replace(roster, replicas={**roster.replicas, replica_id: NEVER_JOINED}).to_json().encode()
