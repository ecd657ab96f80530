"""Simulated threads and their locks: what they promise to the storage code that runs in them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from greenlet import GreenletExit

from tests.simulation.disk_threads import Condition, DiskThreads, GatedDisk, Lock, MayStop, RLock
from tests.simulation.loop import ProcessLoop, Scheduler, new_loop
from tests.simulation.network import Network
from tests.storage.faulty_disk import Crashed, FaultyDisk


class Stage:
    """A process with a disk, and what its threads have noted."""

    def __init__(self, seed: int = 1, chance: float = 1.0) -> None:
        self.scheduler = Scheduler(Random(seed))
        self.loop: ProcessLoop = new_loop(self.scheduler, Network(self.scheduler, Random(2)), "replica")
        self.threads = DiskThreads(self.loop, Random(seed), MayStop(chance), lambda: 0.001)
        self.raw = FaultyDisk()
        self.raw.put("/file", b"")
        self.disk = GatedDisk(self.raw, self.threads)
        self.notes: list[str] = []

    def note(self, what: str) -> Callable[[], None]:
        return lambda: self.notes.append(what)

    def start(self, work: Callable[[], None], afterwards: Callable[[], None] = lambda: None) -> None:
        def run() -> Callable[[], None]:
            work()
            return afterwards

        self.threads.start(run)

    def write(self, name: str, lock: RLock | None = None) -> Callable[[], None]:
        """Two calls of the gate, noted before and after, with the lock held."""

        def work() -> None:
            with lock or RLock():
                self.notes.append(f"{name} begins")
                handle = self.disk.open("/file", "write")
                self.disk.close(handle)
                self.notes.append(f"{name} ends")

        return work


def test_threads_interleave_at_the_disk_in_an_order_drawn_from_the_seed() -> None:
    orders = []
    for seed in [*range(20), 0]:
        stage = Stage(seed)
        for name in ("a", "b", "c"):
            stage.start(stage.write(name))
        stage.scheduler.run(1.0)
        assert sorted(stage.notes) == ["a begins", "a ends", "b begins", "b ends", "c begins", "c ends"]
        orders.append(tuple(stage.notes))
    assert orders[0] == orders[-1]
    assert len(set(orders)) > 10


def test_without_a_chance_to_be_put_aside_a_thread_runs_to_its_end_at_once() -> None:
    stage = Stage(chance=0.0)
    stage.start(stage.write("a"), stage.note("a is answered"))
    stage.start(stage.write("b"))
    assert stage.notes == ["a begins", "a ends", "a is answered", "b begins", "b ends"]
    assert stage.threads.switches == 0


@pytest.mark.parametrize("kind", [Lock, RLock])
def test_who_holds_a_lock_is_alone(kind: type[RLock]) -> None:
    for seed in range(20):
        stage, lock = Stage(seed), kind()
        for name in ("a", "b", "c"):
            stage.start(stage.write(name, lock))
        stage.scheduler.run(1.0)
        begun = stage.notes[::2]
        assert sorted(begun) == ["a begins", "b begins", "c begins"]
        assert stage.notes[1::2] == [one.replace("begins", "ends") for one in begun]


def test_a_condition_gives_all_of_a_lock_up_while_it_waits() -> None:
    for seed in range(20):
        stage, lock = Stage(seed), RLock()
        changed = Condition(lock)
        done: list[int] = []

        def wait(
            stage: Stage = stage, changed: Condition = changed, lock: RLock = lock, done: list[int] = done
        ) -> None:
            with lock, changed:
                while not done:
                    changed.wait()
                stage.notes.append("was notified")
            with lock:
                stage.notes.append("goes on")

        def notify(stage: Stage = stage, changed: Condition = changed, done: list[int] = done) -> None:
            stage.disk.fdatasync(stage.disk.open("/file", "write"))
            with changed:
                done.append(1)
                changed.notify_all()
                stage.notes.append("notifies")

        stage.start(wait)
        stage.start(wait)
        stage.start(notify)
        stage.scheduler.run(1.0)
        assert stage.notes[0] == "notifies"
        assert sorted(stage.notes[1:]) == ["goes on"] * 2 + ["was notified"] * 2


def test_what_is_put_aside_does_nothing_any_more_when_its_process_ends() -> None:
    """Neither to the disk, which has another owner by then, nor to locks; it is unwound all the same."""
    stage, lock = Stage(), RLock()

    def work() -> None:
        with lock:
            handle = stage.disk.open("/file", "write")
            try:
                stage.disk.fdatasync(handle)
            except GreenletExit:
                stage.notes.append("unwound")
                raise
            finally:
                stage.disk.close(handle)
                with pytest.raises(GreenletExit):
                    stage.disk.unlink("/file")

    stage.start(work, stage.note("answered"))
    stage.start(work, stage.note("answered"))
    while not stage.raw.open_handles():
        stage.scheduler.run(stage.scheduler.now + 1e-5)
    stage.raw.calls.clear()
    stage.threads.end()
    stage.scheduler.run(1.0)
    assert stage.notes == ["unwound"]
    assert stage.raw.calls == []


def test_a_paused_process_resumes_no_thread() -> None:
    stage = Stage()
    stage.start(stage.write("a"))
    stage.loop.pause()
    stage.scheduler.run(1.0)
    assert "a ends" not in stage.notes
    stage.loop.resume()
    stage.scheduler.run(2.0)
    assert "a ends" in stage.notes


def test_threads_that_wait_for_each_other_are_told_of() -> None:
    stage, first, second = Stage(3), RLock(), RLock()

    def take(one: RLock, other: RLock) -> None:
        with one:
            handle = stage.disk.open("/file", "read")
            stage.disk.fdatasync(handle)
            with other:
                stage.disk.close(handle)

    stage.start(lambda: take(first, second))
    stage.start(lambda: take(second, first))
    with pytest.raises(AssertionError, match="2 threads wait for each other"):
        stage.scheduler.run(1.0)


def test_a_lock_of_a_thread_that_was_put_aside_is_not_taken_outside_of_one() -> None:
    stage, lock = Stage(), RLock()
    stage.start(stage.write("a", lock))
    while stage.notes != ["a begins"]:
        stage.scheduler.run(stage.scheduler.now + 1e-5)
    with pytest.raises(AssertionError, match="put aside"):
        lock.acquire()
    stage.threads.finish()
    assert stage.notes == ["a begins", "a ends"]
    with lock:
        stage.notes.append("free")
    assert stage.notes[-1] == "free"


def test_power_that_fails_in_a_call_leaves_no_lock_to_wait_for() -> None:
    stage, lock = Stage(), RLock()
    stage.raw.crash_after = 0

    def work() -> None:
        with lock:
            handle = stage.disk.open("/file", "write")
            try:
                stage.disk.pwrite(handle, b"x", 0)
            except Crashed:
                stage.notes.append("crashed")
            finally:
                with RLock():
                    stage.disk.close(handle)

    stage.start(work)
    stage.scheduler.run(1.0)
    assert stage.notes == ["crashed"]
    assert stage.threads.over


def test_a_sync_covers_what_was_written_before_it_and_may_return_later() -> None:
    """So a thread that looks at what has been written when its sync returns, sees more than that covers."""
    seen = set()
    for seed in range(30):
        stage = Stage(seed)
        handle = stage.disk.open("/file", "write")
        stage.raw.pwrite(handle, b"1", 0)

        def sync(stage: Stage = stage, handle: int = handle) -> None:
            stage.disk.fdatasync(handle)
            stage.notes.append(stage.raw.content("/file").decode())

        stage.start(sync)
        stage.loop.call_later(0.0008, stage.raw.pwrite, handle, b"2", 1)
        stage.scheduler.run(1.0)
        stage.raw.crash()
        seen.add((stage.notes[0], stage.raw.content("/file").decode()))
    assert seen >= {("12", "1"), ("12", "12")}
