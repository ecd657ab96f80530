"""The codec itself, beside google.protobuf: numbers, kinds that no message of topics has, and what does not fit."""

from __future__ import annotations

import tracemalloc

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from waltz_ray.errors import BadPayload, InvalidInput
from waltz_ray.protocol.value import value
from waltz_ray.topics.protobuf import MAX_REPEATED, ProtoCodec, ProtoKind, optional, repeated, required
from waltz_ray.topics.protobuf_bytes import add_varint, read_varint


@value()
class Inner:
    word: str | None = None


@value()
class Kinds:
    small: int | None = None
    large: int | None = None
    fixed4: int | None = None
    fixed8: int | None = None
    numbers: tuple[int, ...] = ()
    words: tuple[str, ...] = ()
    inner: Inner | None = None
    flags: tuple[bool, ...] = ()
    widths: tuple[int, ...] = ()


INNER = ProtoCodec(Inner, optional(1, "word", ProtoKind.STRING))
CODEC = ProtoCodec(
    Kinds,
    optional(1, "small", ProtoKind.INT32),
    optional(2, "large", ProtoKind.INT64),
    optional(3, "fixed4", ProtoKind.FIXED32),
    optional(4, "fixed8", ProtoKind.FIXED64),
    repeated(5, "numbers", ProtoKind.INT64),
    repeated(6, "words", ProtoKind.STRING),
    optional(2047, "inner", ProtoKind.MESSAGE, INNER),
    repeated(2048, "flags", ProtoKind.BOOL),
    repeated(536_870_911, "widths", ProtoKind.FIXED32),
)

_F = descriptor_pb2.FieldDescriptorProto
_FILE = descriptor_pb2.FileDescriptorProto(name="kinds.proto", package="kinds", syntax="proto2")
_FILE.message_type.add(name="Inner").field.add(name="word", number=1, type=_F.TYPE_STRING, label=1)
_MESSAGE = _FILE.message_type.add(name="Kinds")
for _number, _name, _type, _label in (
    (1, "small", _F.TYPE_INT32, 1),
    (2, "large", _F.TYPE_INT64, 1),
    (3, "fixed4", _F.TYPE_FIXED32, 1),
    (4, "fixed8", _F.TYPE_FIXED64, 1),
    (5, "numbers", _F.TYPE_INT64, 3),
    (6, "words", _F.TYPE_STRING, 3),
    (2048, "flags", _F.TYPE_BOOL, 3),
    (536_870_911, "widths", _F.TYPE_FIXED32, 3),
):
    _MESSAGE.field.add(name=_name, number=_number, type=_type, label=_label)
for _field in _MESSAGE.field:
    if _field.name in ("numbers", "flags", "widths"):
        _field.options.packed = True
_MESSAGE.field.add(name="inner", number=2047, type=_F.TYPE_MESSAGE, label=1, type_name=".kinds.Inner")
_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_FILE)
GOOGLE = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("kinds.Kinds"))

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
ANY = st.builds(
    Kinds,
    st.none() | st.integers(-(1 << 31), (1 << 31) - 1),
    st.none() | INT64,
    st.none() | st.integers(0, (1 << 32) - 1),
    st.none() | st.integers(0, (1 << 64) - 1),
    st.lists(INT64, max_size=5).map(tuple),
    st.lists(st.text(max_size=5), max_size=5).map(tuple),
    st.none() | st.builds(Inner, st.none() | st.text(max_size=200)),
    st.lists(st.booleans(), max_size=5).map(tuple),
    st.lists(st.integers(0, (1 << 32) - 1), max_size=5).map(tuple),
)


def google(one: Kinds) -> bytes:
    """Its bytes with packed numbers."""
    found = GOOGLE(numbers=one.numbers, words=one.words, flags=one.flags, widths=one.widths)
    for name in ("small", "large", "fixed4", "fixed8"):
        if getattr(one, name) is not None:
            setattr(found, name, getattr(one, name))
    if one.inner is not None:
        found.inner.SetInParent()
        if one.inner.word is not None:
            found.inner.word = one.inner.word
    content: bytes = found.SerializeToString()
    return content


@given(one=ANY)
def test_every_kind_both_ways(one: Kinds) -> None:
    """We write repeated numbers one by one and read them packed, too; whoever reads has to."""
    assert CODEC.decode(CODEC.encode(one)) == one
    assert CODEC.decode(google(one)) == one
    theirs = GOOGLE()
    theirs.ParseFromString(CODEC.encode(one))
    assert theirs.SerializeToString() == google(one)


@given(number=st.integers(0, (1 << 64) - 1))
def test_numbers_of_64_bits(number: int) -> None:
    out = bytearray()
    add_varint(out, number)
    assert len(out) == max(1, -(-number.bit_length() // 7))
    assert read_varint(bytes(out), 1, out[0]) == (number, len(out))


def test_a_number_ends_with_its_tenth_byte() -> None:
    assert CODEC.decode(b"\x10" + b"\xff" * 9 + b"\x01") == Kinds(large=-1)
    with pytest.raises(BadPayload, match="more than ten bytes"):
        CODEC.decode(b"\x10" + b"\xff" * 10 + b"\x01")


def test_int32_has_the_lower_half() -> None:
    """As Java and C++ write a negative one, in ten bytes, and as some write it in five."""
    assert CODEC.encode(Kinds(small=-2)) == bytes.fromhex("08feffffffffffffffff01")
    assert CODEC.decode(bytes.fromhex("08feffffffffffffffff01")) == Kinds(small=-2)
    assert CODEC.decode(bytes.fromhex("08feffffff0f")) == Kinds(small=-2)


def test_the_last_value_counts() -> None:
    assert CODEC.decode(bytes([8, 1, 8, 2])) == Kinds(small=2)


def test_another_wire_type_is_an_unknown_field() -> None:
    assert CODEC.decode(bytes([10, 1, 65, 16, 5])) == Kinds(large=5)


def test_unknown_fields_of_every_wire_type_are_skipped() -> None:
    """Also groups, one in the other."""
    unknown = bytes.fromhex("3801 39 0102030405060708 3a03 414243 3d 01020304 3b 43 4801 44 3c".replace(" ", ""))
    assert CODEC.decode(unknown + bytes([8, 1]) + unknown) == Kinds(small=1)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("08", "Kinds: it ends inside a field"),
        ("08ff", "Kinds: it ends inside a field"),
        ("32053132", "Kinds.words: 5 bytes, where 2 are left"),
        ("3202ff30", "Kinds.words: it is not UTF-8"),
        ("1d010203", "Kinds.fixed4: it ends inside a number"),
        ("2a020180", "Kinds: it ends inside a field"),
        ("2a05018001", "Kinds.numbers: 5 bytes, where 3 are left"),
        ("2a0180012a", "Kinds.numbers: it ends inside a number"),
        ("0001", "there is no field number 0"),
        ("3c", "the end of a group 7 that has not begun"),
        ("3b44", "the end of a group 8 that has not begun"),
        ("3b" * 40, "more than 32 groups in one another"),
        ("3e", "field 7 has the wire type 6"),
        ("3a0541", "field 7 goes on past the end of its message"),
        ("fa7f00fa7f00", "Kinds.inner: it comes twice"),
        ("8080808010" + "00", "there is no field number"),
    ],
)
def test_nonsense_is_named(content: str, problem: str) -> None:
    with pytest.raises(BadPayload) as caught:
        CODEC.decode(bytes.fromhex(content))
    assert problem in str(caught.value)


def test_a_repeated_field_is_bounded() -> None:
    most = CODEC.encode(Kinds(words=("",) * MAX_REPEATED))
    assert len(CODEC.decode(most).words) == MAX_REPEATED
    for more in (b"\x32\x00", b"\x32\x00" * 10):
        with pytest.raises(BadPayload, match=r"Kinds.words: more than 65536 items"):
            CODEC.decode(most + more)
    with pytest.raises(InvalidInput, match=r"Kinds.words: 65537 items, 65536 are the most"):
        CODEC.encode(Kinds(words=("",) * (MAX_REPEATED + 1)))
    with pytest.raises(BadPayload, match=r"Kinds.numbers: more than 65536 items"):
        CODEC.decode(b"\x2a" + b"\x81\x80\x04" + b"\x01" * (MAX_REPEATED + 1))


def test_a_length_that_is_not_there_takes_no_memory() -> None:
    """1 GiB is named, three bytes are there; and what is skipped is not kept."""
    huge = b"\x32" + b"\x80\x80\x80\x80\x04" + b"abc"
    long = b"\x3a" + b"\x80\x80\x80\x04" + b"x" * (8 << 20)  # unknown
    tracemalloc.start()
    try:
        with pytest.raises(BadPayload, match="1073741824 bytes, where 3 are left"):
            CODEC.decode(huge)
        assert CODEC.decode(long) == Kinds()
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("one", "problem"),
    [
        (Kinds(small=1 << 31), "Kinds.small: 2147483648 does not fit int32"),
        (Kinds(large=1 << 63), "Kinds.large: 9223372036854775808 does not fit int64"),
        (Kinds(fixed4=-1), "Kinds.fixed4: -1 does not fit fixed32"),
        (Kinds(inner=Inner("\ud800")), "Inner.word: '\\ud800' is not Unicode text"),
    ],
)
def test_what_does_not_fit_is_not_sent(one: Kinds, problem: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        CODEC.encode(one)
    assert str(caught.value) == problem


@value()
class Needed:
    first: str | None
    second: int | None


def test_required_fields() -> None:
    codec = ProtoCodec(Needed, required(1, "first", ProtoKind.STRING), required(2, "second", ProtoKind.INT32))
    assert codec.decode(codec.encode(Needed("", 0))) == Needed("", 0)
    with pytest.raises(BadPayload, match="Needed: first must be there, and is not"):
        codec.decode(bytes([16, 1]))
    with pytest.raises(InvalidInput, match=r"Needed.second must be given"):
        codec.encode(Needed("", None))


def test_a_table_has_the_fields_of_its_class() -> None:
    with pytest.raises(InvalidInput, match="the table of Needed has not the fields of the class"):
        ProtoCodec(Needed, optional(1, "first", ProtoKind.STRING), optional(2, "other", ProtoKind.INT32))
