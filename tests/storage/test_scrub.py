"""Closed segments are read again: what is rotten is found, what is not is left alone, and the rate holds."""

from __future__ import annotations

import errno
from random import Random

import numpy as np
import pytest

from tests.storage.faulty_disk import FaultyDisk
from tests.storage.helpers import (
    DIRECTORY,
    SMALL,
    UNREPAIRED,
    append,
    assert_verifies,
    contents,
    create,
    data_of,
    reopen,
)
from waltz_ray.config import StorageConfig
from waltz_ray.errors import Corruption, SegmentRotten
from waltz_ray.protocol.records import build_records
from waltz_ray.storage import scrub
from waltz_ray.storage.layout import segment_ids
from waltz_ray.storage.scrub import Scrub, SegmentCheck, Verdict
from waltz_ray.storage.scrub_plan import ScrubPlan, ScrubTarget
from waltz_ray.storage.store import ReplicaStore

RECORDS = 40


def filled(
    disk: FaultyDisk, config: StorageConfig = SMALL, partitions: int = 1, mark: int = RECORDS - 1
) -> ReplicaStore:
    store = create(disk, config, partitions)
    for partition_id in range(partitions):
        log = store.partition(partition_id)
        log.open_session(1)
        append(log, RECORDS)
        log.set_low_water_mark(1, mark, mark)
    return store


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def scrubbed(store: ReplicaStore, plan: ScrubPlan | None = None) -> ScrubPlan:
    """One full pass."""
    plan, clock = plan or ScrubPlan(0, 1e9), Clock()
    one = Scrub(store, plan, clock)
    while (pause_s := one.step()) < 1e8:
        clock.now_s += pause_s
    return plan


def closed_path(disk: FaultyDisk, position: int = 0, suffix: str = ".seg", partition_id: int = 0) -> str:
    folder = f"{DIRECTORY}/{partition_id}"
    return f"{folder}/{segment_ids(disk.listdir(folder))[position]:019d}{suffix}"


def test_a_sound_store_is_read_once_and_nothing_is_written() -> None:
    disk = FaultyDisk()
    store = filled(disk, partitions=3)
    changes = disk.changes()
    plan = scrubbed(store)
    closed = [store.partition(p).view_closed(*bounds) for p in range(3) for bounds in store.partition(p).closed()[1]]
    total = sum(view.end - 128 + 8 * view.count for view in closed)
    assert len(closed) > 9
    assert (plan.progress.done_bytes, plan.progress.total_bytes) == (total, total)
    assert (plan.progress.found, plan.progress.last_pass_ms) == (0, disk.clock_ms)
    assert disk.changes() == changes


def test_every_flipped_byte_of_a_closed_segment_is_found() -> None:
    """In the segment or in its index; creation times have no checksum, and nothing hangs on them."""
    pristine = FaultyDisk()
    filled(pristine).close()
    for suffix in (".seg", ".idx"):
        path = closed_path(pristine, 1, suffix)
        for offset in range(len(pristine.content(path))):
            if 4 <= offset < 12:
                continue
            disk = FaultyDisk()
            for name in pristine.files():
                disk.put(name, pristine.content(name))
            store = reopen(disk)
            log = store.partition(0)
            disk.flip(path, offset)
            plan = scrubbed(store)
            assert plan.progress.found == 1, (path, offset)
            if suffix == ".idx":
                assert (plan.progress.repaired, dict(log.rotten)) == (1, {}), offset
                assert disk.content(path) == pristine.content(path)
            else:
                assert (log.damaged, log.last_id, len(log.rotten)) == (None, RECORDS - 1, 1), offset
            store.close()


def test_every_rotten_segment_is_found_and_the_log_goes_on() -> None:
    disk = FaultyDisk()
    store = filled(disk)
    log = store.partition(0)
    paths = [closed_path(disk, position) for position in (0, 2, 3)]
    for path in paths:
        disk.flip(path, 128 + 40)
    assert scrubbed(store).progress.found == 3
    assert sorted(damage.file for damage in log.rotten.values()) == paths
    append(log, 5)
    assert log.sync() == RECORDS + 4
    good_id = segment_ids(disk.listdir(f"{DIRECTORY}/0"))[1]
    assert bytes(next(log.read(good_id, good_id + 1, 1).datas())) == data_of(good_id), "served as ever"
    with pytest.raises(SegmentRotten):
        contents(log)
    assert log.open_session(2) == 1, "it votes with all that is behind the rot"
    assert (log.damaged, log.last_id) == (None, RECORDS + 4)


def test_rot_that_is_known_is_no_reason_to_scan_for_every_reader() -> None:
    disk = FaultyDisk()
    log = filled(disk).partition(0)
    disk.flip(closed_path(disk), 128 + 40)
    for _ in range(2):
        calls = len(disk.calls)
        with pytest.raises(SegmentRotten):
            contents(log)
    assert sum(path.endswith(".seg") for name, path in disk.calls[calls:] if name == "open") <= 2


@pytest.mark.parametrize("config", [SMALL, UNREPAIRED], ids=["repair", "no repair"])
def test_an_index_that_cannot_be_made_anew_is_rot_of_its_segment(config: StorageConfig) -> None:
    """All records are right, and the headers of both are not: every read would fail, and nobody be told (found by the
    simulation)."""
    disk = FaultyDisk()
    log = filled(disk, config).partition(0)
    disk.flip(closed_path(disk), 12)
    disk.flip(closed_path(disk, suffix=".idx"), 128 + 3)
    with pytest.raises(Corruption, match="at byte 12: the cluster key"):
        contents(log)
    if config is SMALL:
        assert [*log.rotten] == [0]
        assert log.last_id == RECORDS - 1
    else:
        assert log.damaged is not None
        assert log.last_id == -1


@pytest.mark.parametrize(
    ("config", "mark"), [(UNREPAIRED, RECORDS - 1), (SMALL, 3)], ids=["no repair", "above the mark"]
)
def test_what_nobody_fetches_ends_the_log(config: StorageConfig, mark: int) -> None:
    """As when a reader finds it: above the mark a peer may not have these records, or not yet."""
    disk = FaultyDisk()
    store = filled(disk, config, mark=mark)
    log = store.partition(0)
    disk.flip(closed_path(disk, 1), 128 + 40)
    scrubbed(store)
    assert log.rotten == {}
    assert log.damaged is not None
    assert log.damaged.file == closed_path(disk, 1)
    assert log.last_id == int(closed_path(disk, 1)[-23:-4]) - 1 + int(log.damaged.offset > 128)


def test_a_start_goes_on_behind_what_it_finds() -> None:
    disk = FaultyDisk()
    filled(disk).close()
    for position in (0, 2):
        disk.flip(closed_path(disk, position), 14)  # the cluster key in its header
    log = reopen(disk).partition(0)
    assert (log.damaged, log.last_id, len(log.rotten)) == (None, RECORDS - 1, 2)


def test_a_start_with_rot_above_the_mark_is_damaged() -> None:
    disk = FaultyDisk()
    filled(disk, mark=5).close()
    disk.flip(closed_path(disk, 2), 14)
    log = reopen(disk).partition(0)
    assert log.damaged is not None


def test_rot_is_known_still_when_a_cut_makes_its_segment_the_newest() -> None:
    disk = FaultyDisk()
    store = filled(disk)
    log = store.partition(0)
    first_id = int(closed_path(disk, 1)[-23:-4])
    disk.flip(closed_path(disk, 1), 128 + 40)
    scrubbed(store)
    log.open_session(2)
    with pytest.raises(Corruption):
        log.truncate(2, first_id + 1)
    assert log.damaged is not None
    log.truncate(2, log.last_id)
    assert log.damaged is None
    assert not log.rotten


@pytest.mark.parametrize("cut_id", [-1, 3, 20])
def test_a_cut_while_a_segment_is_checked_is_no_damage(cut_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "PIECE_BYTES", 1)
    for after in range(1, 60, 7):
        disk = FaultyDisk()
        store = filled(disk)
        log = store.partition(0)
        log.open_session(2)
        plan = ScrubPlan(0, 1e9)
        one = Scrub(store, plan, lambda: 0.0)
        for _ in range(after):
            one.step()
        log.truncate(2, cut_id)
        append(log, 60 - log.last_id, tag=1)
        while one.step() < 1e8:
            pass
        assert (plan.progress.found, log.damaged, log.rotten) == (0, None, {}), after


@pytest.mark.parametrize("rotten", [False, True])
def test_what_is_trimmed_while_it_is_checked_is_no_damage(rotten: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "PIECE_BYTES", 1)
    for after in range(1, 30, 5):
        disk = FaultyDisk()
        store = filled(disk)
        log = store.partition(0)
        if rotten:
            disk.flip(closed_path(disk, 0), 128 + 40)
        plan = ScrubPlan(0, 1e9)
        one = Scrub(store, plan, lambda: 0.0)
        for _ in range(after):
            one.step()
        log.trim(30)
        assert not log.rotten, "what is gone need not be repaired"
        while one.step() < 1e8:
            pass
        assert plan.progress.found <= rotten
        assert (log.damaged, len(log.rotten)) == (None, 0), after


def test_data_that_was_written_with_a_wrong_checksum_is_told_and_is_no_rot(caplog: pytest.LogCaptureFixture) -> None:
    """A peer has the same: nothing would be gained by fetching it."""
    disk = FaultyDisk()
    store = filled(disk)
    log = store.partition(0)
    columns = np.arange(1, dtype=np.int32), np.zeros(1, np.int32), np.full(1, 9, np.int32), np.zeros(1, np.uint32)
    log.append(1, build_records(0, RECORDS, 7, 1, columns, b"something"))
    append(log, RECORDS)
    log.set_low_water_mark(1, 2 * RECORDS, 2 * RECORDS)
    plan = scrubbed(store)
    assert (plan.progress.found, log.damaged, dict(log.rotten)) == (0, None, {})
    assert [record.getMessage() for record in caplog.records if f"transaction {RECORDS} has not the" in record.message]


def test_a_lack_of_handles_is_no_damage() -> None:
    disk = FaultyDisk()
    store = filled(disk)
    disk.errors["open", ".seg"] = errno.EMFILE
    plan = scrubbed(store)
    assert (plan.progress.found, store.partition(0).rotten) == (0, {})
    disk.errors.clear()
    assert_verifies_closed(disk, store)


@pytest.mark.parametrize("mark", [RECORDS - 1, 3], ids=["repaired from a peer", "above the mark"])
def test_a_lack_of_handles_while_it_is_looked_who_is_to_blame_is_no_damage(
    mark: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index is wrong, and just then others take the last handles: the records are not bad for that."""
    disk = FaultyDisk()
    store = filled(disk, mark=mark)
    disk.flip(closed_path(disk, suffix=".idx"), 128 + 9)
    explained = SegmentCheck.explained

    def without_handles(check: SegmentCheck, error: Corruption | OSError) -> Verdict:
        disk.errors["open", ".seg"] = errno.EMFILE
        return explained(check, error)

    with monkeypatch.context() as patched:
        patched.setattr(SegmentCheck, "explained", without_handles)
        plan = scrubbed(store)
    log = store.partition(0)
    assert (plan.progress.found, log.rotten, log.damaged, log.last_id) == (0, {}, None, RECORDS - 1)
    disk.errors.clear()
    assert scrubbed(store).progress.repaired == 1
    assert_verifies_closed(disk, store)


def assert_verifies_closed(disk: FaultyDisk, store: ReplicaStore) -> None:
    store.close()
    assert_verifies(disk, RECORDS - 1)


def test_a_disk_that_cannot_read_a_segment_is_rot() -> None:
    disk = FaultyDisk()
    store = filled(disk)
    path = closed_path(disk, 1)
    disk.errors["pread", path[-10:]] = errno.EIO
    assert scrubbed(store).progress.found == 1
    assert [damage.file for damage in store.partition(0).rotten.values()] == [path]


# ---- the plan -----------------------------------------------------------------------------------------------------


def targets(*sizes: int) -> list[ScrubTarget]:
    return [ScrubTarget(0, position, position + 1, size) for position, size in enumerate(sizes)]


def test_the_rate_holds_over_any_time() -> None:
    plan, random, now_s, read = ScrubPlan(1000, 10.0), Random(3), 5.0, 0
    for _ in range(500):
        size = random.randint(1, 400)
        pause_s = plan.has_read(now_s, size)
        read += size
        now_s += pause_s + random.choice([0.0, 0.0, 0.01])  # the reading takes its time, too
        assert read <= 1000 * (now_s - 5.0) + 1e-6
    assert read > 1000 * (now_s - 5.0) - 3000, "and it is used"


def test_passes_begin_after_the_interval_whatever_they_take() -> None:
    plan = ScrubPlan(0, 100.0)
    assert plan.wait_for_pass_s(0.0) == 0.0
    plan.begin(10.0, 10_000, targets(5, 7))
    assert plan.wait_for_pass_s(20.0) == 0.0
    plan.has_checked(3)
    assert (plan.progress.done_bytes, plan.progress.total_bytes, plan.progress.last_pass_ms) == (3, 12, None)
    plan.done(30_000)
    assert (plan.progress.done_bytes, plan.current) == (5, targets(5, 7)[1])
    plan.has_checked(70)
    assert plan.progress.done_bytes == 12, "a segment that has grown is not more than it was"
    plan.done(40_000)
    assert (plan.current, plan.progress.last_pass_ms) == (None, 40_000)
    assert plan.wait_for_pass_s(50.0) == 60.0
    plan.begin(110.0, 110_000, [])
    assert plan.progress.last_pass_ms == 110_000, "nothing to check is checked at once"
