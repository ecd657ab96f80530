"""Addresses, attributes, checksums and hashes, by the vectors of the original."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_ray.errors import BadPayload, InvalidInput
from waltz_ray.topics.payload import (
    address_of,
    check_sum,
    check_sum_fits,
    java_hash,
    packed_payload,
    sent_address,
    unpacked_payload,
)


def test_t16_the_sender_as_a_number() -> None:
    """T16: 32 bits with a sign."""
    assert sent_address("192.0.2.2") == -1073741310
    assert sent_address("10.0.0.7") == 0x0A000007
    for host in ("0.0.0.0", "127.0.0.1", "128.0.0.0", "255.255.255.255", "192.0.2.2"):
        assert address_of(sent_address(host)) == host
    for host in ("::1", "localhost", "1.2.3", "", "256.0.0.1"):
        with pytest.raises(InvalidInput, match="is no IPv4 address"):
            sent_address(host)


def test_t17_attributes_stand_before_the_data() -> None:
    """T17: their length as an int32, and bit 0 of the flag."""
    assert packed_payload(b"data", "k=ä") == (bytes.fromhex("00000004") + "k=ä".encode() + b"data", 1)
    assert packed_payload(b"data") == (b"data", 0)
    for blank in ("", "  ", "\t\n"):
        assert packed_payload(b"data", blank) == (b"data", 0)
    with pytest.raises(InvalidInput, match="are not Unicode text"):
        packed_payload(b"", "\ud800")


@given(data=st.binary(max_size=100), attributes=st.none() | st.text(max_size=50))
def test_t17_both_ways(data: bytes, attributes: str | None) -> None:
    payload, flag = packed_payload(data, attributes)
    assert unpacked_payload(payload, flag) == (data, attributes if attributes and attributes.strip() else None)
    assert unpacked_payload(payload, flag & ~1) == (payload, None)
    assert unpacked_payload(payload, flag | 0x100) == unpacked_payload(payload, flag)


def test_t17_attributes_that_cannot_be_there() -> None:
    assert unpacked_payload(bytes(4) + b"data", 1) == (b"data", "")
    assert unpacked_payload(b"\0\0\0\2\xff\xfedata", 1) == (b"data", "��")
    for payload in (b"", b"\0\0\0"):
        with pytest.raises(BadPayload, match="has no attributes, and its flag says that it has"):
            unpacked_payload(payload, 1)
    for payload in (b"\0\0\0\5data", b"\xff\xff\xff\xffdata"):
        with pytest.raises(BadPayload, match="do not fit in a payload of 8"):
            unpacked_payload(payload, 1)


def test_t18_the_checksum() -> None:
    """T18: CRC-32 without its top bit; -1 = none, any other must fit."""
    assert check_sum(b"hello") == 907060870
    assert check_sum(b"a") == 0x68B7BE43  # CRC-32 is E8B7BE43
    assert check_sum_fits(b"hello", 907060870)
    assert check_sum_fits(b"hello", -1)
    assert not check_sum_fits(b"hello", 907060871)
    assert not check_sum_fits(b"a", 0xE8B7BE43 - (1 << 32))
    assert not check_sum_fits(b"hello", 0)


def test_t44_the_hash_of_a_type_is_that_of_java() -> None:
    """T44: over UTF-16 code units, and two types may have the same."""
    assert java_hash("Aa") == java_hash("BB") == 2112
    assert java_hash("") == 0
    assert java_hash("hello") == 99162322
    assert java_hash("polygenelubricants") == -(1 << 31)
    assert java_hash("ü") == 0xFC
    assert java_hash("😀") == 31 * 0xD83D + 0xDE00
    assert java_hash("\ud83d") == 0xD83D


@given(text=st.text(max_size=30))
def test_t44_a_hash_has_32_bits(text: str) -> None:
    units = text.encode("utf-16-be", "surrogatepass")
    numbers = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    whole = sum(number * 31 ** (len(numbers) - 1 - at) for at, number in enumerate(numbers))
    assert java_hash(text) % (1 << 32) == whole % (1 << 32)
    assert -(1 << 31) <= java_hash(text) < 1 << 31
