"""A replica's thread that checks and repairs, over real files and sockets; and its steps, one by one."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.security.keys import doorkeeper, keyring
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.helpers import DIRECTORY, KEY, SMALL, contents, data_of, records, reopen
from tests.storage.test_repair import Away, Peer, rotten_store
from tests.storage.test_scrub import RECORDS, Clock, closed_path, filled, scrubbed
from waltz_ray.actors.peers import PeerReplica
from waltz_ray.actors.replica_endpoint import ReplicaEndpoint
from waltz_ray.actors.upkeep_thread import UpkeepThread
from waltz_ray.config import StorageConfig
from waltz_ray.errors import CoordinationError, PeerUnavailable, SegmentRotten
from waltz_ray.protocol.authentication import Role
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.messages.replica import Append, Appended
from waltz_ray.runtime.status import ScrubStatus
from waltz_ray.storage.disk import OsDisk
from waltz_ray.storage.partition_log import PartitionLog
from waltz_ray.storage.repair import RepairSource
from waltz_ray.storage.replica_service import ReplicaService
from waltz_ray.storage.scrub_plan import ScrubPlan, ScrubRecord, ScrubTarget
from waltz_ray.storage.scrub_record import SCRUB_FILE, read_scrub_record
from waltz_ray.storage.store import ReplicaStore
from waltz_ray.storage.upkeep import LOOK_S, Upkeep

FAST = StorageConfig(segment_size_bytes=600, preallocate_bytes=0, scrub_bytes_per_s=1 << 30, scrub_interval_s=0)


def on_disk(directory: Path, mark: int = RECORDS - 1) -> ReplicaStore:
    directory.mkdir()
    store = ReplicaStore.create(OsDisk(), str(directory), KEY, 1, FAST)
    log = store.partition(0)
    log.open_session(1)
    log.append(1, records(0, RECORDS))
    log.set_low_water_mark(1, mark, mark)
    return store


@contextmanager
def serving(store: ReplicaStore) -> Iterator[Endpoint]:
    endpoint = ReplicaEndpoint(ReplicaService(store).handle, doorkeeper(2), name="peer")
    endpoint.start()
    try:
        yield endpoint.endpoint
    finally:
        endpoint.stop()
        store.close()


@contextmanager
def kept_up(store: ReplicaStore, where: Callable[[], dict[int, Endpoint]]) -> Iterator[UpkeepThread]:
    thread = UpkeepThread(store, FAST, 0, where, keyring(Role.READER))
    try:
        yield thread
    finally:
        thread.stop()
        store.close()


def spoil(directory: Path, *positions: int) -> list[Path]:
    paths = [sorted(directory.glob("0/*.seg"))[position] for position in positions]
    for path in paths:
        raw = bytearray(path.read_bytes())
        raw[128 + 40] ^= 1
        path.write_bytes(raw)
    return paths


def until(thread: UpkeepThread, condition: Callable[[ScrubStatus], bool]) -> ScrubStatus:
    deadline = time.monotonic() + 20
    while not condition(status := thread.status()):
        assert time.monotonic() < deadline, status
        time.sleep(0.01)
    return status


def test_every_rotten_segment_is_found_and_fetched_while_the_replica_serves(tmp_path: Path) -> None:
    mine, theirs = on_disk(tmp_path / "a"), on_disk(tmp_path / "b")
    before = {path.name: path.read_bytes() for path in (tmp_path / "a" / "0").glob("*.seg")}
    spoil(tmp_path / "a", 0, 2, 3)
    asked = threading.Event()

    def where() -> dict[int, Endpoint]:
        if asked.is_set():
            raise CoordinationError("ZooKeeper is away")  # once it knows them it need not be asked
        asked.set()
        return {1: Endpoint("127.0.0.1", 1), 2: there}

    with serving(theirs) as there, kept_up(mine, where) as thread:
        log = mine.partition(0)
        service = ReplicaService(mine)
        log.open_session(2)
        service._connections[0] = None
        batch = records(RECORDS, 5)
        assert service.handle([Append(0, 2, RECORDS, batch.lengths, batch.records)]) == [Appended(0, 2, RECORDS + 4)]
        status = until(thread, lambda status: status.repaired == 3)
        assert (status.found, status.unrepaired) == (3, ())
        assert contents(log) == [data_of(i) for i in range(RECORDS + 5)]
        last_pass_ms = status.last_pass_ms or 0
        status = until(thread, lambda status: (status.last_pass_ms or 0) > last_pass_ms)
        assert (status.found, status.repaired) == (3, 3)
    assert {path: before[path] for path in before} == {
        name: (tmp_path / "a" / "0" / name).read_bytes()[: len(raw)] for name, raw in before.items()
    }


def test_what_nobody_foresaw_ends_the_checks_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(upkeep: Upkeep) -> float:
        raise KeyError(7)

    monkeypatch.setattr(Upkeep, "step", broken)
    with kept_up(on_disk(tmp_path / "a"), dict) as thread:
        assert until(thread, lambda status: bool(status.ended)).ended == "KeyError: 7"


def test_a_peer_that_knows_less_does_not_repair(tmp_path: Path) -> None:
    """Above its mark a replica tells strangers nothing: it may not be committed."""
    mine, theirs = on_disk(tmp_path / "a"), on_disk(tmp_path / "b", mark=2)
    paths = spoil(tmp_path / "a", 1)
    with serving(theirs) as there, kept_up(mine, lambda: {2: there}) as thread:
        status = until(thread, lambda status: any(one.why_not for one in status.unrepaired))
        assert [(one.partition, one.path) for one in status.unrepaired] == [(0, str(paths[0]))]
        assert "replica 2" in status.unrepaired[0].why_not
        theirs.partition(0).set_low_water_mark(1, RECORDS - 1, RECORDS - 1)
        assert until(thread, lambda status: status.repaired == 1).unrepaired == ()


def test_a_peer_says_why_it_cannot() -> None:
    peer = PeerReplica(3, Endpoint("127.0.0.1", 1), "test", keyring(Role.READER))
    with pytest.raises(PeerUnavailable, match=r"127\.0\.0\.1:1"):
        peer.read(0, 0, 5, 100)


# ---- step by step -------------------------------------------------------------------------------------------------


def keep_up(upkeep: Upkeep, clock: Clock, seconds: float) -> None:
    end_s = clock.now_s + seconds
    while clock.now_s < end_s:
        clock.now_s += max(upkeep.step(), 1e-3)


def test_one_that_cannot_be_repaired_keeps_no_other_from_it() -> None:
    disk, clock = FaultyDisk(), Clock()
    store = rotten_store(disk, 0, 1)
    bad_id, good_id = sorted(store.partition(0).rotten)

    class Half(Peer):
        def read(self, partition_id: int, first_id: int, end_id: int, max_bytes: int):  # type: ignore[no-untyped-def]
            if first_id < good_id and not whole:
                raise PeerUnavailable("has rotted here, too")
            return super().read(partition_id, first_id, end_id, max_bytes)

    whole = False
    sources: list[RepairSource] = [Away(), Half()]
    upkeep = Upkeep(store, SMALL, lambda: sources, clock)
    keep_up(upkeep, clock, 10.0)
    assert list(store.partition(0).rotten) == [bad_id]
    one = upkeep.unrepaired()[0]
    assert (one.partition_id, one.damage.file) == (0, closed_path(disk, 0))
    assert one.why_not == "replica 2: it does not answer; replica 1: has rotted here, too"
    assert (upkeep.progress.found, upkeep.progress.repaired) == (2, 1)
    tries = len([call for call in disk.calls if call[1].endswith(".seg.new") and call[0] == "create"])
    keep_up(upkeep, clock, 3600.0)
    assert len([call for call in disk.calls if call[1].endswith(".seg.new") and call[0] == "create"]) < tries + 25
    whole = True
    keep_up(upkeep, clock, 300.0)
    assert (upkeep.unrepaired(), upkeep.progress.repaired) == ([], 2)


@pytest.mark.parametrize("why", [errno.EIO, errno.EMFILE])
def test_a_partition_that_cannot_be_opened_keeps_no_other_from_being_looked_after(why: int) -> None:
    disk, clock = FaultyDisk(), Clock()
    store = rotten_store(disk, 0)
    store.grow(2)
    disk.errors["exists", f"{DIRECTORY}/1"] = why
    upkeep = Upkeep(store, SMALL, lambda: [Peer()], clock)
    keep_up(upkeep, clock, 10.0)
    assert (upkeep.progress.found, upkeep.progress.repaired) == (1, 1)
    disk.errors.clear()
    assert store.partition(1).last_id == -1


def test_a_partition_that_is_damaged_above_its_mark_waits_for_a_server() -> None:
    disk, clock = FaultyDisk(), Clock()
    store = filled(disk, mark=25)
    for position in (0, 3):
        disk.flip(closed_path(disk, position), 128 + 40)
    scrubbed(store)
    log = store.partition(0)
    assert log.damaged is not None
    assert list(log.rotten) == [0]
    upkeep, steps = Upkeep(store, SMALL, lambda: [Peer()], clock), 0
    while clock.now_s < 10.0:
        clock.now_s += max(upkeep.step(), 1e-3)
        steps += 1
    assert steps < 50, "and does not spin"
    assert "damaged elsewhere" in upkeep.unrepaired()[0].why_not
    log.open_session(2)
    log.truncate(2, log.last_id)
    keep_up(upkeep, clock, 300.0)
    assert not upkeep.unrepaired()
    assert not log.rotten


def test_without_a_scrub_what_readers_meet_is_repaired() -> None:
    disk, clock = FaultyDisk(), Clock()
    store = rotten_store(disk)
    config = StorageConfig(segment_size_bytes=600, scrub_bytes_per_s=0)
    upkeep = Upkeep(store, config, lambda: [Peer()], clock)
    keep_up(upkeep, clock, 5.0)
    assert upkeep.progress.began_ms is None
    disk.flip(closed_path(disk, 1), 128 + 40)
    log = store.partition(0)
    with pytest.raises(SegmentRotten):
        contents(log)
    keep_up(upkeep, clock, 2 * LOOK_S)
    assert contents(log) == [data_of(i) for i in range(RECORDS)]
    upkeep.close()


def test_who_checks_piece_by_piece_does_not_look_at_all_partitions_with_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 24,576 partitions that took most of a core's time."""
    disk, clock = FaultyDisk(), Clock()
    store = filled(disk, partitions=2)
    store.grow(3)
    config = replace(SMALL, scrub_bytes_per_s=400, scrub_interval_s=0)
    upkeep, looks, steps, partition = Upkeep(store, config, lambda: [Peer()], clock), 0, 0, store.partition

    def looked(partition_id: int) -> PartitionLog:
        nonlocal looks
        looks += partition_id == 2  # it has nothing to check
        return partition(partition_id)

    monkeypatch.setattr(store, "partition", looked)
    while upkeep.progress.last_pass_ms is None:
        clock.now_s += max(upkeep.step() / 100, 1e-6)
        steps += 1
    assert steps > 15
    assert looks <= 3
    disk.flip(closed_path(disk, 1), 128 + 40)
    with pytest.raises(SegmentRotten):
        contents(partition(0))
    keep_up(upkeep, clock, 100.0)
    assert contents(partition(0)) == [data_of(i) for i in range(RECORDS)]


def test_the_rate_bounds_scrub_and_repair() -> None:
    disk, clock = FaultyDisk(), Clock()
    store = rotten_store(disk, 1)
    config = StorageConfig(segment_size_bytes=600, scrub_bytes_per_s=1000, scrub_interval_s=0)
    upkeep = Upkeep(store, config, lambda: [Peer()], clock)
    while upkeep.progress.last_pass_ms is None:
        clock.now_s += upkeep.step()
    total = upkeep.progress.total_bytes
    assert upkeep.progress.repaired == 1
    assert clock.now_s > (total + 400) / 1000


def test_a_restart_goes_on_where_the_pass_was() -> None:
    disk, clock = FaultyDisk(), Clock()
    store = filled(disk, partitions=2)
    config = replace(SMALL, scrub_bytes_per_s=1 << 40, scrub_interval_s=1_000_000)
    one = Upkeep(store, config, list, clock)
    for _ in range(9):
        one.step()
        clock.now_s += 61.0
        disk.clock_ms += 61_000
    one.close()
    began_ms, calls = one.progress.began_ms, len(disk.calls)
    again = Upkeep(store, config, list, clock)
    assert again.step() == 0.0
    assert (again.progress.began_ms, again.progress.last_pass_ms) == (began_ms, None)
    assert 0 < again.progress.done_bytes < again.progress.total_bytes
    while again.progress.last_pass_ms is None:
        clock.now_s += again.step()
    looked_at = {path for name, path in disk.calls[calls:] if name == "pread" and path.endswith(".seg")}
    assert closed_path(disk, 0) not in looked_at
    assert closed_path(disk, 0, partition_id=1) in looked_at
    third = Upkeep(store, config, list, clock)
    assert third.step() == LOOK_S, "no pass is due"
    assert third.progress.last_pass_ms == again.progress.last_pass_ms
    clock.now_s += 1e6 - 9 * 61.0
    assert third.step() == 0.0, "the interval counts from the beginning of the pass"


def test_damage_that_nobody_could_repair_is_known_again_right_after_a_start() -> None:
    """And not when it is read next, or in a week: until then nothing would say that there is a copy less."""
    disk, clock = FaultyDisk(), Clock()
    store = filled(disk, partitions=2)
    config = replace(SMALL, scrub_bytes_per_s=1 << 40, scrub_interval_s=1_000_000)
    one = Upkeep(store, config, list, clock)
    while one.progress.last_pass_ms is None:
        clock.now_s += one.step()
    before = one.progress
    disk.flip(closed_path(disk, 2, partition_id=1), 128 + 40)
    with pytest.raises(SegmentRotten):
        contents(store.partition(1))
    keep_up(one, clock, 5.0)
    assert [each.partition_id for each in one.unrepaired()] == [1]
    one.close()
    store.close()

    store = reopen(disk, config)
    again = Upkeep(store, config, list, clock)
    assert again.unrepaired() == []  # which has opened both
    calls = len(disk.calls)
    keep_up(again, clock, 5.0)
    assert [each.partition_id for each in again.unrepaired()] == [1]
    looked_at = {path for name, path in disk.calls[calls:] if name == "pread" and path.endswith(".seg")}
    assert looked_at == {closed_path(disk, 2, partition_id=1)}, "no pass is due"
    assert again.progress.last_pass_ms == before.last_pass_ms
    again.close()

    third = Upkeep(store, config, lambda: [Peer()], clock)
    keep_up(third, clock, 5.0)
    assert third.unrepaired() == []
    assert third.progress.repaired == 1
    third.close()
    record = read_scrub_record(store.disk, DIRECTORY)
    assert record is not None
    assert record.damaged == ()


def test_an_interrupted_pass_and_what_was_damaged_outlive_each_other() -> None:
    """The next start ends, too, before it has looked at either."""
    record = ScrubRecord(5, None, 1, 30, ((0, 3), (1, 4)))
    plan = ScrubPlan(0, 100.0)
    plan.go_on(0.0, 9, record)
    assert plan.record() == record
    plan.suspect([ScrubTarget(0, 3, 4, 7)])  # the other one is not there any more
    assert plan.record() == record._replace(damaged=((0, 3),))
    plan.has_checked(7)
    plan.found(0, 3)
    plan.done(10)
    assert plan.record() == record._replace(damaged=((0, 3),))
    assert (plan.current, plan.progress.done_bytes, plan.progress.last_pass_ms) == (None, 0, None)
    plan.begin(0.0, 10, [ScrubTarget(1, 20, 30, 2), ScrubTarget(1, 30, 40, 5)])
    assert (plan.current, plan.progress.done_bytes) == (ScrubTarget(1, 30, 40, 5), 2)
    plan.repaired(0, 3)
    assert plan.record() == record._replace(damaged=())


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.ENOENT], ids=str)
def test_a_record_that_cannot_be_written_ends_nothing(error: int) -> None:
    """As where the directory was taken away."""
    disk, clock = FaultyDisk(), Clock()
    store = filled(disk)
    disk.errors["create", SCRUB_FILE] = error
    upkeep = Upkeep(store, SMALL, list, clock)
    while upkeep.progress.last_pass_ms is None:
        clock.now_s += upkeep.step()
    upkeep.step()
    store.disk.check()


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"[1]",
        b'{"began_ms": "x", "last_pass_ms": 1, "partition_id": 1, "first_id": 1}',
        b'{"began_ms": 9999999999999, "last_pass_ms": 1, "partition_id": 1, "first_id": 1}',
        b'{"began_ms": 0, "last_pass_ms": 0, "partition_id": null, "first_id": null, "damaged": [["0", 1]]}',
        b'{"began_ms": 0, "last_pass_ms": 0, "partition_id": null, "first_id": null, "damaged": [7]}',
    ],
    ids=["torn", "a list", "text", "of the future", "damage by name", "damage of nothing"],
)
def test_a_record_that_cannot_be_is_as_none(raw: bytes) -> None:
    disk = FaultyDisk()
    store = filled(disk)
    disk.put(f"{DIRECTORY}/{SCRUB_FILE}", raw)
    upkeep = Upkeep(store, SMALL, list, Clock())
    assert upkeep.step() == 0.0
    assert (upkeep.progress.done_bytes, upkeep.progress.last_pass_ms) == (0, None)
