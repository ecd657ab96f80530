"""The independent reader against bytes the storage layer writes, and against damage."""

from __future__ import annotations

import shutil
import struct
import zlib
from pathlib import Path

import pytest

from waltz_ray.demo.segments import holds_committed, partition_digest, read_segment_records

KEY = bytes(range(16))


def record(transaction_id: int, data: bytes, partition_id: int = 0) -> bytes:
    head = struct.pack(">qiiiiiiI", transaction_id, 7, 1, partition_id, transaction_id, 0, len(data), zlib.crc32(data))
    return head + data + struct.pack(">I", zlib.crc32(head + data))


def write_segment(directory: Path, first_id: int, records: list[bytes], zeros: int = 0, partition_id: int = 0) -> Path:
    folder = directory / str(partition_id)
    folder.mkdir(parents=True, exist_ok=True)
    header = struct.pack(">iq16siq88x", 0, 1_700_000_000_000, KEY, partition_id, first_id)
    path = folder / f"{first_id:019}.seg"
    path.write_bytes(header + b"".join(records) + bytes(zeros))
    return path


def three_replicas(root: Path) -> list[Path]:
    replicas = [root / f"replica-{n}" for n in range(3)]
    for n, replica in enumerate(replicas):
        write_segment(replica, 0, [record(0, b"a"), record(1, b"bc")])
        write_segment(replica, 2, [record(2, b""), record(3, b"d" * 100)], zeros=1000 * n)
    return replicas


def test_reads_records_up_to_the_zeros(tmp_path: Path) -> None:
    path = write_segment(tmp_path, 5, [record(5, b"x"), record(6, b"y")], zeros=4096)
    assert list(read_segment_records(path, 0)) == [(5, record(5, b"x")), (6, record(6, b"y"))]


def test_three_replicas_agree_whatever_is_behind_the_mark(tmp_path: Path) -> None:
    replicas = three_replicas(tmp_path)
    write_segment(replicas[1], 2, [record(2, b""), record(3, b"d" * 100), record(4, b"not committed")])
    assert holds_committed(replicas, {0: 3}) == 3
    assert holds_committed(replicas, {0: -1}) == 3


def test_a_replica_that_lacks_the_last_record_does_not_hold_all(tmp_path: Path) -> None:
    replicas = three_replicas(tmp_path)
    write_segment(replicas[0], 2, [record(2, b"")])
    assert holds_committed(replicas, {0: 3}) == 2
    shutil.rmtree(replicas[1] / "0")
    assert holds_committed(replicas, {0: 3}) == 1
    assert partition_digest(replicas[1], 0, 3) is None


def test_different_bytes_do_not_count_as_the_same(tmp_path: Path) -> None:
    replicas = three_replicas(tmp_path)
    write_segment(replicas[0], 2, [record(2, b""), record(3, b"e" * 100)])
    write_segment(replicas[1], 2, [record(2, b""), record(3, b"f" * 100)])
    assert holds_committed(replicas, {0: 3}) == 1


def test_every_flipped_byte_of_the_records_is_noticed(tmp_path: Path) -> None:
    path = write_segment(tmp_path, 0, [record(0, b"hello"), record(1, b"world")])
    good = path.read_bytes()
    for position in range(128, len(good)):
        path.write_bytes(good[:position] + bytes([good[position] ^ 0x40]) + good[position + 1 :])
        with pytest.raises(ValueError, match="record"):
            list(read_segment_records(path, 0))


def test_a_header_of_another_partition_is_refused(tmp_path: Path) -> None:
    path = write_segment(tmp_path, 0, [record(0, b"x")])
    with pytest.raises(ValueError, match="header"):
        list(read_segment_records(path, 1))
