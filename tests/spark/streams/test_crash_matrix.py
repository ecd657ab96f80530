"""Real processes, killed with SIGKILL at every point of a commit and of recovery; real files, a real ZooKeeper.

Each case is a world of its own; the processes of all cases die first, so that their locks expire together. The fast
part kills every service once at every point, and a recovery at every point with the services taking turns; the long
part is the whole product with the states and the consumer. test_crashes.py is finer, but in one process.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
from waltz_spark.streams.commit import PAUSES, POINTS, RECOVERY_POINTS
from waltz_spark.streams.files import LocalFiles
from waltz_spark.streams.services import StreamService
from waltz_spark.streams.states import StreamState

from tests.spark.streams.worker import SESSION_TIMEOUT_MS, TAKEN_OVER
from tests.spark.streams.world import CHAIN, DOCUMENT, NOW, PARTS, World, walk
from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.coordination.zookeeper import KazooZooKeeper

ROOT = Path(__file__).resolve().parents[3]
SERVICES = CHAIN[:3]
LAST = CHAIN[-1]  # a mirror of a mirror, with nobody behind it
AT_ONCE = 3
PATIENCE_S = 60.0
TAKE_OVER_S = 2 * SESSION_TIMEOUT_MS / 1000 + 3
"""The session's time-out, which ZooKeeper rounds up to its ticks, and a pass on a busy machine."""


class Died(BaseException):
    """A run in this process ends here; closing its client ends its session, as a time-out would."""


class Case(NamedTuple):
    """``left_at``: where a first run ended, "" = there was none; ``point``: where the process is killed.

    ``consumer``: it runs in between, and before recovery. ``compact``: the service makes one of a part's files.
    """

    service: str
    point: str
    consumer: bool
    left_at: str = ""
    layout: str = "parts"
    compact: bool = False


@dataclass
class Staged:
    case: Case
    world: World
    hosts: str

    def worker(self, signal_name: str) -> subprocess.Popen[bytes]:
        case = {
            "hosts": self.hosts,
            "base": self.world.base,
            "node": self.world.node,
            "service": self.case.service,
            "point": self.case.point,
            "signal": signal_name,
            "layout": self.case.layout,
            "compact": self.case.service if self.case.compact else "",
        }
        command = [sys.executable, "-m", "tests.spark.streams.worker", json.dumps(case)]
        return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)

    def kill(self) -> None:
        process = self.worker("KILL")
        with ended(process):
            _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == -signal.SIGKILL, f"{self.case}: {process.returncode} {errors.decode()}"

    def leave(self) -> None:
        """The first run, which ends at ``left_at``."""

        def hook(point: str) -> None:
            if point == self.case.left_at:
                raise Died

        zookeeper = KazooZooKeeper(self.hosts)
        settings = self.world.settings[self.case.service]
        service = StreamService(settings, zookeeper, clock=lambda: NOW, hook=hook)
        try:
            with pytest.raises(Died):
                service.run_once()
        finally:
            zookeeper.close()

    def consume(self, zookeeper: ZooKeeper) -> None:
        if self.case.consumer:
            with self.world.service(CHAIN[CHAIN.index(self.case.service) + 1], zookeeper) as service:
                assert not service.run_once().quarantined


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def stage(case: Case, base: Path, hosts: str, zookeeper: ZooKeeper) -> Staged:
    """Everything is there for the case's service to begin its first run."""
    directory = base / uuid.uuid4().hex
    layouts = DOCUMENT if case.layout == "document" else PARTS
    compact = case.service if case.compact else ""
    world = World(LocalFiles(), str(directory), f"/{directory.name}", 2, layouts=layouts, compact=compact)
    for name in CHAIN[: CHAIN.index(case.service)]:
        with world.service(name, zookeeper) as service:
            assert not service.run_once().standing_by
    return Staged(case, world, hosts)


def until_unlocked(zookeeper: ZooKeeper, staged: Staged) -> None:
    """The session of the process that was killed has expired."""
    free = threading.Event()
    lock = staged.world.settings[staged.case.service].node + "/lock"
    watch = zookeeper.watch_data(lock, lambda data, version: free.set() if data is None else None)
    try:
        assert free.wait(PATIENCE_S), f"{lock} was never given away"
    finally:
        watch.cancel()


def problems_of(cases: Sequence[Case], base: Path, hosts: str) -> list[str]:
    zookeeper = KazooZooKeeper(hosts)
    try:
        worlds = [stage(case, base, hosts, zookeeper) for case in cases]
        for one in worlds:
            if one.case.left_at:
                one.leave()
                one.consume(zookeeper)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(Staged.kill, worlds))
        found = []
        for one in worlds:
            one.consume(zookeeper)
            until_unlocked(zookeeper, one)
            passes = one.world.finish(zookeeper)
            replayed = [passed.replayed for passed in passes.values() if len(passed.replayed) > 1]
            found += [f"{one.case}: {problem}" for problem in [*one.world.problems(zookeeper), *replayed]]
        return found
    finally:
        zookeeper.close()


def in_recovery() -> list[tuple[str, str]]:
    """(where the first run ends, a point that the recovery from there passes): every pair there is."""
    beginnings = ("after build", *POINTS[POINTS.index("after TRANS_COMMIT_START") :])
    common = ("after lock", "after claim", "during fence", "after fence", "after cleaning")
    pairs = [(left_at, point) for left_at in beginnings for point in common]
    pairs += [("after TRANS_COMMIT_START", point) for point in ("after LOOK", "after discard")]
    pairs += [("after MOVE", point) for point in ("after LOOK", *POINTS[POINTS.index("after TRANS_MV_COMPLETE") :])]
    for state in (StreamState.MOVED, StreamState.ANNOUNCED, StreamState.TRASHED):
        # From a state on, recovery passes what a commit passes.
        passed = POINTS[POINTS.index("after " + state.value) + 1 :]
        pairs += [("after " + state.value, point) for point in passed]
    return pairs


def one_of_each_point() -> list[tuple[str, str]]:
    return list({point: (left_at, point) for left_at, point in in_recovery()}.values())


@pytest.mark.parametrize("name", SERVICES)
def test_killed_at_every_point(name: str, tmp_path: Path, zookeeper_server: str) -> None:
    cases = [Case(name, point, bool(number % 2)) for number, point in enumerate(POINTS)]
    assert problems_of(cases, tmp_path, zookeeper_server) == []


def test_a_mirror_of_a_mirror_killed_in_each_state(tmp_path: Path, zookeeper_server: str) -> None:
    """Behind a local, a merged and a mirror, each in a root of its own: everything is there once, in all four."""
    states = [StreamState.START, StreamState.MOVED, StreamState.ANNOUNCED, StreamState.TRASHED, StreamState.SUCCESS]
    points = (*(f"after {each.value}" for each in states), "after MOVE")
    cases = [Case(LAST, point, False) for point in points]
    cases += [Case(LAST, point, False, layout="document") for point in (*points, "during MOVE")]
    cases += [Case("tokyo", point, True, layout="document") for point in ("during MOVE", "after MOVE")]
    assert problems_of(cases, tmp_path, zookeeper_server) == []


def test_killed_while_parts_are_compacted(tmp_path: Path, zookeeper_server: str) -> None:
    """Everywhere in a commit, in both layouts: the same records, in one file, announced once."""
    cases = [
        Case(SERVICES[number % 2], point, bool(number % 3), layout=layout, compact=True)
        for layout in ("parts", "document")
        for number, point in enumerate(POINTS)
    ]
    assert problems_of(cases, tmp_path, zookeeper_server) == []


def test_killed_again_in_recovery(tmp_path: Path, zookeeper_server: str) -> None:
    cases = [
        Case(SERVICES[number % 3], point, bool(number % 2), left_at)
        for number, (left_at, point) in enumerate(one_of_each_point())
    ]
    assert {case.point for case in cases} >= set(RECOVERY_POINTS)
    assert problems_of(cases, tmp_path, zookeeper_server) == []


@pytest.mark.long
@pytest.mark.timeout(1800)  # about a hundred processes
@pytest.mark.parametrize("consumer", [False, True], ids=["alone", "consumed"])
@pytest.mark.parametrize("name", SERVICES)
def test_the_whole_product(name: str, consumer: bool, tmp_path: Path, zookeeper_server: str) -> None:
    cases = [Case(name, point, consumer) for point in POINTS]
    cases += [Case(name, point, consumer, left_at) for left_at, point in in_recovery()]
    assert problems_of(cases, tmp_path, zookeeper_server) == []


ZOMBIES = ("before MOVE", "before ANNOUNCE", "before TRASH", "before FORGET", "after SUCCESS_COMMIT")
"""In each state, behind the look at the lock: the next thing that it does is the action."""


def test_stopped_processes_wake_up_too_late(tmp_path: Path, zookeeper_server: str) -> None:
    """A standby knows who holds the lock, succeeds in time, and nothing a zombie does afterwards changes anything."""
    zookeeper = KazooZooKeeper(zookeeper_server)
    try:
        worlds = [stage(Case("tokyo", point, True), tmp_path, zookeeper_server, zookeeper) for point in ZOMBIES]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            failed = list(pool.map(lambda one: zombie_problems(one, zookeeper), worlds))
        assert failed == [[]] * len(ZOMBIES)
    finally:
        zookeeper.close()


def zombie_problems(staged: Staged, zookeeper: ZooKeeper) -> list[str]:
    process = staged.worker("STOP")
    with ended(process):
        # It has stopped behind its look at the lock; waitid tells when.
        assert os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT) is not None
        stopped = time.monotonic()
        client = KazooZooKeeper(staged.hosts)
        with StreamService(staged.world.settings["tokyo"], client, clock=lambda: NOW) as standby:
            passed = standby.run_once()
            assert passed.standing_by
            assert f"process {process.pid} on {socket.gethostname()} has the lock since 2026-11-21" in passed.holder
            until_unlocked(zookeeper, staged)
            assert not standby.run_once().standing_by
            took_s = time.monotonic() - stopped
        client.close()
        staged.world.finish(zookeeper)
        problems = staged.world.problems(zookeeper)
        before = walk(LocalFiles(), staged.world.base)
        process.send_signal(signal.SIGCONT)
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == TAKEN_OVER, errors.decode()
        if walk(LocalFiles(), staged.world.base) != before:
            problems.append(f"{staged.case}: the zombie has changed a file")
        if took_s > TAKE_OVER_S:
            problems.append(f"{staged.case}: taken over {took_s:.1f} s after it stopped")
        return problems


def test_every_point_is_passed(tmp_path: Path, zookeeper_server: str) -> None:
    """What is not in the lists is killed nowhere."""
    zookeeper = KazooZooKeeper(zookeeper_server)
    passed: list[str] = []
    try:
        staged = stage(Case("tokyo", "", False, "after TRANS_COMMIT_START"), tmp_path, zookeeper_server, zookeeper)
        staged.leave()
        with StreamService(staged.world.settings["tokyo"], zookeeper, hook=passed.append) as service:
            service.run_once()
    finally:
        zookeeper.close()
    assert set(passed) == {*POINTS, *RECOVERY_POINTS, *PAUSES}
