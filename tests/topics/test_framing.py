"""Frames of a topic port: however they are cut, whatever they are."""

from __future__ import annotations

import random
import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_ray.errors import InvalidInput, WireError
from waltz_ray.net.framer import Framer
from waltz_ray.topics.framing import (
    BLOCK_BYTES,
    HELD_FREELY,
    MAX_BLOCKS,
    MAX_REPLY_BYTES,
    TopicFrame,
    TopicFramer,
    encode_frame,
)

MESSAGES = [b"a", b"b" * BLOCK_BYTES, b"c" * (BLOCK_BYTES + 1), bytes(range(256)) * 200, b"d" * 3 * BLOCK_BYTES]
HEAD = "ff7ff4fe 00000007 00000001"


def fed(framer: Framer[TopicFrame], data: bytes, sizes: list[int]) -> list[TopicFrame]:
    """``data`` in pieces of these sizes, again and again."""
    found: list[TopicFrame] = []
    position, turn = 0, 0
    while position < len(data):
        size = sizes[turn % len(sizes)]
        found += framer.feed(data[position : position + size])
        position, turn = position + size, turn + 1
    return found


def test_t01_the_bytes_of_a_frame() -> None:
    """T01: token, serial number, number of blocks, and each block after its length, big-endian."""
    assert encode_frame(0x01020304, b"hello").hex() == "ff7ff4fe 01020304 00000001 00000005".replace(" ", "") + (
        b"hello".hex()
    )
    assert TopicFramer().feed(bytes.fromhex("ff7ff4fe 01020304 00000002 00000003 68656c 00000002 6c6f")) == [
        (0x01020304, b"hello")
    ]


def test_t04_a_long_message_has_many_blocks() -> None:
    """T04: as many as it needs, each of 8192 bytes but the last; never one of none."""
    for size, count in ((1, 1), (8191, 1), (8192, 1), (8193, 2), (16384, 2), (16385, 3)):
        frame = encode_frame(1, b"x" * size)
        assert struct.unpack_from(">I", frame, 8) == (count,)
        position = 12
        for block in range(count):
            (length,) = struct.unpack_from(">I", frame, position)
            assert length == (BLOCK_BYTES if block < count - 1 else size - (count - 1) * BLOCK_BYTES)
            position += 4 + length
        assert position == len(frame)


@pytest.mark.parametrize("sizes", [[1], [3], [12], [16], [4096], [1, 8192, 5], [65536], [1 << 30]])
def test_t04_frames_however_they_are_cut(sizes: list[int]) -> None:
    framer: Framer[TopicFrame] = TopicFramer()
    stream = b"".join([encode_frame(serial, message) for serial, message in enumerate(MESSAGES)])
    assert fed(framer, stream, sizes) == list(enumerate(MESSAGES))
    assert framer.ready
    framer.eof()


@given(
    messages=st.lists(st.tuples(st.integers(0, (1 << 32) - 1), st.binary(min_size=1, max_size=20_000)), max_size=4),
    sizes=st.lists(st.integers(1, 10_000), min_size=1, max_size=5),
)
def test_t03_serials_come_as_they_went(messages: list[tuple[int, bytes]], sizes: list[int]) -> None:
    """T03: whatever they are, and in whatever order; nothing is looked for in them."""
    stream = b"".join([encode_frame(serial, message) for serial, message in messages])
    assert fed(TopicFramer(), stream, sizes) == messages


def test_blocks_of_any_length() -> None:
    """T04: the Python client sends a block for each part of a message, and an empty one does no harm."""
    frame = bytes.fromhex("ff7ff4fe 00000007 00000004 00000001 61 00000000 00000002 6263 00000001 64")
    for sizes in ([1], [5], [100]):
        assert fed(TopicFramer(), frame, sizes) == [(7, b"abcd")]


def test_a_message_of_20_mib() -> None:
    message = random.Random(1).randbytes(20 << 20)
    frame = encode_frame(9, message)
    framer = TopicFramer()
    began = time.process_time()
    assert fed(framer, frame, [65536]) == [(9, message)]
    assert time.process_time() - began < 5  # it takes milliseconds; what copies all of it each time takes minutes


# ---- nonsense -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [[1], [1000]])
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("474554202f", "this is not the protocol of topics, it begins with b'"),
        ("ff7ff4ff 00000007 00000001", "this is not the protocol of topics"),
        ("fe", "this is not the protocol of topics"),
        ("ff7ff4fe 00000007 00000000", "a frame of 0 blocks is impossible here, it has 1 to 3584"),
        ("ff7ff4fe 00000007 00000e01", "a frame of 3585 blocks is impossible here"),
        ("ff7ff4fe 00000007 ffffffff", "a frame of 4294967295 blocks is impossible here"),
        ("ff7ff4fe 00000007 00000001 00002001", "a block of 8193 bytes is impossible here, 8192 are the most"),
        ("ff7ff4fe 00000007 00000002 00000001 61 80000000", "a block of 2147483648 bytes is impossible here"),
    ],
)
def test_t02_what_is_no_frame_ends_the_connection(content: str, problem: str, sizes: list[int]) -> None:
    """T02, D13: at once, by what is there, and nothing is made of it."""
    framer = TopicFramer()
    with pytest.raises(WireError) as caught:
        fed(framer, bytes.fromhex(content), sizes)
    assert problem in str(caught.value)
    assert not framer.ready
    with pytest.raises(WireError, match=r"impossible|not the protocol"):
        framer.feed(encode_frame(1, b"whole"))


def test_t02_frames_before_what_is_wrong_are_whole() -> None:
    """T02: they are given out once, then the error."""
    framer = TopicFramer()
    assert framer.feed(encode_frame(1, b"good") + b"GET /") == [(1, b"good")]
    assert "not the protocol of topics" in str(framer.error)
    framer.eof()  # that it ended there is not what is wrong
    with pytest.raises(WireError, match="not the protocol of topics"):
        framer.feed(b"")


def test_d13_how_many_blocks_there_may_be() -> None:
    """D13: up to 28 MiB in; a reply for a C++ client is shorter."""
    frame = struct.pack(">III", 0xFF7FF4FE, 5, MAX_BLOCKS) + b"\0\0\0\1x" * MAX_BLOCKS
    assert TopicFramer().feed(frame) == [(5, b"x" * MAX_BLOCKS)]
    assert len(encode_frame(1, bytes(MAX_REPLY_BYTES), most_blocks=1024)) == MAX_REPLY_BYTES + 12 + 4 * 1024
    with pytest.raises(InvalidInput, match="a message of 8388609 bytes cannot be sent, it has 1 to 8388608"):
        encode_frame(1, bytes(MAX_REPLY_BYTES + 1), most_blocks=1024)
    with pytest.raises(InvalidInput, match="a message of 29360129 bytes cannot be sent"):
        encode_frame(1, bytes(MAX_BLOCKS * BLOCK_BYTES + 1))


def test_what_cannot_be_sent() -> None:
    with pytest.raises(InvalidInput, match="a message of 0 bytes cannot be sent"):
        encode_frame(1, b"")
    for serial in (-1, 1 << 32):
        with pytest.raises(InvalidInput, match="a serial number has 32 bits"):
            encode_frame(serial, b"x")


@pytest.mark.parametrize("end", [1, 11, 12, 15, 20])
def test_an_end_inside_a_frame(end: int) -> None:
    framer = TopicFramer()
    assert framer.feed(encode_frame(1, b"hello")[:end]) == []
    with pytest.raises(WireError, match="the peer closed the connection inside a frame"):
        framer.eof()


def test_an_end_between_blocks() -> None:
    framer = TopicFramer()
    assert framer.feed(encode_frame(1, bytes(3 * BLOCK_BYTES))[: 12 + 4 + BLOCK_BYTES]) == []
    with pytest.raises(WireError, match="inside a frame, 2 blocks before its end"):
        framer.eof()


@pytest.mark.parametrize("seed", range(4))
def test_damaged_streams(seed: int) -> None:
    """They give frames or a WireError, however they are cut, and the same whatever the cuts are."""
    chance = random.Random(seed)
    for _ in range(150):
        stream = bytearray(b"".join([encode_frame(serial, message) for serial, message in enumerate(MESSAGES[:3])]))
        for _ in range(chance.randrange(1, 4)):
            where = chance.choice((chance.randrange(40), chance.randrange(len(stream))))
            stream[where] ^= 1 << chance.randrange(8)
        outcomes = []
        for sizes in ([1 << 20], [chance.randrange(1, 9000), chance.randrange(1, 40)]):
            framer = TopicFramer()
            found: list[TopicFrame] = []
            for piece in _pieces(bytes(stream), sizes):
                if framer.error is None:
                    found += _frames(framer, piece)
            outcomes.append((found, str(framer.error)))
        assert outcomes[0] == outcomes[1]


def _pieces(stream: bytes, sizes: list[int]) -> list[bytes]:
    found: list[bytes] = []
    position = 0
    while position < len(stream):
        size = sizes[len(found) % len(sizes)]
        found.append(stream[position : position + size])
        position += size
    return found


def _frames(framer: TopicFramer, piece: bytes) -> list[TopicFrame]:
    try:
        return framer.feed(piece)
    except WireError:
        return []


# ---- room ---------------------------------------------------------------------------------------------------


class Rooms:
    """What a framer holds, and has asked for."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0

    def __call__(self, size: int) -> bool:
        if size <= self.most:
            self.held = size
        return size <= self.most


def test_room_is_asked_for_and_given_back() -> None:
    rooms = Rooms(1 << 20)
    framer = TopicFramer(room=rooms)
    frame = encode_frame(1, bytes(40 * BLOCK_BYTES))
    assert framer.feed(frame[:-1]) == []
    assert HELD_FREELY < rooms.held < len(frame)
    assert framer.feed(frame[-1:]) == [(1, bytes(40 * BLOCK_BYTES))]
    assert rooms.held == 0


@pytest.mark.parametrize("size", [700, 30_000, 1 << 20])
def test_without_room_a_message_is_dropped_as_it_comes(size: int) -> None:
    """Its frame is still known, and what follows is read."""
    rooms = Rooms(100_000)
    framer = TopicFramer(room=rooms)
    stream = encode_frame(1, bytes(300 * BLOCK_BYTES)) + encode_frame(2, b"next")
    found = fed(framer, stream, [size])
    assert found == [(1, None), (2, b"next")] or (size > len(stream) and found[0][1] is not None)
    assert rooms.held == 0


def test_a_small_message_needs_no_room() -> None:
    rooms = Rooms(0)
    assert fed(TopicFramer(room=rooms), encode_frame(1, bytes(HELD_FREELY)), [1000]) == [(1, bytes(HELD_FREELY))]


def test_room_is_given_back_when_the_rest_is_wrong() -> None:
    rooms = Rooms(1 << 20)
    framer = TopicFramer(room=rooms)
    frame = encode_frame(1, bytes(40 * BLOCK_BYTES))
    framer.feed(frame[: 12 + 20 * (4 + BLOCK_BYTES)])
    assert rooms.held == 20 * BLOCK_BYTES
    with pytest.raises(WireError, match="a block of"):
        framer.feed(b"\xff" * 4)
    assert rooms.held == 0
