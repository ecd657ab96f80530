"""What may happen to a cluster: each as a function that is given the cluster and the number of the try, and returns
when it is over. Only processes of the benchmark's own cluster are stopped and killed, by pid.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import psutil  # type: ignore[import-untyped]

from waltz_bench.cluster import REPLICAS, SERVERS, Waltz
from waltz_bench.steady import PARTITIONS
from waltz_bench.victims import ZOOKEEPER, pids_of, stopped
from waltz_ray.actors.supervision import MANAGER, ask
from waltz_ray.coordination.upgrade_store import UpgradeStore
from waltz_ray.errors import DataUnavailable, InvalidInput
from waltz_ray.finding import cluster_file
from waltz_ray.members import Members
from waltz_ray.upgrading import hands_of, upgrade_rolling

__all__ = [
    "Act",
    "a_majority",
    "a_node",
    "a_replica",
    "a_server",
    "all_servers",
    "drain",
    "drain_replica",
    "kill",
    "move",
    "nothing",
    "rolling_restart",
    "stop",
    "without_zookeeper",
]

Act = Callable[[Waltz, int], None]
"""The cluster, and the number of the try."""

Victims = Callable[[Waltz, int], Sequence[str]]
"""Names of the processes that the event is about."""

_ANSWER_S = 20.0
_AFTER_S = 2.0  # that is watched when something was ended or moved
_MEMBERS_S, _DRAINED_S = 60.0, 240.0
_KEEPER = "ray::ZooKeeperHost"


def nothing(waltz: Waltz, number: int) -> None:
    """What the machine does by itself."""
    time.sleep(_AFTER_S)  # the measured interval itself


# ---- who


def a_replica(waltz: Waltz, number: int) -> Sequence[str]:
    """Each in turn."""
    return [f"replica-{number % REPLICAS}"]


def a_majority(waltz: Waltz, number: int) -> Sequence[str]:
    """All replicas but one, each in turn."""
    return [f"replica-{replica}" for replica in range(REPLICAS) if replica != number % REPLICAS]


def a_server(waltz: Waltz, number: int) -> Sequence[str]:
    """One that has partitions: who has just been started again may have none."""
    return [f"server-{waltz.status().partitions[number % PARTITIONS].server}"]


def a_node(waltz: Waltz, number: int) -> Sequence[str]:
    """What a node that is lost takes with it."""
    return [*a_server(waltz, number), *a_replica(waltz, number)]


def all_servers(waltz: Waltz, number: int) -> Sequence[str]:
    """Every one."""
    return [f"server-{server}" for server in range(SERVERS)]


def _zookeeper(waltz: Waltz) -> int:
    """The embedded one's process. InvalidInput: the ZooKeeper is somebody else's."""
    (pid,) = pids_of(waltz, [ZOOKEEPER])
    return pid


# ---- what: killed and stopped


def kill(victims: Victims) -> Act:
    """SIGKILL of all of them at once."""

    def act(waltz: Waltz, number: int) -> None:
        pids = waltz.pids()
        for name in victims(waltz, number):
            os.kill(pids[name], signal.SIGKILL)
        time.sleep(_AFTER_S)  # the measured interval itself

    return act


def stop(seconds: float, victims: Victims) -> Act:
    """SIGSTOP of all of them, for so long."""

    def act(waltz: Waltz, number: int) -> None:
        pids = waltz.pids()
        with stopped(*(pids[name] for name in victims(waltz, number))):
            time.sleep(seconds)  # how long it hangs

    return act


@contextmanager
def _dead(pid: int, keeper: int) -> Iterator[None]:
    """Killed, and its keeper stopped, which would start it again within a second."""
    with stopped(keeper):
        os.kill(pid, signal.SIGKILL)
        yield


def _keeper_of(waltz: Waltz) -> int:
    """The process of the actor that looks after the embedded ZooKeeper."""
    known = cluster_file.read(waltz.directory)
    head = known.ray.process() if known is not None and known.ray is not None else None
    for process in head.children(recursive=True) if head is not None else ():
        with suppress(psutil.Error):  # gone meanwhile
            if "".join(process.cmdline()).startswith(_KEEPER):
                return int(process.pid)
    raise InvalidInput(f"cluster {waltz.name!r} has no keeper of a ZooKeeper on this machine")


def without_zookeeper(hung: bool, with_kill: bool, seconds: float) -> Act:
    """It is dead, or hung, for so long; ``with_kill``: a replica is killed meanwhile."""

    def act(waltz: Waltz, number: int) -> None:
        (replica,) = a_replica(waltz, number)
        victim, zookeeper = waltz.pids()[replica], _zookeeper(waltz)
        away = stopped(zookeeper) if hung else _dead(zookeeper, _keeper_of(waltz))
        with away:
            time.sleep(seconds / 4)  # it is away before, and after
            if with_kill:
                os.kill(victim, signal.SIGKILL)
            time.sleep(3 * seconds / 4)  # the measured interval itself
        if not hung:
            _wait_until_zookeeper_is_back(waltz, zookeeper)

    return act


def _wait_until_zookeeper_is_back(waltz: Waltz, before: int) -> None:
    until_s = time.monotonic() + _MEMBERS_S
    while True:
        keeper = waltz.status().zookeeper_server
        if keeper is not None and keeper.pid not in (None, before) and psutil.pid_exists(keeper.pid):
            return
        if time.monotonic() > until_s:
            raise DataUnavailable(f"ZooKeeper is not back {_MEMBERS_S:g} s after its keeper goes on")
        time.sleep(0.1)


# ---- what: planned


def move(waltz: Waltz, number: int) -> None:
    """The servers change places: from the second try on each gets the partitions that the other one had."""
    halves = [list(range(0, PARTITIONS // 2)), list(range(PARTITIONS // 2, PARTITIONS))]
    for server, half in enumerate(halves if number % 2 else reversed(halves)):
        ask(waltz.name, MANAGER, "set_preferred", _ANSWER_S, server, half)
    time.sleep(_AFTER_S)  # the measured interval itself


def drain(waltz: Waltz, number: int) -> None:
    """``waltz server drain``, and ``--cancel``."""
    server = number % SERVERS
    with Members(waltz.name, zookeeper=waltz.zookeeper) as members:
        members.drain_server(server)
        try:
            members.wait_until_server_has_none(server, lambda text: None, _MEMBERS_S)
            time.sleep(_AFTER_S)  # the measured interval itself
        finally:
            members.keep_server(server)
        time.sleep(_AFTER_S)  # the other half of it


def drain_replica(waltz: Waltz, number: int) -> None:
    """``waltz replica drain``, each in turn, until it has nothing; and ``--cancel``: what the next one has goes there.

    There is one replica more than a partition is on: else there would be nowhere to go.
    """
    with Members(waltz.name, zookeeper=waltz.zookeeper) as members:
        replicas = sorted(members.membership.places)
        going = replicas[number % len(replicas)]
        moved = members.drain_replica(going)
        try:
            members.wait_until_moved(moved, lambda text: None, _DRAINED_S)
            time.sleep(_AFTER_S)  # the measured interval itself
        finally:
            members.keep_replica(going)


def rolling_restart(waltz: Waltz, number: int) -> None:
    """``waltz upgrade --rolling``: all servers, all replicas, and the manager."""
    with Members(waltz.name, zookeeper=waltz.zookeeper) as members:
        store = UpgradeStore(members.zookeeper, members.cluster)
        upgrade_rolling(store, hands_of(members), lambda text: None, _MEMBERS_S)
