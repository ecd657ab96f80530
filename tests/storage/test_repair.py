"""Rotten closed segments are fetched from a peer: exactly their records, all checked, whatever crashes meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.storage.faulty_disk import Crashed, FaultyDisk, Survival
from tests.storage.helpers import KEY, SMALL, append, assert_verifies, contents, data_of, records, reopen
from tests.storage.test_crash import SURVIVALS
from tests.storage.test_scrub import RECORDS, closed_path, filled, scrubbed
from waltz_ray.config import StorageConfig
from waltz_ray.errors import CopiesDisagree, DiskFull, PeerUnavailable, SegmentRotten, SyncFailed
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.storage import repair
from waltz_ray.storage.partition_log import PartitionLog
from waltz_ray.storage.repair import RepairSource, repair_segment
from waltz_ray.storage.store import ReplicaStore


class Peer:
    """Another replica: its log is at hand. ``change``: what becomes of a batch on the way; ``asked``: for which IDs."""

    def __init__(
        self, name: str = "replica 1", tag: int = 0, change: Callable[[RecordBatch], RecordBatch] | None = None
    ):
        self.name, self._tag, self._change = name, tag, change
        self.asked: list[range] = []

    def read(self, partition_id: int, first_id: int, end_id: int, max_bytes: int) -> RecordBatch:
        self.asked.append(range(first_id, end_id))
        batch = records(0, 2 * RECORDS, self._tag, partition_id).slice(first_id, min(end_id, first_id + 3))
        return self._change(batch) if self._change else batch


class Away:
    name = "replica 2"

    def read(self, partition_id: int, first_id: int, end_id: int, max_bytes: int) -> RecordBatch:
        raise PeerUnavailable("it does not answer")


def repaired(
    store: ReplicaStore, *sources: RepairSource, meanwhile: Callable[[], object] = lambda: None
) -> PartitionLog:
    log = store.partition(0)
    for first_id in list(log.rotten):
        for _ in repair_segment(store.disk, KEY, log, first_id, sources):
            meanwhile()
    return log


def rotten_store(
    disk: FaultyDisk, *positions: int, offset: int = 128 + 40, config: StorageConfig = SMALL
) -> ReplicaStore:
    store = filled(disk, config)
    for position in positions:
        disk.flip(closed_path(disk, position), offset)
    scrubbed(store)
    return store


def assert_whole(disk: FaultyDisk, store: ReplicaStore) -> None:
    log = store.partition(0)
    assert (log.damaged, log.rotten, log.last_id) == (None, {}, RECORDS - 1)
    assert contents(log) == [data_of(i) for i in range(RECORDS)]
    store.close()
    assert_verifies(disk, RECORDS - 1)
    assert not [path for path in disk.files() if path.endswith(".new")]


@pytest.mark.parametrize("offset", [0, 14, 30, 128, 128 + 31, 128 + 60], ids=str)
def test_every_rotten_segment_is_the_same_again(offset: int) -> None:
    pristine, disk = FaultyDisk(), FaultyDisk()
    filled(pristine)
    store, peer = rotten_store(disk, 0, 2, 3, offset=offset), Peer()
    bounds = [one for one in store.partition(0).closed()[1] if one[0] in store.partition(0).rotten]
    repaired(store, Away(), peer)
    assert disk.files() == pristine.files()
    assert all(disk.content(path) == pristine.content(path) for path in disk.files())
    assert sorted({(max(a.stop for a in peer.asked if a.stop == end), first) for first, end in bounds}) == sorted(
        (end, first) for first, end in bounds
    )
    assert all(any(first <= one.start < one.stop <= end for first, end in bounds) for one in peer.asked), "no others"
    assert_whole(disk, store)


def test_a_segment_that_is_gone_comes_back() -> None:
    disk = FaultyDisk()
    filled(disk).close()
    path = closed_path(disk, 1)
    disk.remove(path)
    store = reopen(disk)
    assert list(store.partition(0).rotten) == [0], "what is before it does not reach what is behind it"
    repaired(store, Peer())
    assert_whole(disk, store)


def test_the_log_goes_on_while_it_is_repaired() -> None:
    disk = FaultyDisk()
    store = rotten_store(disk, 1)
    log = store.partition(0)

    def serve() -> None:
        append(log, 2)
        log.sync()
        log.read(0, 1, 1)
        with pytest.raises(SegmentRotten):
            contents(log)

    repaired(store, Peer(), meanwhile=serve)
    assert log.last_id > RECORDS
    assert contents(log) == [data_of(i) for i in range(log.last_id + 1)]


def flipped_in_the_data(batch: RecordBatch) -> RecordBatch:
    raw = bytearray(batch.records)
    raw[-5] ^= 1
    return RecordBatch(batch.partition_id, batch.first_id, batch.lengths, bytes(raw))


WRONG: dict[str, Callable[[RecordBatch], RecordBatch]] = {
    "a flipped bit": flipped_in_the_data,
    "another partition": lambda batch: records(batch.first_id, len(batch), partition_id=1),
    "a record later": lambda batch: records(batch.first_id + 1, len(batch)),
    "more than was asked for": lambda batch: records(batch.first_id, 30),
    "nothing": lambda batch: batch.slice(0, 0) if len(batch) > 1 else records(batch.first_id, 0),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_a_peer_sends_is_checked(wrong: str) -> None:
    disk = FaultyDisk()
    store = rotten_store(disk, 1)
    before = {path: disk.content(path) for path in disk.files()}
    with pytest.raises(PeerUnavailable, match="replica 1"):
        repaired(store, Peer(change=WRONG[wrong]))
    assert {path: disk.content(path) for path in disk.files()} == before
    assert list(store.partition(0).rotten) != []
    repaired(store, Peer(change=WRONG[wrong]), Peer("replica 2"))
    assert_whole(disk, store)


def test_copies_that_disagree_are_left_alone() -> None:
    """A peer whose whole records differ from the whole ones here, or from those of another peer."""
    disk = FaultyDisk()
    store = rotten_store(disk, 1)
    before = {path: disk.content(path) for path in disk.files()}
    with pytest.raises(CopiesDisagree, match="of this replica differs"):
        repaired(store, Peer(tag=1))

    def only_the_rotten_differs(batch: RecordBatch) -> RecordBatch:
        return batch if batch.first_id > first_id else records(first_id, 1, tag=9)

    first_id = next(iter(store.partition(0).rotten))
    with pytest.raises(CopiesDisagree, match="of replica 2 differs"):
        repaired(store, Peer(), Away(), Peer("replica 2", change=only_the_rotten_differs))
    assert {path: disk.content(path) for path in disk.files()} == before


def test_nothing_above_the_mark_is_fetched() -> None:
    """It may have been lowered since."""
    disk = FaultyDisk()
    store = rotten_store(disk, 1)
    log = store.partition(0)
    log.set_low_water_mark(1, 4, 4)
    with pytest.raises(PeerUnavailable, match="above this replica's low-water mark"):
        repaired(store, Peer())


@pytest.mark.parametrize("cut_id", [-1, 7])
def test_what_is_cut_meanwhile_does_not_come_back(cut_id: int) -> None:
    for after in range(1, 8):
        disk = FaultyDisk()
        store = rotten_store(disk, 3)
        log = store.partition(0)
        log.open_session(2)
        pieces = repair_segment(store.disk, KEY, log, next(iter(log.rotten)), [Peer()])
        for _ in range(after):
            next(pieces, None)
        log.truncate(2, cut_id)
        append(log, RECORDS - 1 - cut_id, tag=5)
        log.sync()
        log.set_low_water_mark(2, RECORDS - 1, RECORDS - 1)
        assert list(pieces) is not None
        kept = [data_of(i) for i in range(cut_id + 1)]
        assert contents(log) == kept + [data_of(i, 5) for i in range(cut_id + 1, RECORDS)]
        store.close()
        assert_verifies(disk, RECORDS - 1)


@pytest.mark.parametrize("survival", SURVIVALS, ids=str)
def test_a_crash_at_every_step_of_a_repair(survival: Survival) -> None:
    for step in range(200):
        disk = FaultyDisk(seed=step)
        store = rotten_store(disk, 1, 2)
        disk.crash_after = step
        try:
            repaired(store, Peer())
        except Crashed:
            disk.crash(survival)
        else:
            break
        again = reopen(disk)
        log = again.partition(0)
        assert (log.damaged, log.last_id, log.session_id) == (None, RECORDS - 1, 1)
        assert not [path for path in disk.files() if path.endswith(".new")]
        scrubbed(again)
        repaired(again, Peer())
        assert_whole(disk, again)
    else:
        raise AssertionError("the repair never ends")
    assert step > 20
    disk.crash_after = None
    disk.crash(Survival(0.0))
    assert_whole(disk, reopen(disk))


def test_a_full_disk_leaves_the_rot_and_nothing_else() -> None:
    disk = FaultyDisk()
    store = rotten_store(disk, 1)
    before = {path: disk.content(path) for path in disk.files()}
    disk.capacity_bytes = sum(map(len, before.values())) + 400
    with pytest.raises(DiskFull):
        repaired(store, Peer())
    assert {path: disk.content(path) for path in disk.files()} == before
    disk.capacity_bytes = None
    repaired(store, Peer())
    assert_whole(disk, store)


def test_a_failed_sync_ends_the_store() -> None:
    disk = FaultyDisk()
    store = rotten_store(disk, 1)
    disk.fail_sync = True
    with pytest.raises(SyncFailed):
        repaired(store, Peer())
    disk.fail_sync = False
    disk.crash()
    again = reopen(disk)
    scrubbed(again)
    repaired(again, Peer())
    assert_whole(disk, again)


def test_a_long_segment_is_synced_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair, "_SYNC_BYTES", 100)
    disk = FaultyDisk()
    store = rotten_store(disk, 1)
    repaired(store, Peer())
    assert sum(name == "fdatasync" and path.endswith(".seg.new") for name, path in disk.calls) > 2
    assert_whole(disk, store)
