"""A replica that trims: whole closed segments go, one that was left behind begins anew, and readers are told."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from dataclasses import replace
from typing import Any

import pytest

from tests.storage.faulty_disk import Crashed, FaultyDisk, Survival
from tests.storage.helpers import (
    CLOCK_MS,
    DIRECTORY,
    KEY,
    SMALL,
    TRIMMED,
    UNREPAIRED,
    append,
    assert_verifies,
    contents,
    create,
    data_of,
    new_log,
    records,
    reopen,
)
from waltz_ray.config import StorageConfig
from waltz_ray.errors import DiskFull, InvalidInput, OutOfResources, Trimmed
from waltz_ray.protocol.messages.replica import (
    Append,
    Appended,
    Begin,
    Begun,
    ExcessFound,
    FindExcess,
    Open,
    Read,
    Records,
    RefusalCode,
    Refused,
    SetLowWaterMark,
    Truncate,
)
from waltz_ray.protocol.placement import Assignment
from waltz_ray.protocol.spaces import Space, SpaceState, SpaceTable
from waltz_ray.storage.layout import segment_ids
from waltz_ray.storage.partition_log import PartitionLog
from waltz_ray.storage.replica_service import ReplicaService
from waltz_ray.storage.store import ReplicaStore
from waltz_ray.storage.trimming import read_beginning
from waltz_ray.storage.verify import compare_reports, verify_directory

NOTHING = SpaceTable(1, {"log": Space("log", "log", 0, 1, SpaceState.READY)})


def segments(disk: FaultyDisk, partition_id: int = 0) -> list[int]:
    return segment_ids(disk.listdir(f"{DIRECTORY}/{partition_id}"))


def dated(disk: FaultyDisk, log: PartitionLog, count: int) -> None:
    """Records one by one, 0.4 s after each other, as told by the clock of the server and of the replica."""
    for _ in range(count):
        disk.clock_ms = CLOCK_MS + 400 * (log.last_id + 1)
        append(log, 1)
    log.sync()


def keeping(**settings: int) -> SpaceTable:
    return SpaceTable(1, {"log": Space("log", "log", 0, 1, SpaceState.READY, settings)})


# ---- the log ----------------------------------------------------------------------------------------------------


def test_whole_segments_below_the_mark_go_and_nothing_else() -> None:
    disk = FaultyDisk()
    log = new_log(disk)
    append(log, 60)
    log.sync()
    before = segments(disk)
    for mark in range(60):
        log.trim(mark)
        beginning = max(first_id for first_id in before if first_id <= mark)
        assert log.first_id == beginning
        assert segments(disk) == [first_id for first_id in before if first_id >= beginning]
        assert contents(log) == [TRIMMED] * beginning + [data_of(i) for i in range(beginning, 60)]
    log.trim(3)
    assert log.first_id == before[-1], "a lower mark brings nothing back, and nothing more is dropped"


def test_where_everything_may_go_the_newest_segment_is_closed_and_goes_too() -> None:
    disk = FaultyDisk()
    log = new_log(disk)
    append(log, 7)
    log.trim(7)
    assert (log.first_id, log.last_id, segments(disk)) == (7, 6, [7])
    changes = disk.changes()
    log.trim(7)
    assert disk.changes() == changes, "an empty segment is not closed again"
    append(log, 2)
    log.sync()
    log = reopen_after(disk, log)
    assert contents(log) == [TRIMMED] * 7 + [data_of(7), data_of(8)]


def reopen_after(disk: FaultyDisk, log: PartitionLog) -> PartitionLog:
    disk.crash()
    return reopen(disk).partition(0)


def test_reading_below_the_first_record_names_it() -> None:
    disk = FaultyDisk()
    log = new_log(disk)
    append(log, 60)
    log.trim(40)
    with pytest.raises(Trimmed, match=f"transaction 3 was trimmed away; the first .* is {log.first_id}") as told:
        log.read(3, 50, 100)
    assert (told.value.wanted_id, told.value.first_id) == (3, log.first_id)
    assert log.damaged is None
    with pytest.raises(InvalidInput):
        log.read(-1, 50, 100)


def test_a_log_that_was_left_behind_begins_anew() -> None:
    disk = FaultyDisk()
    log = new_log(disk)
    append(log, 20)
    log.set_low_water_mark(1, 19, 19)
    log.begin_at(1, 50)
    assert (log.first_id, log.last_id, log.synced_id, segments(disk)) == (50, 49, 49, [50])
    append(log, 3)
    log.sync()
    assert contents(reopen_after(disk, log))[50:] == [data_of(i) for i in range(50, 53)]


def test_a_damaged_log_begins_anew_below_its_marks_and_is_sound_at_the_next_start() -> None:
    disk = FaultyDisk()
    log = new_log(disk)
    append(log, 40)
    log.set_low_water_mark(1, 39, 39)
    disk.crash()
    path = next(path for path in disk.files() if path.endswith(".seg") and "0000000.seg" in path)
    disk.flip(path, 150)
    disk.remove(path.replace(".seg", ".idx"))
    log = reopen(disk, UNREPAIRED).partition(0)
    assert log.damaged is not None
    log.trim(30)
    assert log.first_id == 0, "a damaged log is left as it is"
    log.open_session(2)
    log.begin_at(2, 30)
    append(log, 1)
    log.sync()
    log = reopen_after(disk, log)
    assert log.damaged is None
    assert (log.first_id, log.last_id, log.low_water_mark) == (30, 30, 29)


def test_a_cut_goes_down_to_the_first_record_and_no_further() -> None:
    disk = FaultyDisk()
    log = new_log(disk)
    append(log, 60)
    log.trim(40)
    begin = log.first_id
    with pytest.raises(Trimmed, match=f"transaction {begin - 1} was trimmed away; the first .* is {begin}"):
        log.truncate(1, begin - 2)
    log.truncate(1, begin - 1)
    assert (log.first_id, log.last_id) == (begin, begin - 1)
    append(log, 1)
    log.sync()
    assert contents(reopen_after(disk, log)) == [TRIMMED] * begin + [data_of(begin)]


def test_segments_that_are_missing_are_damage_and_a_lost_beginning_is_too() -> None:
    disk = FaultyDisk()
    log = new_log(disk)
    append(log, 60)
    log.sync()
    log.trim(40)
    begin, later = segments(disk)[:2]
    disk.crash()
    disk.remove(f"{DIRECTORY}/0/{begin:019d}.seg")
    log = reopen(disk).partition(0)
    assert f"transactions {begin} to {later - 1} are missing" in str(log.damaged)
    disk = FaultyDisk()
    log = new_log(disk)
    append(log, 60)
    log.trim(40)
    disk.crash()
    disk.flip(f"{DIRECTORY}/0/trimmed", 30)
    store = reopen(disk)
    assert "it is not known where the log begins" in str(store.partition(0).damaged)
    store.partition(0).open_session(2)
    store.partition(0).begin_at(2, 44)
    store.close()
    assert_verifies(disk, 43)


def test_what_the_journal_has_of_a_dropped_segment_harms_nobody() -> None:
    """Several partitions share syncs: their segments' pages are written when the journal turns."""
    disk = FaultyDisk()
    config = StorageConfig(segment_size_bytes=600, index_flush_interval=3, preallocate_bytes=0, journal_bytes=3_000)
    store = create(disk, config, partitions=2)
    logs = [store.partition(0), store.partition(1)]
    for log in logs:
        log.open_session(1)
    for turn in range(40):
        for log in logs:
            append(log, 2)
        store.sync([0, 1])
        logs[0].trim(logs[0].last_id - 3 if turn % 3 else logs[0].last_id + 1)
    assert logs[0].first_id > 60
    disk.crash()
    again = reopen(disk, config)
    for log in logs:
        found = again.partition(log.partition_id)
        assert (found.first_id, found.damaged) == (log.first_id, None)
        assert contents(found)[found.first_id :] == [data_of(i) for i in range(found.first_id, 80)]


# ---- when segments are closed -------------------------------------------------------------------------------------


def test_segments_are_small_beside_what_is_kept() -> None:
    disk = FaultyDisk()
    log = new_log(disk, StorageConfig(preallocate_bytes=0))
    append(log, 10)
    log.keep_small(4_000, None)
    assert segments(disk) == [0]
    log.keep_small(400, None)
    assert segments(disk) == [0, 10], "it has grown past that"
    append(log, 20)
    assert len(segments(disk)) > 3
    log.keep_small(None, 1)
    count = len(segments(disk))
    append(log, 30)
    assert len(segments(disk)) == count, "as large as usual again"
    log.keep_small(None, disk.now_ms() + 1)
    assert len(segments(disk)) == count + 1, "an old one is closed"
    log.keep_small(None, disk.now_ms() + 1)
    assert len(segments(disk)) == count + 1, "an empty one is not"


def test_what_is_too_old_or_too_much_is_told_in_whole_segments() -> None:
    disk = FaultyDisk()
    log = new_log(disk)
    dated(disk, log, 60)
    firsts = segments(disk)
    assert log.excess(None, None) == 0
    assert log.excess(CLOCK_MS + 400 * 30, None) in range(25, 31), "to about a second"
    assert log.excess(CLOCK_MS - 1, None) == 0
    assert log.excess(CLOCK_MS * 2, None) == 60
    assert log.excess(None, 0) == firsts[-1]
    sizes = [disk.file_size(f"{DIRECTORY}/0/{first_id:019d}.seg") for first_id in firsts]
    assert log.excess(None, sum(sizes[-3:])) == firsts[-3]
    assert log.excess(None, sum(sizes[-3:]) - 1) == firsts[-2]
    assert log.excess(None, sum(sizes)) == 0
    assert log.excess(CLOCK_MS + 400 * 10, sum(sizes[-3:])) == firsts[-3]


# ---- the service --------------------------------------------------------------------------------------------------


def served(disk: FaultyDisk, count: int = 60) -> ReplicaService:
    service = ReplicaService(create(disk, SMALL))
    service.handle([Open(0, 1, KEY)])
    batch = records(0, count)
    assert service.handle([Append(0, 1, 0, batch.lengths, memoryview(batch.records), batch.times)]) == [
        Appended(0, 1, count - 1)
    ]
    return service


def test_a_replica_does_what_marks_and_settings_say() -> None:
    disk = FaultyDisk()
    service = served(disk)
    service.retain(NOTHING, {})
    service.retain(NOTHING, {0: 0, 7: 100})
    assert service.store.partition(0).first_id == 0
    service.retain(NOTHING, {0: 31})
    begin = service.store.partition(0).first_id
    assert 20 < begin <= 31
    changes = disk.changes()
    service.retain(NOTHING, {0: 31})
    assert disk.changes() == changes
    service.retain(keeping(retention_ms=8_000), {0: 31})
    assert segments(disk)[-1] < 60
    disk.clock_ms += 2_000
    service.retain(keeping(retention_ms=8_000), {0: 31})
    assert segments(disk)[-1] == 60, "the newest segment was old"


def test_a_segment_that_was_made_by_a_clock_that_was_ahead_is_closed_all_the_same() -> None:
    """By its own time it would not be old for years: what is in it would stay, however little is to be kept."""
    disk = FaultyDisk()
    disk.clock_ms = CLOCK_MS + 10 * 365 * 86_400_000
    store = create(disk, replace(SMALL, segment_size_bytes=1_000_000))
    log = store.partition(0)
    log.open_session(1)
    dated(disk, log, 20)  # by the right one
    service = ReplicaService(store)
    service.retain(keeping(retention_ms=8_000), {})
    assert segments(disk) == [0, 20]
    dated(disk, log, 3)
    service.retain(keeping(retention_ms=8_000), {})
    assert segments(disk) == [0, 20], "the next one is young"
    service.retain(keeping(retention_ms=8_000), {0: 21})
    assert log.first_id == 20


@pytest.mark.parametrize("settings", [{"retention_bytes": 64 * 1024}, {"compact": 1}])
def test_segments_are_as_large_as_usual_again_once_a_space_keeps_everything(settings: dict[str, int]) -> None:
    disk = FaultyDisk()
    service = ReplicaService(create(disk, StorageConfig(preallocate_bytes=0)))
    log = service.store.partition(0)
    log.open_session(1)
    many = 256 * 1024 // 40

    def append_more() -> int:
        append(log, many)
        return len(segments(disk))

    service.retain(keeping(**settings), {})
    append_more()
    small = append_more()
    assert small > 1
    service.retain(NOTHING, {})
    append_more()
    assert append_more() == small


TWO = SpaceTable(2, {name: Space(name, "log", at, 1, SpaceState.READY) for at, name in enumerate(("a", "b"))})


@pytest.mark.parametrize("free_bytes", [100, 200])
def test_a_full_disk_is_made_free_though_something_else_finds_no_room(free_bytes: int) -> None:
    """The remedy that a full disk has must not wait for what needs room itself."""
    disk = FaultyDisk()
    store = create(disk, SMALL, partitions=2)
    for partition_id in (0, 1):
        store.partition(partition_id).open_session(1)
        append(store.partition(partition_id), 40)
        store.partition(partition_id).sync()
    disk.clock_ms += 10_000
    space = Space("a", "log", 0, 1, SpaceState.READY, {"retention_ms": 8_000})
    disk.capacity_bytes = disk._used() + free_bytes
    ReplicaService(store).retain(SpaceTable(2, {**TWO.spaces, "a": space}), {1: 31})
    assert store.partition(1).first_id > 20
    assert segments(disk)[-1] == 40, "there is room for it by then"


def test_a_shortage_of_one_partition_is_told_when_all_others_have_had_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = create(FaultyDisk(), SMALL, partitions=3)
    for partition_id in store.partition_ids:
        store.partition(partition_id).open_session(1)
        append(store.partition(partition_id), 40)

    def no_room(mark: int) -> None:
        raise DiskFull("no room for partition 1")

    monkeypatch.setattr(store.partition(1), "trim", no_room)
    with pytest.raises(DiskFull, match="partition 1"):
        ReplicaService(store).retain(NOTHING, dict.fromkeys(store.partition_ids, 31))
    assert [store.partition(p).first_id > 20 for p in store.partition_ids] == [True, False, True]


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("call", ["fsync_directory", "listdir", "open"])
def test_what_a_lack_of_handles_has_left_of_a_trim_goes_with_the_next_one(
    call: str, which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log begins further on by then, and its mark may never rise again."""
    disk = FaultyDisk()
    store = create(disk)
    store.partition(0).open_session(1)
    append(store.partition(0), 60)
    store.partition(0).sync()
    real, calls = getattr(disk, call), itertools.count()

    def short(path: str, *rest: Any) -> Any:
        if next(calls) == which:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return real(path, *rest)

    service = ReplicaService(store)
    with monkeypatch.context() as patch, contextlib.suppress(OutOfResources):
        patch.setattr(disk, call, short)
        service.retain(NOTHING, {0: 40})
    service.retain(NOTHING, {0: 40})
    assert segments(disk) == store.partition(0)._segments
    assert 20 < store.partition(0).first_id <= 40


@pytest.mark.parametrize("call", ["create", "fsync_directory", "listdir", "open"])
def test_a_lack_of_handles_while_a_partition_goes_is_no_other_error(call: str) -> None:
    disk = FaultyDisk()
    store = create(disk, SMALL, 2)
    store.partition(1).open_session(1)
    disk.errors[call, f"{DIRECTORY}/1"] = errno.EMFILE
    with contextlib.suppress(OutOfResources):
        store.remove(1)
    disk.errors.clear()
    store.remove(1)
    assert [path for path in disk.files() if path.startswith(f"{DIRECTORY}/1/")] == [f"{DIRECTORY}/1/removed"]


def test_a_disk_without_a_byte_to_spare_is_made_free() -> None:
    disk = FaultyDisk()
    store = create(disk, StorageConfig(segment_size_bytes=6_000, preallocate_bytes=1 << 16, journal_bytes=0))
    log = store.partition(0)
    log.open_session(1)
    append(log, 400)
    while disk.file_size(f"{DIRECTORY}/0/{segments(disk)[-1]:019d}.seg") < log._make_writable().end + 1_000:
        append(log, 1)
    log.sync()
    disk.capacity_bytes = disk._used()
    ReplicaService(store).retain(NOTHING, {0: 300})
    assert 200 < log.first_id <= 300
    append(log, 30)
    log.sync()
    end_id = log.last_id + 1
    disk.crash()
    again = reopen(disk).partition(0)
    assert (again.first_id, again.last_id) == (log.first_id, log.last_id)
    assert contents(again)[log.first_id :] == [data_of(i) for i in range(log.first_id, end_id)]


def filled_to_the_last_byte() -> tuple[FaultyDisk, ReplicaService]:
    """With nothing that was written ahead."""
    disk = FaultyDisk()
    store = create(disk, replace(SMALL, journal_bytes=0))
    store.partition(0).open_session(1)
    append(store.partition(0), 60)
    store.partition(0).sync()
    disk.capacity_bytes = disk._used()
    return disk, ReplicaService(store)


def test_trimming_needs_no_room() -> None:
    disk, service = filled_to_the_last_byte()
    service.retain(NOTHING, {0: 31})
    log = service.store.partition(0)
    assert 20 < log.first_id <= 31
    append(log, 3)
    log.sync()
    disk.crash()
    assert contents(reopen(disk).partition(0))[log.first_id :] == [data_of(i) for i in range(log.first_id, 63)]


@pytest.mark.parametrize("size", [600, 1_000_000], ids=["segments", "one segment"])
@pytest.mark.parametrize("survival", [Survival(1.0), Survival(0.0), Survival(0.5, 0.4)], ids=str)
def test_a_log_all_of_which_may_go_needs_no_room_to_go(size: int, survival: Survival) -> None:
    """Its newest segment has records that may go, too; for another one there is no room. And a crash at each step."""
    config = replace(SMALL, segment_size_bytes=size, journal_bytes=0)
    for step in range(200):
        disk = FaultyDisk(seed=step)
        store = create(disk, config)
        store.partition(0).open_session(1)
        append(store.partition(0), 61)
        store.partition(0).sync()
        disk.capacity_bytes = disk._used()
        disk.crash_after = step
        try:
            ReplicaService(store).retain(NOTHING, {0: 61})
            assert (store.partition(0).first_id, segments(disk)) == (61, [61])
        except Crashed:
            disk.crash(survival)
            store = reopen(disk, config)
            assert (store.partition(0).last_id, store.partition(0).damaged) == (60, None)
            ReplicaService(store).retain(NOTHING, {0: 61})
        else:
            assert step > 10
            return
        log = store.partition(0)
        assert (log.first_id, log.last_id, segments(disk)) == (61, 60, [61])
        append(log, 3)
        log.sync()
        disk.crash(survival)
        assert contents(reopen(disk, config).partition(0))[61:] == [data_of(i) for i in range(61, 64)]
    raise AssertionError("it never ends")


@pytest.mark.parametrize("lost", [False, True], ids=["index is behind", "index is lost"])
def test_a_start_needs_no_room_for_the_index_of_the_newest_segment(lost: bool) -> None:
    """Else a full disk, whose replica is started anew, would never be made free. It gets its entries when it can."""
    config = replace(SMALL, segment_size_bytes=3_000, index_flush_interval=50, journal_bytes=0)
    disk = FaultyDisk()
    log = create(disk, config).partition(0)
    log.open_session(1)
    append(log, 60)
    append(log, 63)
    log.sync()
    newest = segments(disk)[-1]
    if lost:
        disk.remove(f"{DIRECTORY}/0/{newest:019d}.idx")
    disk.capacity_bytes = disk._used()
    for _ in range(2):
        disk.end_process()
        store = reopen(disk, config)
        log = store.partition(0)
        assert contents(log) == [data_of(i) for i in range(123)]
    ReplicaService(store).retain(NOTHING, {0: newest})
    assert log.first_id == newest
    disk.capacity_bytes = None
    append(log, 200)
    log.sync()
    disk.crash()
    store = reopen(disk, config)
    assert contents(store.partition(0))[newest:] == [data_of(i) for i in range(newest, 323)]
    store.close()
    assert_verifies(disk, 322)


@pytest.mark.parametrize("first_id", [0, 100])
def test_giving_up_all_records_needs_no_room(first_id: int) -> None:
    disk, service = filled_to_the_last_byte()
    service.store.partition(0).begin_at(1, first_id)
    disk.crash()
    log = reopen(disk, replace(SMALL, journal_bytes=0)).partition(0)
    assert (log.first_id, log.last_id, log.damaged) == (first_id, first_id - 1, None)


@pytest.mark.parametrize("order", ["trim", "begin_at"])
def test_a_crash_while_room_is_made_loses_nothing_that_stays(order: str) -> None:
    for step in range(100):
        disk, service = filled_to_the_last_byte()
        log = service.store.partition(0)
        disk.crash_after = step
        try:
            log.trim(31) if order == "trim" else log.begin_at(1, 0)
        except Crashed:
            disk.crash(Survival(0.5, 0.2))
        else:
            break
        log = reopen(disk, replace(SMALL, journal_bytes=0)).partition(0)
        assert log.damaged is None
        if order == "trim":
            assert contents(log)[31:] == [data_of(i) for i in range(31, 60)]
    assert step > 5


def test_segments_of_a_space_that_is_compacted_are_a_small_part_of_what_there_is() -> None:
    disk = FaultyDisk()
    service = ReplicaService(create(disk, StorageConfig(preallocate_bytes=0, journal_bytes=0)))
    log = service.store.partition(0)
    log.open_session(1)
    sizes: list[int] = []
    for _ in range(16):
        append(log, 4_000)
        log.sync()
        service.retain(keeping(compact=1), {})
        sizes = [*log.segment_sizes().values()]
        assert max(sizes) <= max(256 << 10, sum(sizes) // 16) + (256 << 10), "what comes between two looks is in it"
    assert len(sizes) > 6
    service.retain(keeping(compact=1), {0: log.last_id - 4_000})
    assert sum(log.segment_sizes().values()) < 3 * (256 << 10)


def test_what_is_gone_is_refused_by_name_with_the_last_id_that_went() -> None:
    service = served(FaultyDisk())
    service.retain(NOTHING, {0: 31})
    begin = service.store.partition(0).first_id
    (reply,) = service.handle([Read(0, 1, begin - 1, 40, 100)])
    assert isinstance(reply, Refused)
    assert (reply.code, reply.last_id) == (RefusalCode.TRIMMED, begin - 1)
    (reply,) = service.handle([Read(0, 1, begin, 40, 100)])
    assert isinstance(reply, Records)


def test_a_session_may_begin_a_log_anew_and_nobody_else() -> None:
    service = served(FaultyDisk())
    (fenced,) = service.handle([Begin(0, 0, 90)])
    assert isinstance(fenced, Refused)
    (elsewhere,) = service.handle([Begin(0, 1, 90)], connection="another")
    assert isinstance(elsewhere, Refused)
    assert elsewhere.code is RefusalCode.NOT_OPEN
    assert service.handle([Begin(0, 1, 90)]) == [Begun(0, 1, 90)]
    assert service.handle([Begin(0, 1, 90)]) == [Begun(0, 1, 90)], "an order that comes again"
    (cut,) = service.handle([Truncate(0, 1, 20)])
    assert isinstance(cut, Refused)
    assert cut.code is RefusalCode.TRIMMED


def test_excess_is_told_by_the_replicas_own_clock_and_to_strangers_of_what_is_committed() -> None:
    disk = FaultyDisk()
    service = served(disk, 1)
    dated(disk, service.store.partition(0), 59)
    age_ms = disk.now_ms() - (CLOCK_MS + 400 * 30)
    (found,) = service.handle([FindExcess(0, 1, age_ms, -1)])
    assert isinstance(found, ExcessFound)
    assert found.first_id in range(25, 31)
    assert service.handle([FindExcess(0, -1, age_ms, -1)]) == [ExcessFound(0, -1, 0)]
    service.handle([SetLowWaterMark(0, 1, 59, 59)])
    assert service.handle([FindExcess(0, -1, age_ms, -1)]) == [ExcessFound(0, -1, found.first_id)]


def test_a_full_disk_with_a_growth_to_come_is_made_free_by_the_spaces_that_go() -> None:
    disk = FaultyDisk()
    replica = ReplicaService(create(disk, partitions=2))
    for p in range(2):
        replica.handle([Open(p, 1, KEY)])
        replica.store.partition(p).append(1, records(0, 30, partition_id=p))
    table = SpaceTable(
        3,
        {
            "log": Space("log", "log", 0, 1, SpaceState.READY),
            "old": Space("old", "log", 1, 1, SpaceState.GONE),
            "new": Space("new", "log", 2, 1, SpaceState.MAKING),
        },
    )
    disk.capacity_bytes = disk._used()
    replica.follow(table, Assignment())
    assert (replica.store.removed, list(replica.store.partition_ids)) == (frozenset({1}), [0, 1, 2])
    assert len(contents(replica.store.partition(0))) == 30


def test_one_partition_without_handles_does_not_keep_the_others_from_being_trimmed() -> None:
    disk = FaultyDisk()
    store = create(disk, partitions=2)
    for p in range(2):
        store.partition(p).open_session(1)
        store.partition(p).append(1, records(0, 30, partition_id=p))
    store.close()
    replica = ReplicaService(reopen(disk))
    disk.errors["open", f"{DIRECTORY}/0/"] = errno.EMFILE
    table = SpaceTable(2, {"log": Space("log", "log", 0, 2, SpaceState.READY)})
    with pytest.raises(OutOfResources):
        replica.retain(table, {0: 20, 1: 20})
    assert segments(disk, 1)[0] > 0


# ---- verify -------------------------------------------------------------------------------------------------------


def test_copies_are_compared_wherever_they_begin() -> None:
    disk = FaultyDisk()
    for replica, (mark, differs) in enumerate([(0, False), (300, False), (470, True)]):
        config = StorageConfig(segment_size_bytes=2_000 + 500 * replica, preallocate_bytes=0)
        store = ReplicaStore.create(disk, f"/data/replica-{replica}", KEY, 1, config)
        log = store.partition(0)
        log.open_session(1)
        while log.last_id < 599:
            log.append(1, records(log.last_id + 1, 20, int(differs and log.last_id > 500)))
        log.trim(mark)
        log.set_low_water_mark(1, 599, 599)
        store.close()
    reports = [verify_directory(disk, f"/data/replica-{replica}") for replica in range(3)]
    assert all(report.ok for report in reports), [str(report.damage) for report in reports]
    firsts = [report.partitions[0].first_id for report in reports]
    assert firsts[0] == 0 < firsts[1] < firsts[2]
    assert [report.partitions[0].records for report in reports] == [600 - first_id for first_id in firsts]
    (found,) = compare_reports(disk, reports[:2], 3)
    assert (found.verdict, [standing.first_id for standing in found.standings]) == ("ok", firsts[:2])
    (found,) = compare_reports(disk, reports, 3)
    assert "replica-0 and replica-2 differ from transaction 520 on" in found.errors


@pytest.mark.parametrize("when", ["before it is listed", "before its index is read", "all of it"])
def test_what_is_trimmed_while_a_running_replica_is_verified_is_no_damage(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was told to be, or the whole command ended."""
    disk = FaultyDisk()
    store = ReplicaStore.create(disk, DIRECTORY, KEY, 1, StorageConfig(segment_size_bytes=2_000, preallocate_bytes=0))
    log = store.partition(0)
    log.open_session(1)
    while log.last_id < 199:
        log.append(1, records(log.last_id + 1, 20))
    log.set_low_water_mark(1, 199, 199)
    trimmed = list[int]()

    def trim(mark: int) -> None:
        if not trimmed:
            trimmed.append(mark)
            log.trim(mark)

    def begins_late(*arguments: Any) -> Any:
        begin = read_beginning(*arguments)
        if when == "before it is listed":
            trim(100)
        elif when == "all of it":
            trim(200)
        return begin

    def looked_at(count: int) -> None:
        if when == "before its index is read":
            trim(100)

    monkeypatch.setattr("waltz_ray.storage.verify.read_beginning", begins_late)
    report = verify_directory(disk, DIRECTORY, allow_running=True, progress=looked_at)
    assert trimmed
    assert report.damages == []
    found = report.partitions[0]
    assert (found.first_id, found.first_id + found.records) == (log.first_id, 200)
    store.close()
