"""Taking a partition's files away when its space has been deleted.

On-disk story
    First a file ``removed`` is made in the partition's folder, durably; then everything else in it is unlinked, and the
    folder stays with that file alone. A crash before the first step is over leaves the partition as it was, or the file
    too; after that, the file and any part of the others, which nobody looks at any more: a partition whose folder has
    the file is never opened again, whatever that process knows of spaces. Done again it unlinks what was left.

    The partition's control entry stays, fence and all, so that the others keep their numbers. Journal entries of
    segments that are not there are passed over.
"""

from __future__ import annotations

from waltz_ray.storage.disk import Disk, DurableDisk

__all__ = ["is_removed", "remove_files"]

_MARKER = "removed"


def is_removed(disk: Disk, folder: str) -> bool:
    """Whether the partition in ``folder`` is not to be served, verified or voted with any more."""
    return disk.exists(f"{folder}/{_MARKER}")


def remove_files(disk: DurableDisk, folder: str) -> None:
    """Remove the partition in ``folder``, durably; see the top. DiskFull, OutOfResources: nothing was removed yet."""
    disk.have_folder(folder)
    if not is_removed(disk.disk, folder):
        disk.disk.close(disk.create(f"{folder}/{_MARKER}"))
    disk.fsync_directory(folder)  # also where a process was killed before it came to this
    names = [name for name in disk.disk.listdir(folder) if name != _MARKER]
    for name in names:
        disk.unlink(f"{folder}/{name}")
    if names:
        disk.fsync_directory(folder)
