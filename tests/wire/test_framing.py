"""Frames and HELLO: every way to cut a stream, and every header that must not pass."""

from __future__ import annotations

import random
import re
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire.helpers import fuzz
from waltz_ray.errors import WireError
from waltz_ray.wire.framing import (
    FRAME_HEADER_BYTES,
    MAGIC_AUTHENTICATION,
    MAGIC_CLIENT,
    MAGIC_HELLO,
    MAGIC_REPLICA,
    MAX_HELLO_BYTES,
    Frame,
    FrameDecoder,
    GreetedDecoder,
    Hello,
    cluster_meant,
    decode_hello,
    encode_frame,
    encode_hello,
    frame_header,
    meaning_cluster,
    negotiate,
)

KEEP_ALIVE = encode_frame(MAGIC_CLIENT, 5)
STREAM = (
    encode_hello(Hello((4, 5), "client 7"))
    + KEEP_ALIVE
    + encode_frame(MAGIC_CLIENT, 5, b"one", b"", b" frame")
    + encode_frame(MAGIC_CLIENT, 4, b"x")
    + KEEP_ALIVE
)


def _seen(frames: list[Frame]) -> list[tuple[int, int, bytes]]:
    return [(frame.magic, frame.version, bytes(frame.payload)) for frame in frames]


EXPECTED = _seen(FrameDecoder(100).feed(STREAM))


def test_golden_bytes() -> None:
    assert frame_header(MAGIC_REPLICA, 1, 0x01020304) == bytes.fromhex("52 0001 01020304")
    assert encode_frame(MAGIC_CLIENT, 5, b"ab", memoryview(b"c")) == bytes.fromhex("4c 0005 00000003 616263")
    assert bytes.fromhex("4c 0005 00000000") == KEEP_ALIVE
    hello = bytes.fromhex("48 0000 0000000c 00000002 0004 0005 00000000")
    assert encode_hello(Hello((4, 5), "")) == hello
    assert encode_hello(Hello((1,), "é"))[FRAME_HEADER_BYTES:] == bytes.fromhex("00000001 0001 00000002 c3a9")


def test_keep_alives_are_skipped_and_frames_come_in_order() -> None:
    assert [(magic, version) for magic, version, _ in EXPECTED] == [
        (MAGIC_HELLO, 0),
        (MAGIC_CLIENT, 5),
        (MAGIC_CLIENT, 4),
    ]
    assert EXPECTED[1][2] == b"one frame"


@pytest.mark.parametrize("first", range(len(STREAM) + 1))
def test_a_stream_may_be_cut_at_any_two_places(first: int) -> None:
    for second in range(first, len(STREAM) + 1):
        decoder = FrameDecoder(100)
        frames = decoder.feed(STREAM[:first]) + decoder.feed(STREAM[first:second]) + decoder.feed(STREAM[second:])
        assert _seen(frames) == EXPECTED
        decoder.eof()


def test_a_stream_may_come_byte_by_byte() -> None:
    decoder = FrameDecoder(100)
    frames = [frame for at in range(len(STREAM)) for frame in decoder.feed(STREAM[at : at + 1])]
    assert _seen(frames) == EXPECTED


@settings(max_examples=100)
@given(st.lists(st.binary(max_size=3000), max_size=20), st.integers(min_value=1, max_value=5000))
def test_any_frames_in_any_pieces(payloads: list[bytes], size: int) -> None:
    stream = b"".join(encode_frame(MAGIC_REPLICA, 2, payload) for payload in payloads)
    decoder = FrameDecoder(3000)
    frames = [frame for at in range(0, len(stream), size) for frame in decoder.feed(stream[at : at + size])]
    assert [bytes(frame.payload) for frame in frames] == [payload for payload in payloads if payload]
    decoder.eof()


@pytest.mark.parametrize("size", [1, 10, 40, 1000])
def test_payloads_outlive_the_buffer_they_came_in(size: int) -> None:
    """Teeth: handing out slices of the piece instead of copies fails here."""
    buffer = bytearray(size)
    decoder = FrameDecoder(100)
    frames = []
    for at in range(0, len(STREAM), size):
        piece = STREAM[at : at + size]
        buffer[: len(piece)] = piece
        frames += decoder.feed(memoryview(buffer)[: len(piece)])
        buffer[:] = b"\xee" * size
    assert _seen(frames) == EXPECTED
    assert all(frame.payload.readonly for frame in frames)


def test_a_large_frame_in_small_pieces_is_put_together() -> None:
    payload = random.Random(1).randbytes(1 << 20)
    stream = encode_frame(MAGIC_REPLICA, 2, payload) * 2
    decoder = FrameDecoder(1 << 20)
    frames = [frame for at in range(0, len(stream), 65536) for frame in decoder.feed(stream[at : at + 65536])]
    assert [frame.payload == payload for frame in frames] == [True, True]


@pytest.mark.parametrize(
    ("header", "error"),
    [
        ("47", "frame magic 0x47 is not one of ours"),  # the G of an HTTP GET: one byte is enough
        ("00", "frame magic 0x00"),
        ("4c 0006 00000001", r"magic 'L' has version 6, this connection speaks \[0, 1, 2, 3, 4, 5\]"),
        ("4c ffff 00000001", "version -1"),
        ("52 0000 00000001", r"magic 'R' has version 0, this connection speaks \[2\]"),
        ("48 0001 00000001", "magic 'H' has version 1"),
        ("4c 0005 ffffffff", "impossible length -1"),
        ("4c 0005 80000000", "impossible length -2147483648"),
        ("4c 0005 00000065", "has 101 bytes, the limit is 100"),
        ("4c 0005 7fffffff", "has 2147483647 bytes, the limit is 100"),
        ("4c 0006 00000000", "version 6"),  # a keep-alive has a header too
    ],
)
@pytest.mark.parametrize("whole", [True, False])
def test_a_bad_header_is_refused_before_its_payload(header: str, error: str, whole: bool) -> None:
    data = bytes.fromhex(header)
    decoder = FrameDecoder(100)
    if not whole:
        for at in range(len(data) - 1):
            assert decoder.feed(data[at : at + 1]) == []
        data = data[-1:]
    with pytest.raises(WireError, match=error):
        decoder.feed(data)
    with pytest.raises(WireError, match=error):
        decoder.feed(STREAM)
    with pytest.raises(WireError, match=error):
        decoder.eof()


def test_the_limit_itself_passes() -> None:
    (frame,) = FrameDecoder(100).feed(encode_frame(MAGIC_CLIENT, 5, bytes(100)))
    assert len(frame.payload) == 100


def test_after_hello_only_the_agreed_version_passes() -> None:
    decoder = FrameDecoder(100)
    decoder.feed(encode_hello(Hello((4, 5), "")))
    decoder.expect(MAGIC_CLIENT, 5)
    assert len(decoder.feed(encode_frame(MAGIC_CLIENT, 5, b"x"))) == 1
    for wrong in (encode_frame(MAGIC_CLIENT, 4, b"x"), encode_frame(MAGIC_REPLICA, 1, b"x"), STREAM):
        other = FrameDecoder(100)
        other.expect(MAGIC_CLIENT, 5)
        with pytest.raises(WireError, match=re.escape("speaks [5]") + "|not one of ours here"):
            other.feed(wrong)


@pytest.mark.parametrize("cut", range(1, 10))
def test_half_a_frame_at_the_end_is_an_error(cut: int) -> None:
    decoder = FrameDecoder(100)
    decoder.feed(KEEP_ALIVE + encode_frame(MAGIC_CLIENT, 5, b"abc")[:cut])
    where = f"header: {cut} of 7 bytes" if cut < 7 else f"frame: {cut - 7} of 3 payload bytes"
    with pytest.raises(WireError, match=where):
        decoder.eof()


def test_a_payload_too_long_for_any_frame_is_not_written() -> None:
    with pytest.raises(WireError, match="does not fit in a frame"):
        frame_header(MAGIC_CLIENT, 5, 1 << 31)


@settings(max_examples=200)
@given(st.binary(max_size=100))
def test_random_streams_are_read_or_refused(stream: bytes) -> None:
    decoder = FrameDecoder(50)
    try:
        frames = decoder.feed(stream)
        decoder.eof()
    except WireError:
        return
    assert sum(len(frame.payload) + FRAME_HEADER_BYTES for frame in frames) <= len(stream)


@settings(max_examples=100)
@given(st.lists(st.integers(-(1 << 15), (1 << 15) - 1), max_size=5), st.text(max_size=20))
def test_hello_round_trip(versions: list[int], message: str) -> None:
    (frame,) = FrameDecoder(1000).feed(encode_hello(Hello(tuple(versions), message)))
    assert decode_hello(frame.payload) == Hello(tuple(versions), message)


@pytest.mark.parametrize("message", ["", "a client", "one cluster=of before"])
def test_a_hello_says_which_cluster_is_meant(message: str) -> None:
    assert cluster_meant(meaning_cluster(message, "a-key")) == "a-key"
    assert meaning_cluster(message, "") == message
    assert cluster_meant("a client, of some cluster") == ""


def test_hello_with_a_null_message() -> None:
    assert decode_hello(bytes.fromhex("00000001 0005 ffffffff")) == Hello((5,), "")


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        ("", "cut short"),
        ("000000", "cut short"),
        ("00000000", "cut short"),
        ("ffffffff 00000000", "impossible count -1"),
        ("7fffffff 00000000", "impossible count 2147483647"),
        ("00000001 0005", "cut short"),
        ("00000001 0005 00000001", "says its message has 1 bytes, 0 are there"),
        ("00000001 0005 00000000 41", "says its message has 0 bytes, 1 are there"),
        ("00000001 0005 ffffffff 41", "says its message has -1 bytes"),
        ("00000001 0005 fffffffe", "says its message has -2 bytes"),
        ("00000001 0005 00000001 ff", "not UTF-8"),
    ],
)
def test_refused_hellos(payload: str, error: str) -> None:
    with pytest.raises(WireError, match=error):
        decode_hello(bytes.fromhex(payload))


def test_hello_fuzz() -> None:
    assert fuzz(decode_hello, [encode_hello(Hello((0, 4, 5), "hello"))[FRAME_HEADER_BYTES:]], 500) > 300


def test_the_highest_common_version_is_used() -> None:
    assert negotiate((0, 1, 4, 5), (4, 1)) == 4
    assert negotiate([5], (5, 6)) == 5
    with pytest.raises(WireError, match=r"we speak \[4, 5\], the peer speaks \[6, 7\]"):
        negotiate((5, 4), (7, 6))
    with pytest.raises(WireError, match=r"the peer speaks \[\]"):
        negotiate((5,), ())


def test_room_is_made_for_what_has_come_not_for_what_is_announced() -> None:
    tracemalloc.start()
    try:
        decoders = [FrameDecoder(64 << 20) for _ in range(5)]
        for decoder in decoders:
            assert decoder.feed(frame_header(MAGIC_CLIENT, 5, 60 << 20)) == []
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_stranger_is_refused_at_its_first_header() -> None:
    for first in (frame_header(MAGIC_CLIENT, 5, 60), frame_header(MAGIC_HELLO, 0, MAX_HELLO_BYTES + 1)):
        with pytest.raises(WireError, match="HELLO"):
            FrameDecoder(64 << 20, greeted=False).feed(first)
    decoder = FrameDecoder(64 << 20, greeted=False)
    large = encode_frame(MAGIC_CLIENT, 5, bytes(100_000))
    frames = decoder.feed(encode_hello(Hello((5,), "")) + large)
    assert [len(frame.payload) for frame in frames] == [10, 100_000], "right behind HELLO anything may come"
    with pytest.raises(WireError, match="a HELLO of 5000 bytes"):
        decoder.feed(frame_header(MAGIC_HELLO, 0, 5000))


@pytest.mark.parametrize("data", ["16", "1603010200010001fc0303"])
def test_a_tls_client_is_named(data: str) -> None:
    with pytest.raises(WireError, match="it is a TLS client, and this port speaks the plain protocol"):
        FrameDecoder(100, greeted=False).feed(bytes.fromhex(data))


def test_very_many_versions_are_not_all_named() -> None:
    with pytest.raises(WireError, match=r"105.* and 84 more$") as error:
        negotiate((5,), range(100, 200))
    assert len(str(error.value)) < 200


WITH_HELLO = [
    (
        False,
        1,
        encode_frame(MAGIC_REPLICA, 2, b"payload"),
        "frame of magic 'R' has version 2, this connection speaks [1]",
    ),
    (False, 2, encode_frame(MAGIC_CLIENT, 4, b"payload"), "frame magic 0x4C is not one of ours here (0x52 'R'); "),
    (True, 2, encode_frame(MAGIC_REPLICA, 2, bytes(100_000)), "frame magic 0x52 is not one of ours here (0x41 'A'); "),
    (
        True,
        2,
        encode_frame(MAGIC_AUTHENTICATION, 1, bytes(5000)),
        "frame of magic 'A' has 5000 bytes, the limit is 4096;",
    ),
]


@pytest.mark.parametrize(("authenticates", "theirs", "frame", "error"), WITH_HELLO)
@pytest.mark.parametrize("cut", [7, 9, 13])
def test_a_frame_that_begins_in_one_piece_with_the_hello_is_checked_like_any_other(
    authenticates: bool, theirs: int, frame: bytes, error: str, cut: int
) -> None:
    """``make fuzz`` has found it: nothing was agreed on when such a header was read, and nobody looked at it again."""
    decoder = GreetedDecoder(MAGIC_REPLICA, (1, 2), 1 << 20, authenticates)
    with pytest.raises(WireError, match=re.escape(error)):
        decoder.feed(encode_hello(Hello((theirs,), "x")) + frame[:cut])
    with pytest.raises(WireError, match=re.escape(error)):
        decoder.feed(frame[cut:])


def test_a_frame_that_has_begun_when_all_is_proved_is_checked_too() -> None:
    decoder = GreetedDecoder(MAGIC_REPLICA, (2,), 1 << 20, authenticates=True)
    frame = encode_frame(MAGIC_AUTHENTICATION, 1, b"payload")
    assert decoder.feed(encode_hello(Hello((2,), "x")) + frame[:9]) == []
    decoder.admit()
    with pytest.raises(WireError, match="frame magic 0x41 is not one of ours here"):
        decoder.feed(frame[9:])


def test_keep_alives_in_one_piece_with_the_hello_are_of_what_is_agreed_on() -> None:
    """``make fuzz`` has found it: they were passed over before anything was, and refused in a piece of their own."""
    right = encode_hello(Hello((2,), "x")) + encode_frame(MAGIC_REPLICA, 2)
    assert GreetedDecoder(MAGIC_REPLICA, (1, 2), 1 << 20).feed(right) == []
    for wrong in (encode_frame(MAGIC_REPLICA, 2), encode_frame(MAGIC_CLIENT, 4)):
        with pytest.raises(WireError):
            GreetedDecoder(MAGIC_REPLICA, (1, 2), 1 << 20).feed(encode_hello(Hello((1,), "x")) + wrong)
