"""The fences of a storage directory, for people: what they are, and a way to lower one (``waltz fence``), offline.

A partition's fence is the highest session that this replica has accepted; it refuses every lower one. It only ever
rises, so a session number that ZooKeeper never gave (a stranger's, a bug's) would keep every real server out for ever.

What a crash leaves: the two slots are written one after the other, each flushed, the one that is not current first.
Until the second one is written the old fence may still be in force, after it the new one is; the marks are the same in
both. So a tool that was interrupted is simply run again.
"""

from __future__ import annotations

from typing import NamedTuple

from waltz_ray.errors import Corruption, InvalidInput, StorageError
from waltz_ray.storage.control_file import ControlEntry, ControlFile, ControlImage, read_control_image
from waltz_ray.storage.disk import Disk, DurableDisk
from waltz_ray.storage.store import lock_directory

__all__ = ["Fence", "read_fences", "reset_fence"]


class Fence(NamedTuple):
    """One partition's entry of the control file.

    ``session_id`` -1: no session was ever opened here. All three numbers are None if both slots are damaged: then
    nothing is known of this partition, and the replica refuses it.
    """

    partition_id: int
    session_id: int | None
    low_water_mark: int | None
    local_low_water_mark: int | None
    slots_valid: tuple[bool, bool]


def read_fences(disk: Disk, directory: str) -> list[Fence]:
    """The fences of all partitions, in order. Changes nothing and takes no lock.

    If a replica is running there, a slot that is being written may look damaged for a moment. ControlFileMissing;
    Corruption if the file as a whole cannot be understood.
    """
    image = read_control_image(disk, directory.rstrip("/"))
    return [_fence(image, partition_id) for partition_id in range(len(image.slots))]


def _fence(image: ControlImage, partition_id: int) -> Fence:
    first, second = image.slots[partition_id]
    entry = image.current(partition_id)
    valid = (first is not None, second is not None)
    return Fence(partition_id, None, None, None, valid) if entry is None else Fence(partition_id, *entry, valid)


def reset_fence(disk: Disk, directory: str, partition_id: int, session_id: int) -> None:
    """Lower the fence of one partition to ``session_id``, durably, in both slots; the marks stay as they are.

    **This takes a safeguard away.** The fence is what keeps a server that was replaced without noticing from changing
    the log. Only a number that is at least the partition's session in ZooKeeper is safe, and nothing here can know it:
    below it, an old server that still runs may cut or extend this replica's log behind its successor's back, and
    records that were acknowledged can be lost. Below the session that ZooKeeper says this replica has joined, the
    replica is taken for one that has lost its files, and refuses.

    StorageLocked while a process has the directory open. InvalidInput for a partition that is not there, for a number
    below 0 (the partition would say that it never had a session) or above the fence (it rises by itself, with the next
    session). Corruption if both slots are damaged: the marks are lost with them, and without the low-water mark a
    rotten record could be cut like a torn one; such a partition is made anew after ``waltz replace-replica``.
    StorageError for a control file of Waltz 0.13, which the replica's first start converts. ControlFileMissing;
    SyncFailed.
    """
    directory = directory.rstrip("/")
    lock = lock_directory(disk, directory)
    try:
        image = read_control_image(disk, directory)
        entry = _lowerable(image, partition_id, session_id)
        control = ControlFile(DurableDisk(disk), image)
        try:
            control.write(partition_id, entry._replace(session_id=session_id))
        finally:
            control.close()
    finally:
        disk.close(lock)


def _lowerable(image: ControlImage, partition_id: int, session_id: int) -> ControlEntry:
    count = len(image.slots)
    if not 0 <= partition_id < count:
        raise InvalidInput(f"{image.path}: there is no partition {partition_id}, only {count}")
    if image.original:
        raise StorageError(f"{image.path}: is a control file of Waltz 0.13; start the replica once, that converts it")
    entry = image.current(partition_id)
    if entry is None:
        why = (
            f"both slots of partition {partition_id} have a wrong checksum, its marks are lost, too; "
            "let the replica be copied from its peers: waltz replace-replica"
        )
        raise Corruption(image.path, image.slot_offset(partition_id, 0), why)
    if not 0 <= session_id <= entry.session_id:
        raise InvalidInput(
            f"{image.path}: the fence of partition {partition_id} is {entry.session_id}; it can be lowered to 0 or "
            f"more and not be raised, so not set to {session_id}"
        )
    return entry
