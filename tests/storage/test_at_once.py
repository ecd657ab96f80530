"""Segments of several partitions that are synced at the same time, each in its own file."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.storage.faulty_disk import Crashed, FaultyDisk, Survival
from tests.storage.helpers import DIRECTORY, KEY, append
from tests.storage.test_journal import CONFIG, PARTITIONS, SURVIVALS, Promise, append_to, opened, scenario
from waltz_ray.errors import SyncFailed
from waltz_ray.storage import disk as gate
from waltz_ray.storage.disk import DurableDisk, OsDisk
from waltz_ray.storage.store import ReplicaStore

PATIENCE_S = 600.0  # a test of the lane with the lowest priority
EACH = replace(CONFIG, journal_bytes=0)
ROOMY = replace(EACH, segment_size_bytes=1 << 20)


class Unordered(FaultyDisk):
    """Makes the calls in another order than they were given, as threads would."""

    def at_once(self, calls: Sequence[Callable[[], None]]) -> None:
        for call in reversed(calls):
            call()


class Forgetful(FaultyDisk):
    """Does not wait for the last one."""

    def at_once(self, calls: Sequence[Callable[[], None]]) -> None:
        super().at_once(calls[:-1] or calls)


def crash_everywhere(make: type[FaultyDisk], survival: Survival) -> None:
    step, over = 0, False
    while not over:
        disk = make(seed=step)
        promise = Promise(opened(disk, EACH))
        disk.crash_after = step
        try:
            scenario(promise)
            over = True
        except Crashed:
            step += 1
        disk.crash(survival)
        promise.holds(disk)
    assert step > 60


@pytest.mark.parametrize("survival", SURVIVALS, ids=str)
def test_crash_before_every_change(survival: Survival) -> None:
    crash_everywhere(Unordered, survival)


def test_the_crash_test_has_teeth() -> None:
    with pytest.raises(AssertionError):
        crash_everywhere(Forgetful, Survival(0.0))


def test_all_are_begun_before_any_is_waited_for() -> None:
    told: list[str] = []

    class Told(FaultyDisk):
        def begin_writing(self, handle: int, size: int, offset: int) -> None:
            told.append(f"begin {self._of(handle)[0]} {offset} {size}")

        def fdatasync(self, handle: int) -> None:
            told.append(f"sync {self._of(handle)[0]}")
            super().fdatasync(handle)

    store = opened(Told(), ROOMY)
    sizes = []
    for partition_id in range(2):
        active = store.partition(partition_id)._make_writable()
        start = active.end
        append_to(store, partition_id, 3 + partition_id)
        sizes.append((start, active.end - start))
    told.clear()
    store.sync([0, 1])
    paths = [f"{DIRECTORY}/{p}/{0:019d}.seg" for p in (0, 1)]
    begun = [f"begin {path} {start} {size}" for path, (start, size) in zip(paths, sizes, strict=True)]
    assert told == [*begun, *(f"sync {path}" for path in paths)]
    append_to(store, 1, 1)
    told.clear()
    store.sync([1])
    assert told == [f"sync {paths[1]}"], "there is nothing to be gained for one alone"


class TestTheRealDisk:
    def test_calls_are_made_at_the_same_time(self) -> None:
        together = threading.Barrier(2, timeout=PATIENCE_S)
        OsDisk().at_once([lambda: (together.wait(), None)[1]] * 2)

    def test_all_have_ended_when_one_has_failed(self) -> None:
        failed, ended = threading.Event(), threading.Event()

        def fails() -> None:
            failed.set()
            raise OSError(errno.EIO, "no")

        def ends() -> None:
            assert failed.wait(PATIENCE_S)
            ended.set()

        for calls in ([fails, ends], [ends, fails]):
            failed.clear()
            ended.clear()
            with pytest.raises(OSError, match="no"):
                OsDisk().at_once(calls)
            assert ended.is_set()
        OsDisk().at_once([])

    @pytest.mark.parametrize("allowed", range(3))
    def test_who_lacks_threads_makes_each_call_once(self, allowed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        start, left = threading.Thread.start, [allowed]

        def scarce(thread: threading.Thread) -> None:
            if not left[0]:
                raise RuntimeError("can't start new thread")
            left[0] -= 1
            start(thread)

        made: list[int] = []
        with ThreadPoolExecutor(4) as threads, monkeypatch.context() as patch:
            patch.setattr(gate, "_waiting", threads)
            patch.setattr(threading.Thread, "start", scarce)
            OsDisk().at_once([partial(made.append, number) for number in range(10)])
            assert sorted(made) == list(range(10))
        assert sorted(made) == list(range(10)), "also of those that had been handed to the threads"

    def test_what_is_begun_is_advice(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "file"
        handle = OsDisk().open(str(path), "create")
        OsDisk().pwrite(handle, b"content", 0)
        OsDisk().begin_writing(handle, 7, 0)
        OsDisk().fdatasync(handle)
        OsDisk().close(handle)
        assert path.read_bytes() == b"content"
        reading, writing = os.pipe()
        OsDisk().begin_writing(writing, 7, 0)  # no file: there is nothing to begin
        os.close(reading)
        os.close(writing)
        if gate._sync_file_range is not None:
            with pytest.raises(OSError, match="Bad file descriptor"):
                OsDisk().begin_writing(writing, 7, 0)
            monkeypatch.setattr(gate, "_sync_file_range", None)
        OsDisk().begin_writing(writing, 7, 0)  # where the system has no such call

    def test_one_that_fails_is_the_end_of_all(self, tmp_path: Path) -> None:
        class Failing(OsDisk):
            broken = -1

            def fdatasync(self, handle: int) -> None:
                if handle == self.broken:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                super().fdatasync(handle)

        disk = Failing()
        store = ReplicaStore.create(disk, str(tmp_path / "data"), KEY, PARTITIONS, ROOMY)
        for partition_id in store.partition_ids:
            store.partition(partition_id).open_session(1)
            append(store.partition(partition_id), 2)
        store.sync(store.partition_ids)
        assert [store.partition(p).synced_id for p in store.partition_ids] == [1, 1, 1]
        for partition_id in store.partition_ids:
            append(store.partition(partition_id), 2)
        broken = store.partition(1)._active
        assert broken is not None
        disk.broken = broken.handle
        with pytest.raises(SyncFailed):
            store.sync(store.partition_ids)
        assert [store.partition(p).synced_id for p in store.partition_ids] == [1, 1, 1], "nobody hears of any"
        with pytest.raises(SyncFailed):
            store.sync([0])


def test_a_write_that_fails_when_it_is_begun_is_a_failed_sync() -> None:
    class Failing(FaultyDisk):
        def begin_writing(self, handle: int, size: int, offset: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk = DurableDisk(Failing())
    handle = disk.create("/file")
    with pytest.raises(SyncFailed, match="write failed"):
        disk.begin_writing(handle, "/file", 7, 0)
    assert disk.failed
    with pytest.raises(SyncFailed):
        disk.begin_writing(handle, "/file", 7, 0)
