"""A directory as Waltz 0.13 leaves it: 76-byte control entries, clock read twice for a segment and its index."""

from __future__ import annotations

import struct
import zlib

from tests.storage.faulty_disk import FaultyDisk
from tests.storage.helpers import DIRECTORY, KEY, append, create

CONTROL = f"{DIRECTORY}/waltz-storage.ctl"


def original_control(*entries: tuple[int, int, int]) -> bytes:
    """Per partition (session, low-water mark, local low-water mark); the slot before it is older by sequence number
    only, so that choosing by session would choose wrongly."""
    parts = [struct.pack(">iq16si96x", 0, 1_700_000_000_000, KEY.bytes, len(entries))]
    for partition_id, entry in enumerate(entries):
        parts.append(struct.pack(">i", partition_id))
        for marks, sequence in ((entry, 7), ((entry[0] + 1, -1, -1), 6)):
            content = struct.pack(">qqqii", *marks, 5, sequence)
            parts.append(content + struct.pack(">I", zlib.crc32(content)))
    return b"".join(parts)


def original_directory(disk: FaultyDisk) -> FaultyDisk:
    """One partition, session 4, marks 12 and 11, records 0 to 19."""
    store = create(disk)
    log = store.partition(0)
    log.open_session(4)
    append(log, 20)
    store.close()
    disk.put(CONTROL, original_control((4, 12, 11)))
    for position, path in enumerate(path for path in disk.files() if path.endswith(".idx")):
        content = disk.content(path)
        created_ms = struct.unpack_from(">q", content, 4)[0] - position % 3
        disk.put(path, content[:4] + struct.pack(">q", created_ms) + content[12:])
    return disk
