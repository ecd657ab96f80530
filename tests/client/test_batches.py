"""What goes into a frame: taken from the outbox within the limits, the same bytes by either way of writing them."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_ray.client.outbox import Outbox
from waltz_ray.client.requests import Append, Batch, ManyAppend, Part, Slice
from waltz_ray.config import ClientConfig
from waltz_ray.errors import WireError
from waltz_ray.protocol.records import AppendBatch
from waltz_ray.wire.append_writer import append_head
from waltz_ray.wire.codec import decode_client, encode_client

INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
HASHES = st.lists(INT32, max_size=3)


def many(datas: list[bytes], header: int = 0) -> ManyAppend:
    return ManyAppend(
        b"".join(datas),
        np.full(len(datas), header, dtype=np.int32),
        np.array([zlib.crc32(data) for data in datas], dtype=np.uint32),
        np.array([len(data) for data in datas], dtype=np.int32),
    )


@st.composite
def appends(draw: st.DrawFn) -> Append:
    data = draw(st.binary(max_size=40))
    append = Append(data, draw(INT32), zlib.crc32(data))
    if draw(st.booleans()):
        append.take_locks(draw(st.integers(-1, (1 << 63) - 1)), (draw(HASHES), draw(HASHES), draw(HASHES)))
    return append


@st.composite
def slices(draw: st.DrawFn) -> Slice:
    append = many(draw(st.lists(st.binary(max_size=20), min_size=1, max_size=6)), draw(INT32))
    start = draw(st.integers(0, append.count - 1))
    return Slice(append, start, draw(st.integers(start + 1, append.count)))


def batch_of(entries: list[Append | Slice]) -> Batch:
    count = sum(1 if isinstance(one, Append) else one.end - one.start for one in entries)
    return Batch(entries, count, all(isinstance(one, Append) for one in entries))


def decoded(batch: Batch, first_sequence: int) -> AppendBatch:
    message = decode_client(5, b"".join(batch.encode((7, 2, 3), first_sequence)))
    assert isinstance(message, AppendBatch)
    return message


@given(
    st.lists(appends(), min_size=1, max_size=6),
    st.one_of(st.integers(0, 100), st.integers((1 << 31) - 3, (1 << 31) + 3), st.integers((1 << 32) - 3, 1 << 33)),
)
def test_plain_and_packed_bytes_are_equal(entries: list[Append], first_sequence: int) -> None:
    batch = batch_of([*entries])
    columns = batch._columns((7, 2, 3), first_sequence)
    assert b"".join(batch.encode((7, 2, 3), first_sequence)) == b"".join(encode_client(5, columns))


@given(st.lists(st.one_of(appends(), slices()), min_size=1, max_size=6), st.integers(0, 1000))
def test_every_record_arrives(entries: list[Append | Slice], first_sequence: int) -> None:
    batch = batch_of(entries)
    message = decoded(batch, first_sequence)
    assert message.sequence_numbers.tolist() == list(range(first_sequence, first_sequence + batch.count))
    ends = np.cumsum(message.lengths).tolist()
    index = 0
    for part in batch.parts(0, batch.count, 0):
        for position in range(part.start, part.start + part.size):
            data = bytes(message.body[ends[index] - int(message.lengths[index]) : ends[index]])
            append = part.append
            if isinstance(append, ManyAppend):
                expected = append.data[int(append.offsets[position]) : int(append.offsets[position + 1])]
                assert message.headers[index] == append.headers[position]
                assert not len(message.write_locks.of(index))
            else:
                expected = append.data
                locks = append.locks or ((), (), ())
                assert (message.headers[index], message.client_marks[index]) == (append.header, append.mark)
                assert message.write_locks.of(index).tolist() == list(locks[0])
                assert message.read_locks.of(index).tolist() == list(locks[1])
                assert message.append_locks.of(index).tolist() == list(locks[2])
            assert data == expected
            assert message.checksums[index] == zlib.crc32(data)
            index += 1
    assert index == batch.count


@given(st.lists(st.one_of(appends(), slices()), min_size=1, max_size=6), st.data())
def test_parts_are_what_was_asked_for(entries: list[Append | Slice], data: st.DataObject) -> None:
    batch = batch_of(entries)
    everything = [
        (part.append, part.start + i, part.offset + i)
        for part in batch.parts(0, batch.count, 0)
        for i in range(part.size)
    ]
    assert [offset for _, _, offset in everything] == list(range(batch.count))
    start = data.draw(st.integers(0, batch.count - 1))
    size = data.draw(st.integers(1, batch.count - start))
    found = [
        (part.append, part.start + i, part.offset + i - 10 + start)
        for part in batch.parts(start, size, 10)
        for i in range(part.size)
    ]
    assert found == everything[start : start + size]


def test_a_part_can_be_sent_again() -> None:
    single, group = Append(b"x", 0, 0), many([b"a", b"b", b"c"])
    assert Part(single, 0, 1, 5).entry is single
    assert Part(group, 1, 2, 5).entry == Slice(group, 1, 3)


def test_a_number_that_does_not_fit() -> None:
    with pytest.raises(WireError, match="cannot be written"):
        append_head((1, 1, 1), [0], [0], ([1 << 31], [0], [0]))
    with pytest.raises(WireError, match="cannot be written"):
        append_head((1, 1, 1), [0, 1], [0, 1 << 63], ([0, 0], [0, 0], [0, 0]))


@given(
    st.lists(st.one_of(st.integers(0, 300), st.lists(st.integers(0, 300), min_size=1, max_size=9)), max_size=12),
    st.integers(1, 8),
    st.integers(1, 600),
)
def test_the_outbox_gives_everything_in_order_within_limits(
    shapes: list[int | list[int]], max_records: int, max_bytes: int
) -> None:
    outbox = Outbox(0, ClientConfig(), lambda: None, lambda: False)
    expected: list[tuple[Append, int]] = []
    for shape in shapes:
        append = Append(bytes(shape), 0, 0) if isinstance(shape, int) else many([bytes(size) for size in shape])
        outbox.put(append)
        expected += [(append, i) for i in range(append.count)]
    found: list[tuple[Append, int]] = []
    while (batch := outbox.take(max_records, max_bytes)) is not None:
        assert 0 < batch.count <= max_records
        assert batch.count == 1 or sum(one.size_bytes for one in batch.entries) <= max_bytes
        assert batch.plain == all(isinstance(one, Append) for one in batch.entries)
        found += [(part.append, part.start + i) for part in batch.parts(0, batch.count, 0) for i in range(part.size)]
    assert found == expected
    assert outbox.take(0, max_bytes) is None
