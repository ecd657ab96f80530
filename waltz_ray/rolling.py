"""A running cluster's processes, ended and started again one after the other, while everybody goes on working.

It is what a new version of the code, of Python or of a library needs. Nothing is ended unless a quorum stays without
it: before each, every partition is open and has all of its replicas, or it is waited for. A server is drained first, so
that its partitions move as they do in any planned move; a replica is just ended, for its peers are a quorum without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from waltz_ray.actors.supervision import ZOOKEEPER, restart_actor, running_actors, statuses
from waltz_ray.bring_up import cluster_status, missing
from waltz_ray.errors import ClusterNotFound, InvalidInput, PartitionNotReady
from waltz_ray.finding.ray_lookup import MANAGER
from waltz_ray.members import Members
from waltz_ray.runtime.status import ActorStatus

__all__ = ["RollingRestart"]

Progress = Callable[[str], None]

_POLL_S = 0.1
_KINDS = ("topic", "kv", "server", "replica", MANAGER)
"""In the order in which they are restarted: who uses something before what it uses; the manager, which starts what is
not there, last."""


@dataclass
class RollingRestart:
    """Of the cluster of ``members``; this process has joined its Ray. ``timeout_s``: for each process."""

    members: Members
    progress: Progress = lambda text: None
    timeout_s: float = 120.0

    def actors(self, names: Sequence[str] = ()) -> list[str]:
        """These ("server/0", "cluster-manager"), or all but ZooKeeper, in their order. InvalidInput: there is none."""
        cluster = self.members.cluster
        there = sorted((name for name in running_actors(cluster) if name != ZOOKEEPER), key=_rank)
        strangers = sorted(set(names) - set(there))
        if strangers:
            raise InvalidInput(
                f"cluster {self.members.cluster!r} runs no {strangers[0]!r}; there are: {', '.join(there)}"
            )
        return [name for name in there if name in names or not names]

    def run(self, names: Sequence[str] = ()) -> list[str]:
        """Restart these (``actors``); what was restarted.

        PartitionNotReady if one is not back in time, or if a partition is not open, or lacks a replica, before the next
        one: then that one still runs.
        """
        chosen = self.actors(names)
        for number, name in enumerate(chosen):
            self.progress(f"{number + 1} of {len(chosen)}: {name}")
            self._wait(name, lambda: self._not_well(""))
            if name.startswith("server/"):
                self._restart_server(name)
            else:
                self._restart(name)
        return chosen

    def _restart_server(self, name: str) -> None:
        """Its partitions are served by others meanwhile, if there are others."""
        number, membership = int(name.partition("/")[2]), self.members.membership
        others = membership.servers - membership.draining_servers - {number}
        had = self._partitions_of(number)
        if number in membership.draining_servers or not others:
            self._restart(name)
            return
        self.members.drain_server(number)
        try:
            self.members.wait_until_server_has_none(number, self.progress, self.timeout_s)
            self._wait(name, lambda: self._not_well(""))
            self._restart(name)
        finally:
            self.members.keep_server(number)
        if had:  # or the next would be ended while they are still on their way back
            self._wait(
                name, lambda: "" if self._partitions_of(number) else f"{name} has not been given partitions again"
            )

    def _partitions_of(self, number: int) -> tuple[int, ...]:
        return next((row.partitions for row in self.members.servers() if row.server == number), ())

    def _restart(self, name: str) -> None:
        before = self._pid(name)
        restart_actor(self.members.cluster, name)
        self._wait(name, lambda: self._not_back(name, before) or self._not_well(name))

    def _not_back(self, name: str, before: int | None) -> str:
        now = self._pid(name)
        return f"{name} has not begun again" if now is None or now == before else ""

    def _pid(self, name: str) -> int | None:
        """Of the process that answers for it, None if none does."""
        cluster, (kind, _, number) = self.members.cluster, name.partition("/")
        if kind == MANAGER:
            try:
                return cluster_status(cluster, self.timeout_s).manager.pid
            except ClusterNotFound:
                return None
        of = {each: [int(number)] if each == kind else [] for each in _KINDS[:-1]}
        answers = statuses(cluster, of["server"], of["replica"], kv=of["kv"], topics=of["topic"])
        kinds: tuple[Mapping[int, ActorStatus], ...] = (answers.servers, answers.replicas, answers.kv, answers.topics)
        (status,) = [status for each in kinds for status in each.values()]
        return status.pid if status.serving else None

    def _not_well(self, name: str) -> str:
        """Why nothing may be ended now, "" if something may: ``name`` is who was ended last."""
        try:
            status = cluster_status(self.members.cluster, self.timeout_s)
        except ClusterNotFound as error:
            return str(error)
        waiting = missing(status, len(status.kv), len(status.topics)) or self.members.lacking()
        return f"after {name}: {waiting[0]}" if waiting and name else "".join(waiting[:1])

    def _wait(self, name: str, left: Callable[[], str]) -> None:
        deadline, told = time.monotonic() + self.timeout_s, ""
        while text := left():
            if text != told:
                self.progress(text)
                told = text
            if time.monotonic() > deadline:
                raise PartitionNotReady(
                    f"the restart stops at {name}: {text}, for {self.timeout_s:g} s; the rest runs as before: see "
                    "waltz status, and ask for the rest by name"
                )
            time.sleep(_POLL_S)


def _rank(name: str) -> tuple[int, int]:
    kind, _, number = name.partition("/")
    return _KINDS.index(kind), int(number or 0)
