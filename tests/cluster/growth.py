"""What grows with the number of clients, and of partitions: ``python -m tests.cluster.growth --clients 1000``.

One server with real replicas and a real ZooKeeper. The clients are real ones, in a process of their own, that mount
some partitions, append once and then wait; their places they are told, so that they need no ZooKeeper: what a client
has there is counted with a few that have one. What it prints is in docs/performance.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from tests.cluster.harness import Cluster, wait_until
from waltz_ray.client import AsyncWaltzClient
from waltz_ray.client.cursor_book import CursorBook
from waltz_ray.client.directory import Location, Whereabouts
from waltz_ray.client.tcp import TcpTransport
from waltz_ray.config import ServerConfig
from waltz_ray.connecting import connect
from waltz_ray.coordination.embedded import EmbeddedZooKeeper
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.placement import Assignment, Owner
from waltz_ray.runtime.status import Readiness
from waltz_ray.wire.znodes import AssignmentNode, encode_assignment

_IDLE_S = 10.0
_WITH_ZOOKEEPER = 20
_AT_A_TIME = 50


class _Told:
    """A directory without ZooKeeper."""

    partitions = 0
    cluster_key = "told"

    def __init__(self, client_id: int, endpoint: Endpoint, partitions: int) -> None:
        self.partitions = partitions
        self._client_id = client_id
        self._locations = {p: Location(1, 1, endpoint) for p in range(partitions)}

    @property
    def cursors(self) -> CursorBook:
        raise AssertionError("nobody asks")

    def next_client_id(self) -> int:
        return self._client_id

    def watch(self, callback: Callable[[Whereabouts], None]) -> Callable[[], None]:
        callback(self._locations)
        return lambda: None

    def close(self) -> None: ...


def _own() -> TcpTransport:
    """Clients of one loop may share a connection; most are processes of their own."""
    transport = TcpTransport()
    transport.shared = None
    return transport


async def _clients(count: int, endpoint: Endpoint, partitions: int, mounted: int) -> None:
    """Until stdin ends."""
    clients = [AsyncWaltzClient(_Told(10_000 + n, endpoint, partitions), _own()) for n in range(count)]

    async def begin(number: int, client: AsyncWaltzClient) -> None:
        await client.start()
        mine = [(number + each) % partitions for each in range(mounted)]
        await asyncio.gather(*(client.append(p, b"once") for p in mine))
        await client.server_high_water_mark(mine[0])  # the other connection

    for first in range(0, count, _AT_A_TIME):
        few = enumerate(clients[first : first + _AT_A_TIME], first)
        await asyncio.gather(*(begin(number, client) for number, client in few))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await asyncio.gather(*(client.close() for client in clients))


def _words(zookeeper: str) -> dict[str, int]:
    """What ZooKeeper says of itself: connections, watches, nodes."""
    host, _, port = zookeeper.rpartition(":")
    with socket.create_connection((host, int(port)), 5) as asking:
        asking.sendall(b"mntr")
        asking.shutdown(socket.SHUT_WR)
        told = b"".join(iter(lambda: asking.recv(65536), b"")).decode()
    pairs = (line.split("\t") for line in told.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _cost() -> tuple[float, float]:
    """MB of this process, seconds of CPU so far."""
    own = psutil.Process()
    return own.memory_info().rss / 1e6, sum(own.cpu_times()[:2])


def _idle() -> tuple[float, float]:
    """MB, and the share of a core while nothing is asked for."""
    before = _cost()[1]
    time.sleep(_IDLE_S)  # the measured interval itself
    after = _cost()
    return after[0], (after[1] - before) / _IDLE_S


def _print_assignments() -> None:
    for partitions in (4, 96, 1000, 10_000):
        assignment = Assignment({p: Owner(p % 6, 7) for p in range(partitions)})
        size = len(encode_assignment(AssignmentNode(1, partitions, assignment)))
        print(
            f"the assignment of {partitions} partitions: {size} bytes, read by every client and server at each change"
        )


def _print_watches(cluster: Cluster) -> None:
    before = _words(cluster.zookeeper)
    with ExitStack() as stack:
        for _ in range(_WITH_ZOOKEEPER):
            stack.enter_context(connect(cluster.name, zookeeper=cluster.zookeeper)).server_high_water_mark(0)
        after = _words(cluster.zookeeper)
    for name in ("zk_num_alive_connections", "zk_watch_count"):
        each = (after[name] - before[name]) / _WITH_ZOOKEEPER
        print(f"{name}: {before[name]} of the cluster, {each:g} more for each client")


def _run(clients: int, partitions: int, mounted: int) -> None:
    _print_assignments()
    config = ServerConfig(connections=2 * clients + 100, connections_per_peer=2 * clients + 100)
    with tempfile.TemporaryDirectory() as directory:
        zookeeper = EmbeddedZooKeeper(Path(directory) / "zookeeper")
        try:
            address = zookeeper.start()
            with Cluster(Path(directory), address, partitions=partitions, config=config) as cluster:
                wait_until(lambda: all(_is_ready(cluster, p) for p in range(partitions)), "all partitions serve", 60)
                _print_watches(cluster)
                endpoint = cluster.servers[1].endpoint
                assert endpoint is not None
                print("without clients: {:.0f} MB, {:.1%} of a core".format(*_idle()))
                command = [sys.executable, "-m", "tests.cluster.growth", "--of", f"{endpoint.host}:{endpoint.port}"]
                numbers = [f"--clients={clients}", f"--partitions={partitions}", f"--mounted={mounted}"]
                begin_s = time.monotonic()
                with subprocess.Popen([*command, *numbers], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
                    assert child.stdout is not None
                    assert child.stdout.readline() == b"ready\n", "the clients did not come"
                    took_s, connections = time.monotonic() - begin_s, len(cluster.servers[1].connections)
                    print(f"{clients} clients: {connections} connections, mounted and appended in {took_s:.1f} s")
                    print(f"with {clients} clients: {{:.0f}} MB, {{:.1%}} of a core".format(*_idle()))
                    used = psutil.Process(child.pid)
                    print(f"the clients' process: {used.memory_info().rss / 1e6:.0f} MB")
                    child.communicate(b"")
        finally:
            zookeeper.stop()
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")


def _is_ready(cluster: Cluster, partition: int) -> bool:
    found = cluster.status(partition)
    return found is not None and found.state is Readiness.READY


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=96)
    parser.add_argument("--mounted", type=int, default=4, help="partitions that each client uses")
    parser.add_argument("--of", default="", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    if given.of:
        host, _, port = given.of.rpartition(":")
        asyncio.run(_clients(given.clients, Endpoint(host, int(port)), given.partitions, given.mounted))
    else:
        _run(given.clients, given.partitions, given.mounted)


if __name__ == "__main__":
    main()
