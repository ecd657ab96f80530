"""An independent reader of docs/formats.md, "Segment": the demo's judge over the storage directories.

It shares no code with ``waltz_ray.storage`` or ``waltz_ray.protocol``: headers, IDs, lengths and both checksums are
read from the bytes with ``struct`` and ``zlib``.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

__all__ = ["holds_committed", "partition_digest", "read_segment_records"]

_HEADER_BYTES = 128
_RECORD = struct.Struct(">qiiiiiiI")


def read_segment_records(path: Path, partition_id: int) -> Iterator[tuple[int, bytes]]:
    """(transaction ID, all bytes of the record) of one ``.seg``, up to its end or its zeros. ValueError: damaged."""
    content = path.read_bytes()
    version, _, _, partition, expected = struct.unpack_from(">iq16siq", content)
    if version != 0 or partition != partition_id or expected != int(path.stem):
        raise ValueError(f"{path}: the header is not that of partition {partition_id}, first ID {int(path.stem)}")
    at = _HEADER_BYTES
    while at + _RECORD.size + 4 <= len(content) and any(content[at : at + _RECORD.size]):
        transaction_id, _, _, partition, _, _, length, data_crc = _RECORD.unpack_from(content, at)
        end = at + _RECORD.size + length
        if length < 0 or end + 4 > len(content) or transaction_id != expected or partition != partition_id:
            raise ValueError(f"{path}: no record {expected} at byte {at}")
        data = content[at + _RECORD.size : end]
        (record_crc,) = struct.unpack_from(">I", content, end)
        if zlib.crc32(data) != data_crc or zlib.crc32(content[at:end]) != record_crc:
            raise ValueError(f"{path}: record {expected} at byte {at} has a wrong checksum")
        yield transaction_id, content[at : end + 4]
        at, expected = end + 4, expected + 1


def partition_digest(directory: Path, partition_id: int, high_water_mark: int) -> str | None:
    """SHA-256 of the records 0 to ``high_water_mark``; None if the directory does not hold all of them."""
    digest = hashlib.sha256()
    next_id = 0
    for segment in sorted((directory / str(partition_id)).glob("*.seg")):
        for transaction_id, record in read_segment_records(segment, partition_id):
            if transaction_id != next_id or transaction_id > high_water_mark:
                break
            digest.update(record)
            next_id += 1
    return digest.hexdigest() if next_id == high_water_mark + 1 else None


def holds_committed(directories: Sequence[Path], high_water_marks: Mapping[int, int]) -> int:
    """The largest number of directories that hold every committed transaction in the same bytes."""
    contents = []
    for directory in directories:
        digests = tuple(partition_digest(directory, p, mark) for p, mark in sorted(high_water_marks.items()))
        if None not in digests:
            contents.append(digests)
    return max((contents.count(content) for content in contents), default=0)
