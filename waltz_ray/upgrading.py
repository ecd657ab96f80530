"""Processes of a cluster are replaced, one at a time, while it serves: all of them by ``waltz upgrade --rolling``, and
those that read settings which ``waltz apply`` changes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from waltz_ray.coordination.upgrade_store import UpgradeStore
from waltz_ray.errors import ClusterNotFound, PartitionNotReady
from waltz_ray.members import Members
from waltz_ray.protocol.cluster_members import ClusterMembers
from waltz_ray.protocol.rolling import UNSEEN, RollingUpgrade, in_order
from waltz_ray.runtime.findings import what_is_not_whole
from waltz_ray.runtime.status import ActorStatus, ClusterStatus

__all__ = [
    "UpgradeHands",
    "UpgradeResult",
    "change_settings",
    "change_settings_of_stuck",
    "hands_of",
    "upgrade_plan",
    "upgrade_rolling",
]

Progress = Callable[[str], None]

_POLL_S = 0.2
_MANAGER_TIMEOUT_S = 5.0


class UpgradeHands(Protocol):
    """What an upgrade does to a cluster; a test has its own."""

    def look(self) -> ClusterStatus | None:
        """What the manager sees; None while it says nothing."""

    def restart(self, actor: str) -> None:
        """Its process ends, having closed what it can; another one comes."""

    def members(self) -> ClusterMembers: ...

    def drain(self, server: int) -> None: ...

    def keep(self, server: int) -> None: ...

    def lock(self) -> AbstractContextManager[Callable[[], None]]:
        """Nobody else changes the cluster meanwhile. CoordinationError if somebody does; what it gives raises that once
        somebody else may."""


@dataclass(frozen=True)
class UpgradeResult:
    """``restarted`` now, in this order; ``versions``: how many processes have which."""

    restarted: tuple[str, ...]
    versions: dict[str, int]


def processes_of(view: ClusterStatus) -> dict[str, int | None]:
    """The process of each actor, by its name."""
    found: dict[str, int | None] = {"cluster-manager": view.manager.pid}
    return found | {f"{kind}/{number}": status.pid for kind, number, status in _actors(view)}


def upgrade_plan(store: UpgradeStore, hands: UpgradeHands) -> list[str]:
    """What would be started again, in this order; nothing is changed. ClusterNotFound without a manager."""
    view = hands.look()
    if view is None:
        raise ClusterNotFound("the manager does not answer; see waltz doctor")
    under_way, processes = store.read(), processes_of(view)
    return in_order(processes) if under_way is None else under_way.left(processes)


def upgrade_rolling(
    store: UpgradeStore,
    hands: UpgradeHands,
    progress: Progress,
    step_s: float,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> UpgradeResult:
    """Start every actor again, or those that an interrupted upgrade has left, each only when all is whole.

    PartitionNotReady, naming what is missing, if a step takes longer than ``step_s``; the same call goes on later.
    """
    with hands.lock() as check_lock:
        return _Run(store, hands, progress, step_s, sleep, clock, check_lock).all()


def change_settings(
    store: UpgradeStore,
    hands: UpgradeHands,
    changes: Iterable[tuple[Container[str], Callable[[RollingUpgrade], None]]],
    progress: Progress,
    step_s: float,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> list[str]:
    """One change of settings after the other, each with a restart of who reads them; who was started again.

    A change: the kinds of these actors, and what keeps the settings and the beginning of the upgrade, both or none
    (``SettingsStore.change``). An upgrade that was interrupted is finished first. Raises as ``upgrade_rolling``.
    """
    restarted = list[str]()
    with hands.lock() as check_lock:
        run = _Run(store, hands, progress, step_s, sleep, clock, check_lock)
        if store.read() is not None:
            restarted += run.all().restarted
        for kinds, begin in changes:
            begin(run.planned(kinds))
            restarted += run.all().restarted
    return restarted


def change_settings_of_stuck(
    store: UpgradeStore,
    hands: UpgradeHands,
    kinds: Container[str],
    begin: Callable[[RollingUpgrade], None],
    progress: Progress,
    wait_s: float,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> list[str]:
    """One change of settings where actors that read them do not serve for ``wait_s``, perhaps for what is kept now:
    no restart of one after the other, nor one that is under way, would come to its end. Who was started again.

    These actors are started again at once, in no order; the upgrade that ``begin`` keeps, in the place of one that is
    under way, has everybody else. Nothing is done where all serve, or there is no manager.
    """
    with hands.lock() as check_lock:
        deadline, told = clock() + wait_s, list[str]()
        while stuck := _not_serving(view := hands.look(), kinds):
            if clock() <= deadline:
                if stuck != told:
                    progress(f"waiting for {', '.join(stuck)}")
                    told = stuck
                sleep(_POLL_S)
                continue
            assert view is not None
            check_lock()
            processes, under_way = processes_of(view), store.read() or RollingUpgrade()
            reading = {name for name in processes if name.partition("/")[0] in kinds}
            names = in_order(reading | set(under_way.left(processes)))
            if under_way.drained in hands.members().servers:  # its turn comes once more
                hands.keep(under_way.drained)
            begin(RollingUpgrade(dict.fromkeys(names, UNSEEN)))
            for actor in stuck:
                progress(f"{actor}: is started again, with other settings")
                hands.restart(actor)
            return stuck
    return []


def _not_serving(view: ClusterStatus | None, kinds: Container[str]) -> list[str]:
    """Of the actors of these kinds, those that do not serve; of a cluster without a manager nothing is known."""
    if view is None:
        return []
    return [f"{kind}/{n}" for kind, n, status in _actors(view) if kind in kinds and not status.serving]


def _actors(view: ClusterStatus) -> Iterator[tuple[str, int, ActorStatus]]:
    """(kind, number, what it says) of each but the manager."""
    by_kind = ("server", view.servers), ("replica", view.replicas), ("kv", view.kv), ("topic", view.topics)
    for kind, statuses in by_kind:
        for number, status in statuses.items():
            yield kind, number, status


@dataclass
class _Run:
    store: UpgradeStore
    hands: UpgradeHands
    progress: Progress
    step_s: float
    sleep: Callable[[float], None]
    clock: Callable[[], float]
    check_lock: Callable[[], None]

    def all(self) -> UpgradeResult:
        self.upgrade = self.store.read() or self._begun()
        if not self.upgrade.looked:
            self._say = "beginning"
            self._noted(self.upgrade.seeing(processes_of(self._whole())))
        restarted: list[str] = []
        if self.upgrade.drained is not None and f"server/{self.upgrade.drained}" not in self._left():
            self._kept()  # it had been started again when the one before us was interrupted
        while left := self._left():
            actor, done = left[0], len(self.upgrade.before) - len(left)
            self._say = f"{done} of {len(self.upgrade.before)}: {actor}"
            self._one(actor)
            restarted.append(actor)
        self._say = "the last"
        view = self._whole()
        self.check_lock()
        self.store.end()
        return UpgradeResult(tuple(restarted), _versions(view))

    def _begun(self) -> RollingUpgrade:
        """Only of a cluster of which every process is known: else one could be left out."""
        self._say = "beginning"
        before = {name: pid for name, pid in processes_of(self._whole()).items() if pid is not None}
        upgrade = RollingUpgrade(before)
        self._noted(upgrade)
        return upgrade

    def planned(self, kinds: Container[str]) -> RollingUpgrade:
        """Of the actors of these kinds, whichever process they have once settings have been changed."""
        self._say = "beginning"
        now = processes_of(self._whole())
        return RollingUpgrade({name: UNSEEN for name in now if name.partition("/")[0] in kinds})

    def _left(self) -> list[str]:
        """By the last look that the manager allows: while it is being started again itself it is waited for."""
        self._say = "looking"
        return self.upgrade.left(processes_of(self._seen()))

    def _one(self, actor: str) -> None:
        server = int(actor.partition("/")[2]) if actor.startswith("server/") else None
        mine = server is not None and self.upgrade.drained == server
        if not mine:
            self._whole()
        members = self.hands.members()
        others = members.servers - members.draining_servers
        if server is not None and (mine or others - {server}) and (mine or server not in members.draining_servers):
            self._noted(self.upgrade.draining(server))
            self.hands.drain(server)
            self._until(lambda view: f"server {server} still has partitions" if _has(view, server) else "")
            self._whole()
        self.progress(f"{self._say}: is started again")
        self.check_lock()
        self.hands.restart(actor)
        before = self.upgrade.before[actor]
        self._until(lambda view: "" if processes_of(view).get(actor) not in (None, before) else "no new process yet")
        if self.upgrade.drained is not None:
            self._kept()

    def _kept(self) -> None:
        drained = self.upgrade.drained
        assert drained is not None
        self.check_lock()
        if drained in self.hands.members().servers:  # while it was drained anybody could remove it
            self.hands.keep(drained)
        self._noted(self.upgrade.draining(None))

    def _noted(self, upgrade: RollingUpgrade) -> None:
        self.check_lock()
        self.store.write(upgrade)
        self.upgrade = upgrade

    def _seen(self) -> ClusterStatus:
        return self._until(lambda view: "")

    def _whole(self) -> ClusterStatus:
        return self._until(lambda view: "; ".join(map(str, what_is_not_whole(view)[:1])))

    def _until(self, missing: Callable[[ClusterStatus], str]) -> ClusterStatus:
        deadline, told = self.clock() + self.step_s, ""
        while True:
            view = self.hands.look()
            text = "the manager does not answer" if view is None else missing(view)
            if view is not None and not text:
                return view
            if text != told:
                self.progress(f"{self._say}: {text}")
                told = text
            if self.clock() > deadline:
                raise PartitionNotReady(
                    f"the upgrade stands still at {self._say}: {text}, for {self.step_s:g} s; nothing else is started "
                    "again before that is well: see waltz doctor; then the same command goes on"
                )
            self.sleep(_POLL_S)


def _has(view: ClusterStatus, server: int | None) -> bool:
    return any(each.server == server for each in view.partitions)


def _versions(view: ClusterStatus) -> dict[str, int]:
    found: dict[str, int] = {}
    actors = (*view.servers.values(), *view.replicas.values(), *view.kv.values(), *view.topics.values())
    for process in (*(each.process for each in actors), view.manager.process):
        if process is not None:
            found[process.version] = found.get(process.version, 0) + 1
    return found


class _Hands:
    """By Ray, and by the cluster's ZooKeeper."""

    def __init__(self, members: Members) -> None:
        self._members = members

    def look(self) -> ClusterStatus | None:
        from waltz_ray.readiness import cluster_status

        try:
            return cluster_status(self._members.cluster, _MANAGER_TIMEOUT_S)
        except ClusterNotFound:
            return None

    def restart(self, actor: str) -> None:
        from waltz_ray.actors.supervision import close_and_restart_actor

        close_and_restart_actor(self._members.cluster, actor)

    def members(self) -> ClusterMembers:
        return self._members.membership

    def drain(self, server: int) -> None:
        self._members.drain_server_under_lock(server)

    def keep(self, server: int) -> None:
        self._members.keep_server_under_lock(server)

    def lock(self) -> AbstractContextManager[Callable[[], None]]:
        return self._members.admin_lock(f"upgrade, pid {os.getpid()}")


def hands_of(members: Members) -> UpgradeHands:
    """Those of a running cluster, whose Ray this process has joined."""
    return _Hands(members)
