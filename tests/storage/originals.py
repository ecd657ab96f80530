"""A directory as Waltz 0.13 leaves it: 76-byte control entries, clock read twice for a segment and its index."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

from tests.storage.faulty_disk import FaultyDisk
from tests.storage.helpers import DIRECTORY, KEY, append, create

CONTROL = f"{DIRECTORY}/waltz-storage.ctl"
NEVER = (-1, -1, -1)

Record = tuple[int, bytes]  # header, data


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


def write_original(
    directory: Path,
    partitions: Sequence[Sequence[Record]],
    marks: Sequence[tuple[int, int, int]] | None = None,
    per_segment: int = 7,
) -> Path:
    """A directory with these records, written byte by byte; ``marks`` as for ``original_control``."""
    directory.mkdir()
    (directory / "waltz-storage.ctl").write_bytes(original_control(*(marks or [NEVER] * len(partitions))))
    for p, records in enumerate(partitions):
        folder = directory / str(p)
        folder.mkdir()
        for first_id in range(0, max(1, len(records)), per_segment):
            header = struct.pack(">iq16siq88x", 0, 1_700_000_000_000, KEY.bytes, p, first_id)
            segment, index = bytearray(header), bytearray(header)
            for transaction_id, (mark, data) in enumerate(records[first_id : first_id + per_segment], first_id):
                index += struct.pack(">q", len(segment))
                fields = (transaction_id, 9, 1, p, transaction_id, mark, len(data), zlib.crc32(data))
                record = struct.pack(">q5iiI", *fields) + data
                segment += record + struct.pack(">I", zlib.crc32(record))
            (folder / f"{first_id:019d}.seg").write_bytes(segment)
            (folder / f"{first_id:019d}.idx").write_bytes(index)
    return directory
