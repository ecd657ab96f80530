"""A reader of storage directories written from docs/formats.md alone: it shares no code with ``waltz_ray``.

What it cannot find out is missing on that page.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from typing import NamedTuple

Files = Mapping[str, bytes]  # path below the storage directory -> content

OURS, ORIGINAL = (60, 24), (76, 32)  # bytes of an entry, bytes of a slot before its crc


class Entry(NamedTuple):
    session_id: int
    low_water_mark: int
    local_low_water_mark: int


def control_entries(files: Files) -> list[Entry | None]:
    """Of each partition the entry in force, None if neither slot has a right crc."""
    raw = files["waltz-storage.ctl"]
    version, created_ms, _key, count = struct.unpack_from(">iq16si", raw)
    assert version == 0
    assert created_ms > 0
    assert not any(raw[32:128])
    fitting = [layout for layout in (OURS, ORIGINAL) if 128 + count * layout[0] <= len(raw)]
    read = {layout: [_slots(raw, 128 + p * layout[0], p, layout) for p in range(count)] for layout in fitting}

    def rank(layout: tuple[int, int]) -> tuple[int, bool]:
        return sum(map(len, read[layout])), 128 + count * layout[0] == len(raw)

    return [max(slots)[1] if slots else None for slots in read[max(fitting, key=rank)]]


def _slots(raw: bytes, at: int, p: int, layout: tuple[int, int]) -> list[tuple[tuple[int, ...], Entry]]:
    """(what decides which is current, entry) of the slots with a right crc."""
    found = []
    size = layout[1]
    for start in (at + 4, at + 4 + size + 4):
        content = raw[start : start + size]
        if zlib.crc32(content) != struct.unpack_from(">I", raw, start + size)[0]:
            continue
        assert struct.unpack_from(">i", raw, at)[0] == p
        entry = Entry(*struct.unpack_from(">qqq", content))
        order = entry[:2] if layout == OURS else struct.unpack_from(">i", content, 28)
        found.append((order, entry))
    return found


def with_journal(files: Files) -> dict[str, bytes]:
    """The files with every entry of the journal where it belongs."""
    whole = {path: bytearray(content) for path, content in files.items()}
    numbered = []
    for name in ("waltz-journal.0", "waltz-journal.1"):
        raw = files.get(name, b"")
        if len(raw) < 64 or zlib.crc32(raw[:28]) != struct.unpack_from(">I", raw, 28)[0]:
            continue
        version, key, number = struct.unpack_from(">i16sq", raw)
        if version == 0 and key == files["waltz-storage.ctl"][12:28] and not any(raw[32:64]):
            numbered.append((number, raw))
    for number, raw in sorted(numbered):
        at = 64
        while at + 36 <= len(raw):
            found, p, first_id, offset, length, crc = struct.unpack_from(">qiqqiI", raw, at)
            data = raw[at + 36 : at + 36 + length] if length > 0 else b""
            if found != number or len(data) != length or not data or zlib.crc32(raw[at : at + 32] + data) != crc:
                break
            segment = whole.get(f"{p}/{first_id:019d}.seg")
            if segment is not None:
                segment.extend(bytes(max(0, offset - len(segment))))
                segment[offset : offset + length] = data
            at += 36 + length
    return {path: bytes(content) for path, content in whole.items()}


def beginning_of(files: Files, p: int) -> tuple[int, bool]:
    """(the ID of the log's first record, whether it is empty)."""
    raw = files.get(f"{p}/trimmed")
    if raw is None:
        return 0, False
    version, key, partition, first_id, empty, crc = struct.unpack(">i16siqiI", raw)
    assert (version, key, partition) == (0, files["waltz-storage.ctl"][12:28], p)
    assert zlib.crc32(raw[:36]) == crc
    return first_id, bool(empty)


def records_of(files: Files, p: int) -> list[bytes]:
    """The data of the partition's records, from transaction 0 to the last whole one; b"trimmed away" for what is
    before the log's first."""
    begin, empty = beginning_of(files, p)
    found = [b"trimmed away"] * begin
    segments = sorted(path for path in files if path.startswith(f"{p}/") and path.endswith(".seg"))
    for path in [] if empty else segments:
        raw = files[path]
        first_id = int(path.removeprefix(f"{p}/").removesuffix(".seg"))
        if first_id < begin:
            continue
        if first_id != len(found) or len(raw) < 128:
            break
        header = struct.unpack_from(">iq16siq", raw)
        assert (header[0], header[2]) == (0, files["waltz-storage.ctl"][12:28])
        assert header[3:] == (p, first_id)
        assert not any(raw[40:128])
        at = 128
        while (data := _record(raw, at, p, len(found))) is not None:
            found.append(data)
            at += 40 + len(data)
    return found


def _record(raw: bytes, at: int, p: int, transaction_id: int) -> bytes | None:
    if at + 40 > len(raw):
        return None
    fields = struct.unpack_from(">q6iI", raw, at)
    length = fields[6]
    if not any(raw[at : at + 36]) or fields[0] != transaction_id or fields[3] != p or length < 0:
        return None
    end = at + 36 + length
    if end + 4 > len(raw) or zlib.crc32(raw[at:end]) != struct.unpack_from(">I", raw, end)[0]:
        return None
    data = raw[at + 36 : end]
    assert zlib.crc32(data) == fields[7]
    return data


def index_of(files: Files, p: int, first_id: int) -> list[int]:
    """The byte offsets in an index."""
    raw = files[f"{p}/{first_id:019d}.idx"]
    assert raw[:128] == files[f"{p}/{first_id:019d}.seg"][:128]
    return [offset for (offset,) in struct.iter_unpack(">q", raw[128 : len(raw) - len(raw) % 8])]
