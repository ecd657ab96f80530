"""Packed records against the layout of docs/formats.md, "Segment", written out by hand with struct."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import crcmod.predefined
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import waltz_ray.protocol.records as records_module
from waltz_ray.protocol.records import (
    RECORD_HEADER_BYTES,
    RECORD_OVERHEAD_BYTES,
    LockColumns,
    RecordBatch,
    bad_data,
    build_records,
    first_bad_record,
    offsets_of,
    split,
)

DATAS = st.lists(st.binary(max_size=40), min_size=1, max_size=12)


def changed(batch: RecordBatch, **fields: Any) -> RecordBatch:
    """``batch`` with other constructor arguments."""
    given = {name: getattr(batch, name) for name in ("partition_id", "first_id", "lengths", "records")}
    return RecordBatch(**{**given, **fields})


def build(datas: list[bytes], first_id: int = 7, partition_id: int = 3) -> RecordBatch:
    count = len(datas)
    columns = (
        np.arange(100, 100 + count, dtype=np.int32),
        np.arange(-2, count - 2, dtype=np.int32),
        np.array([len(d) for d in datas], dtype=np.int32),
        np.array([zlib.crc32(d) for d in datas], dtype=np.uint32),
    )
    return build_records(partition_id, first_id, 11, 5, columns, b"".join(datas))


def by_hand(transaction_id: int, number: int, header: int, data: bytes, partition_id: int = 3) -> bytes:
    head = struct.pack(">qiiiiiiI", transaction_id, 11, 5, partition_id, number, header, len(data), zlib.crc32(data))
    return head + data + struct.pack(">I", zlib.crc32(head + data))


@given(DATAS)
@settings(max_examples=60)
def test_record_bytes_are_those_of_the_segment(datas: list[bytes]) -> None:
    batch = build(datas)
    expected = [by_hand(7 + i, 100 + i, i - 2, data) for i, data in enumerate(datas)]
    assert batch.records == b"".join(expected)
    assert batch.lengths.tolist() == [len(record) for record in expected]
    assert [bytes(d) for d in batch.datas()] == datas
    assert [bytes(batch.data(i)) for i in range(len(datas))] == datas
    assert (batch.first_id, batch.last_id, batch.end_id) == (7, 6 + len(datas), 7 + len(datas))
    assert batch.size_bytes == sum(len(d) + RECORD_OVERHEAD_BYTES for d in datas)
    assert first_bad_record(batch) == -1


def test_the_checksum_is_crcmods_crc_32() -> None:
    reference = crcmod.predefined.mkPredefinedCrcFun("crc-32")
    record = by_hand(0, 1, 2, b"some data")
    assert reference(b"some data") == int.from_bytes(record[32:36], "big")
    assert reference(record[:-4]) == int.from_bytes(record[-4:], "big")


@given(DATAS, st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**62))
@settings(max_examples=60)
def test_columns_come_back_as_they_went_in(datas: list[bytes], client_id: int, first_id: int) -> None:
    count = len(datas)
    clients = np.full(count, client_id, dtype=np.int32)
    generations = np.arange(count, dtype=np.int32)
    columns = (
        np.full(count, -5, dtype=np.int32),
        np.full(count, -(2**31), dtype=np.int32),
        np.array([len(d) for d in datas], dtype=np.int32),
        np.array([zlib.crc32(d) for d in datas], dtype=np.uint32),
    )
    fields = build_records(0, first_id, clients, generations, columns, b"".join(datas)).fields
    assert fields["transaction_id"].tolist() == list(range(first_id, first_id + count))
    assert fields["client_id"].tolist() == [client_id] * count
    assert fields["generation"].tolist() == list(range(count))
    assert fields["sequence_number"].tolist() == [-5] * count
    assert fields["header"].tolist() == [-(2**31)] * count
    assert fields["data_checksum"].tolist() == [zlib.crc32(d) for d in datas]


@given(DATAS, st.data())
@settings(max_examples=60)
def test_a_slice_is_the_same_records(datas: list[bytes], data: st.DataObject) -> None:
    batch = build(datas)
    start = data.draw(st.integers(0, len(datas) - 1))
    end = data.draw(st.integers(start + 1, len(datas)))
    part = batch.slice(start, end)
    assert part.first_id == 7 + start
    assert [bytes(d) for d in part.datas()] == datas[start:end]
    assert first_bad_record(part) == -1
    assert [bytes(d) for d in batch.since(7 + start).datas()] == datas[start:]
    assert batch.since(0) is batch


@pytest.fixture(params=[0, 1 << 30], ids=["columns", "one by one"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_module, "_FEW_TO_CHECK", request.param)


@pytest.mark.usefixtures("either_way")
@given(DATAS, st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_flipped_bit_is_found_where_it_is(datas: list[bytes], data: st.DataObject) -> None:
    batch = build(datas)
    position = data.draw(st.integers(0, batch.size_bytes - 1))
    damaged = bytearray(batch.records)
    damaged[position] ^= 1 << data.draw(st.integers(0, 7))
    record = int(np.searchsorted(batch.offsets, position, side="right")) - 1
    assert first_bad_record(changed(batch, records=bytes(damaged))) == record


@pytest.mark.usefixtures("either_way")
def test_records_of_another_place_are_bad_although_their_checksum_is_right() -> None:
    batch = build([b"a", b"b", b"c"])
    assert first_bad_record(changed(batch, first_id=8)) == 0
    assert first_bad_record(changed(batch, partition_id=4)) == 0
    assert first_bad_record(changed(batch, records=batch.records[:-1])) == 0
    assert first_bad_record(changed(batch, lengths=np.array([41, 40, 42], dtype=np.int32))) == 1
    assert first_bad_record(changed(batch, lengths=np.array([41, 82], dtype=np.int32))) == 1
    assert first_bad_record(changed(batch, lengths=np.array([41, 41, 39, 2], dtype=np.int32))) == 0
    assert first_bad_record(RecordBatch(0, 0, np.zeros(0, dtype=np.int32), b"")) == -1


def test_bad_data_is_found_before_it_is_taken_in() -> None:
    lengths = np.array([1, 0, 2], dtype=np.int32)
    checksums = np.array([zlib.crc32(d) for d in (b"a", b"", b"bc")], dtype=np.uint32)
    assert bad_data(split(b"abc", lengths), checksums) == []
    assert bad_data(split(b"abd", lengths), checksums) == [2]
    assert bad_data(split(memoryview(b"xbd"), lengths), checksums) == [0, 2]


def test_overhead() -> None:
    assert (RECORD_HEADER_BYTES, RECORD_OVERHEAD_BYTES) == (36, 40)
    assert offsets_of(np.array([3, 0, 2], dtype=np.int32)).tolist() == [0, 3, 3, 5]


@pytest.mark.parametrize("locks", [[], [[]], [[], [], []], [[1], [], [2, -3]], [[], [7]]])
def test_lock_columns(locks: list[list[int]]) -> None:
    columns = LockColumns.pack(locks)
    assert [columns.of(i).tolist() for i in range(len(locks))] == locks
