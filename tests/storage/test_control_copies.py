"""What a replica has promised is in both slots of a partition's control entry: one that rots takes nothing away."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

import pytest

from tests.storage.faulty_disk import Crashed, FaultyDisk, Survival
from tests.storage.helpers import DIRECTORY, KEY, append, create, reopen
from waltz_ray.errors import DiskFull
from waltz_ray.protocol.messages.replica import Open, StateReply
from waltz_ray.storage.control_file import CONTROL_FILE, NEVER_OPENED, ControlEntry, ControlFile, read_control_image
from waltz_ray.storage.disk import DurableDisk, Writable
from waltz_ray.storage.fence import read_fences
from waltz_ray.storage.replica_service import ReplicaService

CONTROL = f"{DIRECTORY}/{CONTROL_FILE}"
PARTITIONS = 3
LONG_AGO = ControlEntry(3, 2, 2)
ENTRIES = [
    ControlEntry(4, 2, 2),
    ControlEntry(4, 7, 7),
    ControlEntry(5, 7, 7),
    ControlEntry(5, 3, 3),  # cut: lowered, so written twice anyway
    ControlEntry(6, 3, 3),
]


def slot_byte(partition_id: int, slot: int, byte: int) -> int:
    return 128 + 60 * partition_id + 4 + 28 * slot + byte


def in_session_4() -> FaultyDisk:
    """No record, so no mark is raised: all that was promised is the session. Stopped as by a kill."""
    disk = FaultyDisk()
    store = create(disk, partitions=PARTITIONS)
    for session_id in (3, 4):
        for partition_id in store.partition_ids:
            store.partition(partition_id).open_session(session_id)
    disk.end_process()
    return disk


@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize("byte", [0, 7, 9, 23, 27])
def test_a_replica_with_one_rotten_slot_has_forgotten_no_session(slot: int, byte: int) -> None:
    disk = in_session_4()
    for partition_id in range(PARTITIONS):
        disk.flip(CONTROL, slot_byte(partition_id, slot, byte))
    replica = ReplicaService(reopen(disk))
    for partition_id in range(PARTITIONS):
        (state,) = replica.handle([Open(partition_id, 5, KEY, joined_session_id=4)])
        assert isinstance(state, StateReply), "it remembers what it had joined"
    assert [fence.slots_valid for fence in read_fences(disk, DIRECTORY)] == [(True, True)] * PARTITIONS


def test_the_next_start_copies_what_an_older_version_wrote_once() -> None:
    disk = in_session_4()
    for partition_id in range(PARTITIONS):
        whole = bytearray(disk.content(CONTROL))
        whole[slot_byte(partition_id, 0, 0) : slot_byte(partition_id, 1, 0)] = _slot(LONG_AGO)
        disk.put(CONTROL, bytes(whole))
    reopen(disk).close()
    for fence, (first, second) in zip(read_fences(disk, DIRECTORY), _slots(disk), strict=True):
        assert fence.session_id == 4
        assert first == second


def _slot(entry: ControlEntry) -> bytes:
    """As it stands in a file that was never anything else."""
    disk = FaultyDisk()
    store = create(disk)
    control = ControlFile(DurableDisk(disk), read_control_image(disk, DIRECTORY))
    control.write(0, entry)
    control.close()
    store.close()
    return disk.content(CONTROL)[slot_byte(0, 1, 0) : slot_byte(0, 1, 28)]


def _slots(disk: FaultyDisk) -> Iterator[tuple[ControlEntry | None, ControlEntry | None]]:
    yield from read_control_image(disk, DIRECTORY).slots


SURVIVALS = [Survival(1.0), Survival(0.0), Survival(0.5, 0.25), Survival(0.0, 1.0)]


def written(disk: FaultyDisk, after: int | None) -> list[ControlEntry]:
    """What was answered of the writes of two partitions, until the machine stops at that call, or the end."""
    answered = [NEVER_OPENED, NEVER_OPENED]
    create(disk, partitions=2).close()
    disk.calls.clear()
    control = ControlFile(DurableDisk(disk), read_control_image(disk, DIRECTORY))
    disk.crash_after = after
    try:
        for partition_id in (0, 1):
            for entry in ENTRIES:
                control.write(partition_id, entry)
                answered[partition_id] = entry
    except Crashed:
        pass
    return answered


@pytest.mark.parametrize("survival", SURVIVALS, ids=str)
@pytest.mark.parametrize("again", [0, 1, 2, 3, 4])
def test_no_crash_takes_away_what_was_answered(survival: Survival, again: int) -> None:
    """The machine stops at any call of the writes, and at any of the start after that."""
    steps = FaultyDisk()
    written(steps, None)
    for step in range(len(steps.calls)):
        disk = FaultyDisk(seed=step)
        answered = written(disk, step)
        disk.crash(survival)
        image = read_control_image(disk, DIRECTORY)
        disk.crash_after = again
        try:
            ControlFile(DurableDisk(disk), image)
        except Crashed:
            disk.crash(survival)
        else:
            disk.crash(survival)
        image = read_control_image(disk, DIRECTORY)
        for partition_id, least in enumerate(answered):
            entry = image.current(partition_id)
            assert entry is not None
            allowed = ENTRIES[ENTRIES.index(least) :][:2] if least in ENTRIES else [NEVER_OPENED, ENTRIES[0]]
            assert entry in allowed, f"stopped at call {step}: {least} was answered of partition {partition_id}"


def test_a_sync_that_fails_leaves_what_was_answered_before_on_the_disk() -> None:
    """Its pages are clean then, the copies' of other partitions, too; and a crash comes during the next start."""
    for failing in range(1, 2 * len(ENTRIES)):
        for step in range(4):
            disk = FaultyDisk(seed=failing)
            create(disk, partitions=2).close()
            control = ControlFile(DurableDisk(disk), read_control_image(disk, DIRECTORY))
            writes = [(partition_id, entry) for entry in ENTRIES for partition_id in (0, 1)]
            for partition_id, entry in writes[:failing]:
                control.write(partition_id, entry)
            disk.fail_sync = True
            with pytest.raises(Exception, match="sync"):
                control.write(*writes[failing])
            disk.end_process()
            disk.heal()
            disk.crash_after = step
            with contextlib.suppress(Crashed):
                ControlFile(DurableDisk(disk), read_control_image(disk, DIRECTORY))
            disk.crash(Survival(0.0, 1.0))
            before = dict(writes[:failing])
            found = read_control_image(disk, DIRECTORY)
            for partition_id, entry in before.items():
                assert found.current(partition_id) in (entry, dict([writes[failing]]).get(partition_id, entry))


def test_a_mark_that_found_room_in_one_slot_only_is_lowered_by_the_next_try() -> None:
    """Else the higher one would be in force at the next start, and the log seem to have lost what was cut."""

    class Narrow(FaultyDisk):
        room = 1 << 20  # for so many writes of slots

        def pwrite(self, handle: int, data: Writable, offset: int) -> None:
            path = self._of(handle)[0]
            if path == CONTROL:
                self.room -= 1
                if self.room < 0:
                    raise OSError(errno.ENOSPC, "No space left on device", path)
            super().pwrite(handle, data, offset)

    disk = Narrow()
    log = create(disk).partition(0)
    log.open_session(1)
    append(log, 6)
    log.set_low_water_mark(1, 5, 5)
    disk.room = 1
    with pytest.raises(DiskFull):
        log.truncate(1, 2)
    disk.room = 1 << 20
    log.truncate(1, 2)
    disk.crash()
    log = reopen(disk).partition(0)
    assert log.damaged is None, str(log.damaged)
    assert (log.last_id, log.session_id, log.low_water_mark, log.local_low_water_mark) == (2, 1, 2, 2)


def test_records_and_marks_stay_as_they_are() -> None:
    disk = FaultyDisk()
    log = create(disk).partition(0)
    log.open_session(4)
    append(log, 20)
    log.set_low_water_mark(4, 15, 15)
    disk.end_process()
    disk.flip(CONTROL, slot_byte(0, 0, 3))
    log = reopen(disk).partition(0)
    assert (log.session_id, log.low_water_mark, log.local_low_water_mark, log.last_id) == (4, 15, 15, 19)
