"""What a smoke stops and starts in turn: every kind of process, by SIGKILL and by SIGSTOP."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from waltz_bench.cluster import REPLICAS, SERVERS, Waltz
from waltz_bench.smoke_clients import SmokeClients
from waltz_bench.victims import MANAGER, ZOOKEEPER, pids_of, stopped
from waltz_ray.errors import InvalidInput

__all__ = ["FAULTS", "Fault", "chosen_faults", "strike"]

_CLIENT = "client-"
_KILLED_S = 1.0


@dataclass(frozen=True)
class Fault:
    """``victims``: the names of the processes, given how many faults there were before. ``hangs_s``: they are stopped
    and continued after so long; None: they are killed."""

    victims: Callable[[Waltz, int], Sequence[str]]
    hangs_s: float | None = None


def _a_replica(waltz: Waltz, number: int) -> Sequence[str]:
    return [f"replica-{number % REPLICAS}"]


def _a_server(waltz: Waltz, number: int) -> Sequence[str]:
    """One that has a partition: who has just been started again may have none."""
    partitions = waltz.status().partitions
    return [f"server-{partitions[number % len(partitions)].server}"]


def _all_servers(waltz: Waltz, number: int) -> Sequence[str]:
    return [f"server-{server}" for server in range(SERVERS)]


def _a_node(waltz: Waltz, number: int) -> Sequence[str]:
    return [*_a_replica(waltz, number), *_a_server(waltz, number)]


def _the(name: str) -> Callable[[Waltz, int], Sequence[str]]:
    return lambda waltz, number: [name]


def _a_client(waltz: Waltz, number: int) -> Sequence[str]:
    return [f"{_CLIENT}{number}"]


FAULTS = {
    "SIGKILL of a replica": Fault(_a_replica),
    "SIGSTOP of a server": Fault(_a_server, 4.0),
    "SIGKILL of a client": Fault(_a_client),
    "SIGKILL of the manager": Fault(_the(MANAGER)),
    "SIGSTOP of a replica": Fault(_a_replica, 3.0),
    "SIGKILL of a server": Fault(_a_server),
    "SIGKILL of ZooKeeper": Fault(_the(ZOOKEEPER)),
    "SIGSTOP of a client": Fault(_a_client, 3.0),
    "SIGSTOP of the manager": Fault(_the(MANAGER), 5.0),
    "SIGKILL of a replica and a server": Fault(_a_node),
    "SIGSTOP of ZooKeeper": Fault(_the(ZOOKEEPER), 8.0),
    "SIGKILL of all servers": Fault(_all_servers),
}
"""By name, in the order in which they come."""


def chosen_faults(names: Sequence[str]) -> tuple[str, ...]:
    """Those, in their order; none: all. InvalidInput."""
    strangers = sorted(set(names) - FAULTS.keys())
    if strangers:
        raise InvalidInput(f"there is no fault {strangers[0]!r}; there are: {', '.join(FAULTS)}")
    return tuple(name for name in FAULTS if name in names or not names)


def strike(
    fault: Fault, waltz: Waltz, clients: SmokeClients, number: int, lasting: float = 1.0
) -> tuple[Sequence[str], int | None]:
    """It is over when this returns; a client that was killed is there again. (Who it was, the client that it was).

    ``lasting``: so many times as long as usual.
    """
    names = fault.victims(waltz, number)
    client = None
    if names[0].startswith(_CLIENT):
        client = int(names[0].removeprefix(_CLIENT)) % len(clients)
        names, pids = [f"{_CLIENT}{client}"], [clients.pid(client)]
    else:
        pids = pids_of(waltz, names)
    if fault.hangs_s is not None:
        with stopped(*pids):
            time.sleep(fault.hangs_s * lasting)  # how long it hangs
        return names, client
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    if client is not None:
        clients.start_again(client)
    time.sleep(_KILLED_S * lasting)  # the measured interval itself
    return names, client
