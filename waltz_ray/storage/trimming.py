"""Where a partition's log begins on this disk, once segments have been dropped below a trim mark.

On-disk story
    The file ``trimmed`` in the partition's folder (docs/formats.md, "Trimmed") names the log's first record. Without
    it the log begins with record 0. It is written aside, flushed and renamed, so there is the old one or the new one.

===========================  ==========================================  ==========================================
step                         what a crash leaves                         what the next start does
===========================  ==========================================  ==========================================
trim: the file is written    the old beginning or the new one            with the new one: removes the segments below,
                                                                         nobody looks at them any more
trim: no room for the file   an index less, of the oldest segment        makes it anew
trim: segments are unlinked  some of those below the beginning           removes the others
trim of all: no room for     as begin_at, with the record behind the     as begin_at
another newest segment       last one
begin_at: no room either     an index less, of the oldest segment        makes it anew
begin_at: the file, *empty*  all segments of the log that was given up   removes every segment, makes the first one,
                                                                         then writes the file without *empty*
begin_at: the segments go,   some of them; the new one, without header,  the same: until the file is without *empty*
the first one is made        or empty                                    no record has been written behind it
begin_at: the file again     *empty*, or not                             the same, or nothing
===========================  ==========================================  ==========================================

``begin_at`` is for a replica that has not what its peers have trimmed away: its records are all below the mark, and
what would join them exists nowhere any more. A log with a beginning and no segment there has lost it, as one without a
beginning has that lacks record 0: only *empty* says that nothing was there yet.
"""

from __future__ import annotations

import struct
import uuid
from typing import NamedTuple

from waltz_ray.errors import Corruption
from waltz_ray.protocol.checksum import crc32
from waltz_ray.storage.disk import Disk, DurableDisk, is_unreadable

__all__ = ["FROM_THE_START", "Beginning", "read_beginning", "remove_beginning", "write_beginning"]

_FILE = "trimmed"
_FIELDS = struct.Struct(">i16siqi")
_CRC = struct.Struct(">I")
_VERSION = 0


class Beginning(NamedTuple):
    """``first_id``: of the log's first record. ``empty``: there is none yet, whatever segments there are."""

    first_id: int
    empty: bool = False


FROM_THE_START = Beginning(0)


def read_beginning(disk: Disk, folder: str, cluster_key: uuid.UUID, partition_id: int) -> Beginning:
    """Where the log in ``folder`` begins. Corruption if the file is not one of this place."""
    path = f"{folder}/{_FILE}"
    if not disk.exists(path):
        return FROM_THE_START
    handle = disk.open(path, "read")
    try:
        raw = disk.pread(handle, _FIELDS.size + _CRC.size + 1, 0)
    except OSError as error:
        if not is_unreadable(error):
            raise
        why = f"cannot be read, so it is not known where the log begins: {error.strerror}"
        raise Corruption(path, 0, why, unreadable=True) from error
    finally:
        disk.close(handle)
    if len(raw) != _FIELDS.size + _CRC.size or _CRC.unpack_from(raw, _FIELDS.size)[0] != crc32(raw[: _FIELDS.size]):
        raise Corruption(path, 0, "wrong checksum, so it is not known where the log begins")
    version, key, partition, first_id, empty = _FIELDS.unpack_from(raw)
    if version != _VERSION or key != cluster_key.bytes or partition != partition_id or first_id < 0:
        raise Corruption(path, 0, f"it is not that of partition {partition_id} of this cluster, in version {_VERSION}")
    return Beginning(first_id, bool(empty))


def write_beginning(
    disk: DurableDisk, folder: str, cluster_key: uuid.UUID, partition_id: int, beginning: Beginning
) -> None:
    """Say, durably, where the log in ``folder`` begins. DiskFull, OutOfResources: it begins where it did."""
    raw = _FIELDS.pack(_VERSION, cluster_key.bytes, partition_id, beginning.first_id, int(beginning.empty))
    disk.replace_file(f"{folder}/{_FILE}", raw + _CRC.pack(crc32(raw)))


def remove_beginning(disk: DurableDisk, folder: str) -> None:
    """The log is to begin with record 0 again; durable when it returns. Idempotent."""
    path = f"{folder}/{_FILE}"
    if disk.disk.exists(path):
        disk.unlink(path)
        disk.fsync_directory(folder)
