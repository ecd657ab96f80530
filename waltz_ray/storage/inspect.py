"""What is in a storage directory, for people (`waltz inspect DIR`): read-only, cheap, without a lock."""

from __future__ import annotations

from typing import Any

from waltz_ray.errors import Corruption
from waltz_ray.storage.control_file import ControlImage, read_control_image
from waltz_ray.storage.disk import Disk, is_shortage
from waltz_ray.storage.layout import (
    HEADER_BYTES,
    INDEX_ENTRY_BYTES,
    index_path,
    scan_records,
    segment_ids,
    segment_path,
)
from waltz_ray.storage.recovery import read_header
from waltz_ray.storage.segment import read_index
from waltz_ray.storage.trimming import read_beginning

__all__ = ["describe_directory"]


def describe_directory(disk: Disk, directory: str) -> dict[str, Any]:
    """A JSON-able description: control entries, segments with IDs, sizes (bytes) and the state of their indexes.

    ControlFileMissing, or Corruption if the control file cannot be read. Records are not checked: see ``verify``.
    """
    directory = directory.rstrip("/")
    image = read_control_image(disk, directory)
    return {
        "directory": directory,
        "cluster_key": str(image.cluster_key),
        "created_ms": image.created_ms,
        "written_by": "Waltz 0.13" if image.original else "waltz_ray",
        "partitions": [_partition(disk, image, directory, number) for number in range(len(image.slots))],
    }


def _partition(disk: Disk, image: ControlImage, directory: str, partition_id: int) -> dict[str, Any]:
    folder = f"{directory}/{partition_id}"
    entry = image.current(partition_id)
    ids = segment_ids(disk.listdir(folder)) if disk.exists(folder) else []
    bounds: list[int | None] = [*ids[1:], None][: len(ids)]
    segments = []
    for first_id, next_id in zip(ids, bounds, strict=True):
        try:
            segments.append(_segment(disk, image, folder, partition_id, (first_id, next_id)))
        except FileNotFoundError:  # a replica that runs has trimmed, or cut, it since it was listed
            continue
        except OSError as error:
            if is_shortage(error):
                raise
            segments.append(_unreadable(folder, first_id, next_id, error))
    return {
        "partition_id": partition_id,
        "control": None if entry is None else entry._asdict(),
        "first_id": _first_id(disk, image, folder, partition_id),
        "slots_valid": [slot is not None for slot in image.slots[partition_id]],
        "last_id": segments[-1]["last_id"] if segments else -1,
        "segments": segments,
    }


def _unreadable(folder: str, first_id: int, next_id: int | None, error: OSError) -> dict[str, Any]:
    return {
        "file": segment_path(folder, first_id),
        "first_id": first_id,
        "last_id": first_id - 1 if next_id is None else next_id - 1,
        "bytes": 0,
        "index": {"entries": 0, "state": "unknown"},
        "damage": f"cannot be read: {error.strerror}",
    }


def _first_id(disk: Disk, image: ControlImage, folder: str, partition_id: int) -> int | None:
    """Where the log begins, None if that cannot be told."""
    try:
        return read_beginning(disk, folder, image.cluster_key, partition_id).first_id
    except Corruption:
        return None


def _segment(
    disk: Disk, image: ControlImage, folder: str, partition_id: int, bounds: tuple[int, int | None]
) -> dict[str, Any]:
    first_id, next_id = bounds
    path = segment_path(folder, first_id)
    entries, index_state = _index(disk, folder, first_id, next_id)
    described: dict[str, Any] = {
        "file": path,
        "first_id": first_id,
        "last_id": next_id - 1 if next_id is not None else _last_id(disk, folder, partition_id, first_id, entries),
        "bytes": disk.file_size(path),
        "index": index_state,
    }
    try:
        header = read_header(disk, path, image.cluster_key, partition_id, first_id)
        described["created_ms"] = header.created_ms
    except Corruption as damage:
        described["damage"] = str(damage)
    return described


def _index(disk: Disk, folder: str, first_id: int, next_id: int | None) -> tuple[int, dict[str, Any]]:
    path = index_path(folder, first_id)
    if not disk.exists(path):
        return 0, {"entries": 0, "state": "missing"}
    entries = max(0, disk.file_size(path) - HEADER_BYTES) // INDEX_ENTRY_BYTES
    complete = next_id is None or entries == next_id - first_id
    return entries, {"entries": entries, "state": "complete" if complete else "incomplete"}


def _last_id(disk: Disk, folder: str, partition_id: int, first_id: int, entries: int) -> int:
    """The end of the newest segment: scanned from its last index entry, or from the start if that one is wrong."""
    start, offset = 0, HEADER_BYTES
    if entries:
        index = disk.open(index_path(folder, first_id), "read")
        try:
            start, offset = entries - 1, int(read_index(disk, index, entries - 1, entries)[0])
        finally:
            disk.close(index)
    handle = disk.open(segment_path(folder, first_id), "read")
    try:
        scan = scan_records(disk, handle, partition_id, first_id + start, max(offset, HEADER_BYTES))
        if not len(scan.offsets) and start:
            start = 0
            scan = scan_records(disk, handle, partition_id, first_id, HEADER_BYTES)
        return first_id + start + len(scan.offsets) - 1
    finally:
        disk.close(handle)
