"""Bytes of a kv port: every opcode as it is written by hand, and nonsense that is told from sense."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kv.golden_bytes import COMMANDS, REPLIES, Golden, golden
from waltz_ray.errors import BadPayload, InvalidInput, WireError
from waltz_ray.kv.messages import (
    DataInt,
    Hashmask,
    Hashmasks,
    Op,
    Opcode,
    OpKind,
    Put,
    Seen,
    SeenMany,
    ServerList,
    SetCommand,
)
from waltz_ray.kv.model import ValueType
from waltz_ray.kv.wire import (
    COMMAND_OPCODES,
    Dialect,
    announcement,
    decode_command,
    decode_reply,
    encode_command,
    encode_reply,
)
from waltz_ray.kv.wire_framer import HELD_FREELY, KvFrame, KvFramer

LINES = [pytest.param(line, id=name) for name, line in golden().items()]
DIALECTS: tuple[Dialect, Dialect] = ("doc", "2012")


@pytest.mark.parametrize("line", LINES)
def test_golden_bytes(line: Golden) -> None:
    """O18, O20, O21, O23, O29-O31, O35-O41, D6, D7: out and in, in every dialect that has it."""
    opcode, replied_to, message_id = line.head
    assert len(line.payload) == int.from_bytes(line.frame[8:12], "big")
    assert KvFramer().feed(line.frame) == [(opcode, replied_to, message_id, line.payload)]
    if line.is_reply:
        reply = REPLIES[line.name]
        assert decode_reply(opcode, line.payload) == reply
        assert encode_reply(replied_to, message_id, reply) == line.frame
        return
    command = COMMANDS[line.name]
    assert replied_to == 0
    assert decode_command(opcode, line.payload) == command
    for dialect in DIALECTS:
        if line.dialect in ("both", dialect):
            assert encode_command(message_id, command, dialect) == line.frame


def test_every_opcode_has_its_line() -> None:
    """O23."""
    assert {line.head[0] for line in golden().values()} == {int(opcode) for opcode in Opcode}
    assert {line.head[0] for line in golden().values() if not line.is_reply} == COMMAND_OPCODES
    assert golden().keys() == COMMANDS.keys() | REPLIES.keys()


def test_real_client_bytes() -> None:
    """O01, O35: what a client of 2011 sent for something=45."""
    sent = "000000007e47596b000000000000000000000009736f6d657468696e670000002d"
    assert golden()["set_int"].payload.hex() == sent


def test_dialect_2012_tells_one_by_one() -> None:
    """D16."""
    servers, masks = ServerList(("a:1", "bbb:2")), Hashmasks(0xF, ((0xB, 0), (3, 1)))
    assert announcement(servers, "doc") == (servers,)
    assert announcement(masks, "doc") == (masks,)
    assert announcement(servers, "2012") == [ServerList(("a:1",)), ServerList(("bbb:2",))]
    assert announcement(masks, "2012") == [Hashmask(0xF, 0xB, 0), Hashmask(0xF, 3, 1)]
    for whole in (servers, masks):
        with pytest.raises(InvalidInput, match="one by one"):
            encode_command(1, whole, "2012")


@given(servers=st.lists(st.text(max_size=40), max_size=5))
def test_a_serverlist_says_which_dialect_it_is(servers: list[str]) -> None:
    """D16: both are read; only the empty list and the empty name are the same bytes."""
    doc = encode_command(1, ServerList(tuple(servers)))
    assert decode_command(Opcode.SERVERLIST, doc[12:]) == ServerList(tuple(servers))
    for server in servers:
        one = encode_command(1, ServerList((server,)), "2012")
        assert decode_command(Opcode.SERVERLIST, one[12:]) == ServerList((server,) if server else ())


def test_rows_are_counted_by_their_count() -> None:
    """D2: a mask of 0xFF with two rows has two rows."""
    payload = bytes.fromhex("000000ff 00000002 000000ff 00000000 00000000 00000001")
    assert decode_command(Opcode.HASHMASKS, payload) == Hashmasks(0xFF, ((0xFF, 0), (0, 1)))


def test_hashes_are_32_bits_and_numbers_are_signed() -> None:
    """O03, D11: the top bit of a hash counts; expires may be negative, and says so."""
    command = SetCommand(ValueType.INT, 0xFFFFFFFF, 0x80000000, -5, False, b"", bytes(4))
    assert decode_command(Opcode.SET_INT, encode_command(1, command)[12:]) == command


def test_nulls_survive() -> None:
    """O20."""
    command = SetCommand(ValueType.STRING, 0, 1, 0, False, b"\0a\0", b"\0\0")
    assert decode_command(Opcode.SET_STRING, encode_command(1, command)[12:]) == command


# ---- nonsense -----------------------------------------------------------------------------------------------


def _decode(line: Golden, payload: bytes) -> object:
    return decode_reply(line.head[0], payload) if line.is_reply else decode_command(line.head[0], payload)


@pytest.mark.parametrize("line", LINES)
def test_too_short_and_too_long(line: Golden) -> None:
    """Every cut, and every byte more. (A list of two servers, cut after two bytes, is the other dialect's of one.)"""
    for end in set(range(len(line.payload))) - ({6} if line.name == "serverlist" else set()):
        with pytest.raises(BadPayload, match=rf"\({line.head[0]}\): "):
            _decode(line, line.payload[:end])
    with pytest.raises(BadPayload, match=rf"\({line.head[0]}\): "):
        _decode(line, line.payload + b"\0")


@pytest.mark.parametrize("line", LINES)
def test_damaged_payloads_are_sense_or_refused(line: Golden) -> None:
    """Whatever comes is a value, which goes out again, or BadPayload: nothing else is raised."""
    chance = random.Random(line.name)
    for _ in range(300):
        payload = bytearray(line.payload)
        for _ in range(chance.randint(1, 3)):
            if payload:
                payload[chance.randrange(len(payload))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        try:
            value = _decode(line, bytes(payload))
        except BadPayload:
            continue
        frame = encode_reply(1, 1, value) if line.is_reply else encode_command(1, value)  # type: ignore[arg-type]
        assert _decode(line, frame[12:]) == value


@pytest.mark.parametrize(
    ("opcode", "payload", "why"),
    [
        (Opcode.SET_STRING, "00000000 00000001 00000000 00000000 ffffffff", "a length of 4294967295"),
        (Opcode.SERVERLIST, "00010001" + "00" * 4 * 65_537, "65537 servers, 65536 are the most"),
        (Opcode.HASHMASKS, "0001ffff 00010001" + "00" * 8 * 65_537, "65537 hashmasks, 65536 are the most"),
        (Opcode.GET_MANY, "0000 00010001" + "00" * 2 * 65_537, "65537 names, 65536 are the most"),
        (Opcode.PUT, "0000" + "00" * 24 + "00 00010001" + "00" * 8 * 65_537, "65537 writes, 65536 are the most"),
        (Opcode.SERVERLIST, "7fffffff 00000001 61", "2147483647 servers do not fit"),
        (Opcode.SERVERLIST, "00000001 ff", "no UTF-8"),
        (Opcode.SERVERLIST, "00000001 00000001 ff", "no UTF-8"),
        (Opcode.HASHMASKS, "0000000f 10000000 00000000 00000000", "268435456 hashmasks do not fit"),
        (Opcode.HASHMASKS, "0000000f 00000001 00000010 00000000", "does not exist under mask 0xF"),
        (Opcode.HASHMASKS, "0000000f 00000001 00000001 ffffffff", "instance -1"),
        (Opcode.HASHMASK, "ffffffff 00000001 00000000", "a mask of 0xFFFFFFFF"),
        (Opcode.HASHMASK, "0000000e 00000001 00000000", "a mask of 0xE"),
        (Opcode.HASHMASK, "0000000f 00000001 fffffffe", "instance -2"),
        (Opcode.HELLO, "00", "it has no payload"),
        (Opcode.PUT, "0000" + "00" * 24 + "04 00000000", "flags 0x04"),
        (Opcode.PUT, "0000" + "00" * 24 + "00 00000001 03 04 0000 00000000", "there is no write 0x03"),
        (Opcode.PUT, "0000" + "00" * 24 + "00 00000001 40 04 0000 00000000", "there is no write 0x40"),
        (Opcode.PUT, "0000" + "00" * 24 + "00 00000001 00 03 0000 00000004 00000000", "type 3 has 8 bytes, not 4"),
        (Opcode.PUT, "0000" + "00" * 24 + "00 ffffffff", "4294967295 writes do not fit"),
    ],
)
def test_nonsense(opcode: int, payload: str, why: str) -> None:
    with pytest.raises(BadPayload, match=why):
        decode_command(opcode, bytes.fromhex(payload))


def test_what_does_not_fit_is_not_sent() -> None:
    for command in (
        Put(b"", 0, 0, 0, False, (Op(OpKind.SET, bytes(70_000)),)),
        Hashmask(1 << 32, 0, 0),
        SetCommand(ValueType.INT, 0, 0, 0, False, b"", b"12345"),
    ):
        with pytest.raises(InvalidInput, match="does not fit"):
            encode_command(1, command)
    with pytest.raises(InvalidInput, match="does not fit"):
        encode_reply(1, 1, DataInt(0, 0, b"12345"))
    many = SeenMany((Seen(0, 4, bytes(1000)),) * 4)
    assert len(encode_reply(Opcode.GET_MANY, 1, many)) > 4000
    with pytest.raises(InvalidInput, match="ask for fewer"):
        encode_reply(Opcode.GET_MANY, 1, many, max_frame_bytes=4000)


# ---- frames -------------------------------------------------------------------------------------------------


def _frames(framer: KvFramer, data: bytes, sizes: list[int]) -> list[KvFrame]:
    found, position = [], 0
    for size in [*sizes, len(data)]:
        found += framer.feed(data[position : position + size])
        position += size
    return found


@given(sizes=st.lists(st.integers(1, 60), max_size=80))
def test_frames_however_they_are_cut(sizes: list[int]) -> None:
    """O18."""
    data = b"".join(line.frame for line in golden().values())
    framer = KvFramer()
    assert _frames(framer, data, sizes) == [(*line.head, line.payload) for line in golden().values()]
    framer.eof()


def test_one_byte_at_a_time() -> None:
    data = b"".join(line.frame for line in golden().values())
    assert len(_frames(KvFramer(), data, [1] * len(data))) == len(golden())


def test_an_impossible_length_is_refused_at_its_header() -> None:
    ping = golden()["ping"].frame
    for size in (0xFFFFFFFF, 0x80000000, 101):
        broken = bytes.fromhex("001e000000000001") + size.to_bytes(4, "big")
        framer = KvFramer(max_frame_bytes=112)
        with pytest.raises(WireError, match="the limit is 112"):
            framer.feed(broken)
        framer = KvFramer(max_frame_bytes=112)
        assert len(framer.feed(ping + broken + ping)) == 1, "what came before is served"
        with pytest.raises(WireError, match="the limit is 112"):
            framer.feed(ping)
    assert KvFramer(max_frame_bytes=112).feed(bytes.fromhex("001e00000000000100000064") + bytes(100))


def test_a_stream_that_ends_inside_a_frame() -> None:
    framer = KvFramer()
    framer.feed(golden()["set_int"].frame[:20])
    assert not framer.ready
    with pytest.raises(WireError, match="20 bytes into it"):
        framer.eof()


def test_what_there_is_no_room_for_is_dropped_as_it_comes() -> None:
    asked: list[int] = []

    def room(size: int) -> bool:
        asked.append(size)
        return size <= 3 * HELD_FREELY

    def large(size: int) -> bytes:
        return bytes.fromhex("07e4000000000009") + size.to_bytes(4, "big") + bytes(size)

    ping = golden()["ping"]
    for piece in (1000, HELD_FREELY // 2 + 1, 10 * HELD_FREELY):
        framer, asked[:] = KvFramer(room=room), []
        data = large(2 * HELD_FREELY) + ping.frame
        pieces = [data[i : i + piece] for i in range(0, len(data), piece)]
        found = [frame for part in pieces for frame in framer.feed(part)]
        assert found == [(2020, 0, 9, bytes(2 * HELD_FREELY)), (*ping.head, b"")]
        assert asked[-1:] in ([], [0]), "given back"
        data = large(5 * HELD_FREELY) + ping.frame
        pieces = [data[i : i + piece] for i in range(0, len(data), piece)]
        found = [frame for part in pieces for frame in framer.feed(part)]
        dropped = None if piece < len(data) else bytes(5 * HELD_FREELY)
        assert found == [(2020, 0, 9, dropped), (*ping.head, b"")]
        assert asked[-1:] in ([], [0])
        assert max(asked, default=0) <= 5 * HELD_FREELY
