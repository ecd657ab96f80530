"""What goes into a frame: taken from the outbox within the limits, the same bytes by either way of writing them."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_ray.client.futures import LightFuture
from waltz_ray.client.outbox import Bell, Outbox
from waltz_ray.client.requests import AppendCall, ManyAppend, Sending, Unsent, unsent
from waltz_ray.config import ClientConfig
from waltz_ray.errors import ClientClosed, PartlyAppended, WireError
from waltz_ray.protocol.client_monitor import Piece
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
def appends(draw: st.DrawFn) -> AppendCall:
    data = draw(st.binary(max_size=40))
    append = AppendCall(data, draw(INT32), zlib.crc32(data))
    if draw(st.booleans()):
        append.take_locks(draw(st.integers(-1, (1 << 63) - 1)), (draw(HASHES), draw(HASHES), draw(HASHES)))
    return append


@st.composite
def pieces(draw: st.DrawFn) -> Piece[ManyAppend]:
    append = many(draw(st.lists(st.binary(max_size=20), min_size=1, max_size=6)), draw(INT32))
    if draw(st.booleans()):
        append.take_locks(draw(st.integers(-1, 1 << 62)), ([draw(INT32)], (), ()))
    start = draw(st.integers(0, append.count - 1))
    return Piece(append, start, draw(st.integers(1, append.count - start)), 0)


def batch_of(parts: list[Unsent]) -> Sending:
    count = sum(1 if isinstance(one, AppendCall) else one.size for one in parts)
    return Sending(parts, count, all(isinstance(one, AppendCall) for one in parts))


def bytes_of(one: Unsent) -> int:
    return one.size_bytes if isinstance(one, AppendCall) else one.token.size_of(one.start, one.size)


def decoded(batch: Sending, first_sequence: int) -> AppendBatch:
    message = decode_client(5, b"".join(batch.encode((7, 2, 3), first_sequence)))
    assert isinstance(message, AppendBatch)
    return message


@given(
    st.lists(appends(), min_size=1, max_size=6),
    st.one_of(st.integers(0, 100), st.integers((1 << 31) - 3, (1 << 31) + 3), st.integers((1 << 32) - 3, 1 << 33)),
)
def test_plain_and_packed_bytes_are_equal(parts: list[AppendCall], first_sequence: int) -> None:
    batch = batch_of([*parts])
    columns = batch._columns((7, 2, 3), first_sequence)
    assert b"".join(batch.encode((7, 2, 3), first_sequence)) == b"".join(encode_client(5, columns))


@given(st.lists(st.one_of(appends(), pieces()), min_size=1, max_size=6), st.integers(0, 1000))
def test_every_record_arrives(parts: list[Unsent], first_sequence: int) -> None:
    batch = batch_of(parts)
    message = decoded(batch, first_sequence)
    assert message.sequence_numbers.tolist() == list(range(first_sequence, first_sequence + batch.count))
    ends = np.cumsum(message.lengths).tolist()
    index = 0
    for piece in batch.pieces_of(0, batch.count, 0):
        for position in range(piece.start, piece.start + piece.size):
            data = bytes(message.body[ends[index] - int(message.lengths[index]) : ends[index]])
            append = piece.token
            if isinstance(append, ManyAppend):
                expected = append.data[int(append.offsets[position]) : int(append.offsets[position + 1])]
                assert message.headers[index] == append.headers[position]
                assert message.write_locks.of(index).tolist() == (list(append.locks[0]) if append.locks else [])
                assert message.client_marks[index] == (append.mark + position if append.locks else -1)
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


@given(st.lists(st.one_of(appends(), pieces()), min_size=1, max_size=6), st.data())
def test_parts_are_what_was_asked_for(parts: list[Unsent], data: st.DataObject) -> None:
    batch = batch_of(parts)
    everything = [
        (piece.token, piece.start + i, piece.offset + i)
        for piece in batch.pieces_of(0, batch.count, 0)
        for i in range(piece.size)
    ]
    assert [offset for _, _, offset in everything] == list(range(batch.count))
    start = data.draw(st.integers(0, batch.count - 1))
    size = data.draw(st.integers(1, batch.count - start))
    found = [
        (piece.token, piece.start + i, piece.offset + i - 10 + start)
        for piece in batch.pieces_of(start, size, 10)
        for i in range(piece.size)
    ]
    assert found == everything[start : start + size]


def test_a_part_can_be_sent_again() -> None:
    single, group = AppendCall(b"x", 0, 0), many([b"a", b"b", b"c"])
    assert unsent(Piece(single, 0, 1, 5)) is single
    assert unsent(Piece(group, 1, 2, 5)) == Piece(group, 1, 2, 0)


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
    rung: list[int] = []
    outbox = Outbox(0, ClientConfig(), lambda: 0.0, Bell(lambda look: look(), lambda: rung.append(1)))
    expected: list[tuple[AppendCall, int]] = []
    for shape in shapes:
        append = AppendCall(bytes(shape), 0, 0) if isinstance(shape, int) else many([bytes(size) for size in shape])
        assert outbox.offer(append)
        expected += [(append, i) for i in range(append.count)]
    found: list[tuple[AppendCall, int]] = []
    assert len(rung) == bool(shapes)  # once, for nobody has looked yet
    while (batch := outbox.take(max_records, max_bytes)) is not None:
        assert 0 < batch.count <= max_records
        assert batch.count == 1 or sum(bytes_of(one) for one in batch.pieces) <= max_bytes
        assert batch.plain == all(isinstance(one, AppendCall) for one in batch.pieces)
        found += [
            (piece.token, piece.start + i) for piece in batch.pieces_of(0, batch.count, 0) for i in range(piece.size)
        ]
    assert found == expected
    assert outbox.take(0, max_bytes) is None


def test_many_that_end_in_an_error_say_which_are_in_the_log() -> None:
    append = many([b"a", b"b", b"c"])
    assert not append.committed(1, np.array([7]))
    append.fail(ClientClosed("the client was closed"))
    assert isinstance(append.future, LightFuture)
    error = append.future.exception()
    assert isinstance(error, PartlyAppended)
    assert error.transaction_ids == (-1, 7, -1)
    assert str(error) == (
        "1 of 3 records are in the log (transactions 7 to 7), the others are not known to be: the client was closed"
    )
