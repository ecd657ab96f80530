"""What a replica remembers of the cluster that it belongs to, beside its records: for ``waltz recover``.

One file, ``waltz-cluster.json`` in the storage directory (docs/formats.md, "Cluster memory"), written aside, flushed
and renamed: there is the old one or the new one. Nothing that the replica does depends on it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from waltz_ray.protocol.checksum import crc32
from waltz_ray.storage.disk import Disk

__all__ = ["MEMORY_FILE", "read_memory", "write_memory"]

MEMORY_FILE = "waltz-cluster.json"
_KIND, _VERSION = "waltz cluster, as a replica saw it", 1
_CRC = "crc"


def _crc_of(fields: Mapping[str, Any]) -> int:
    return crc32(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())


def write_memory(disk: Disk, directory: str, fields: Mapping[str, Any]) -> None:
    """Durable when it returns. OSError: the old one is still there, and no record is any worse for it."""
    path = f"{directory}/{MEMORY_FILE}"
    temporary = f"{path}.new"
    whole = json.loads(json.dumps({"version": _VERSION, "kind": _KIND, **fields}))
    text = json.dumps({**whole, _CRC: _crc_of(whole)}, indent=1) + "\n"
    handle = disk.open(temporary, "create")
    try:
        try:
            disk.pwrite(handle, text.encode(), 0)
            disk.fsync(handle)
        finally:
            disk.close(handle)
        disk.rename(temporary, path)
    except OSError:
        disk.unlink(temporary)  # it may have taken the last room there was, which records, or making room, need more
        raise
    disk.fsync_directory(directory)


def read_memory(disk: Disk, directory: str) -> dict[str, Any] | None:
    """What was written last; None if nothing was, or it is damaged: it is a help, and others have one, too."""
    path = f"{directory}/{MEMORY_FILE}"
    if not disk.exists(path):
        return None
    handle = disk.open(path, "read")
    try:
        raw = disk.pread(handle, disk.size(handle), 0)
    finally:
        disk.close(handle)
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or (fields.get("kind"), fields.get("version")) != (_KIND, _VERSION):
        return None
    crc = fields.pop(_CRC, None)  # earlier versions wrote none
    return fields if crc is None or crc == _crc_of(fields) else None
