"""What is in a message besides its data: the sender's address, attributes, checksum, and the hash of its type. Pure."""

from __future__ import annotations

import ipaddress
import struct
import zlib

from waltz_ray.errors import BadPayload, InvalidInput

__all__ = [
    "HAS_ATTRIBUTES",
    "NO_CHECK_SUM",
    "address_of",
    "check_sum",
    "check_sum_fits",
    "java_hash",
    "packed_payload",
    "sent_address",
    "unpacked_payload",
]

HAS_ATTRIBUTES = 1
"""Bit of ``flag``: attributes stand before the data."""
NO_CHECK_SUM = -1
"""The producer has not computed one."""

_INT = struct.Struct(">i")


def sent_address(host: str) -> int:
    """``sentAddr`` of an IPv4 address: its 32 bits with a sign. InvalidInput if it is none."""
    try:
        return int(_INT.unpack(ipaddress.IPv4Address(host).packed)[0])
    except ValueError:
        raise InvalidInput(f"{host!r} is no IPv4 address, of which sentAddr is made") from None


def address_of(sent_addr: int) -> str:
    """The IPv4 address of a ``sentAddr``, an int32."""
    return str(ipaddress.IPv4Address(sent_addr & 0xFFFF_FFFF))


def packed_payload(data: bytes, attributes: str | None = None) -> tuple[bytes, int]:
    """``data`` of a request, and its ``flag``. Blank attributes are none, as in the Java client."""
    if attributes is None or not attributes.strip():
        return data, 0
    try:
        packed = attributes.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"attributes {attributes[:40]!r} are not Unicode text") from None
    return b"".join((_INT.pack(len(packed)), packed, data)), HAS_ATTRIBUTES


def unpacked_payload(payload: bytes, flag: int) -> tuple[bytes, str | None]:
    """The data, and the attributes if there are any; what is not UTF-8 in them is replaced. BadPayload if they do not
    fit."""
    if not flag & HAS_ATTRIBUTES:
        return payload, None
    if len(payload) < _INT.size:
        raise BadPayload(f"a payload of {len(payload)} bytes has no attributes, and its flag says that it has")
    (size,) = _INT.unpack_from(payload)
    end = _INT.size + size
    if size < 0 or end > len(payload):
        raise BadPayload(f"attributes of {size} bytes do not fit in a payload of {len(payload)}")
    return payload[end:], payload[_INT.size : end].decode(errors="replace")


def check_sum(payload: bytes) -> int:
    """CRC-32 of a payload, attributes and all, without its top bit."""
    return zlib.crc32(payload) & 0x7FFF_FFFF


def check_sum_fits(payload: bytes, claimed: int) -> bool:
    """False: it was damaged on its way."""
    return claimed == NO_CHECK_SUM or claimed == check_sum(payload)


def java_hash(text: str) -> int:
    """``String.hashCode`` of Java, an int32: s[0] * 31**(n-1) + ... + s[n-1] over UTF-16 code units. Different texts
    may have the same: "Aa" and "BB" do."""
    found = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for (unit,) in struct.iter_unpack(">H", units):
        found = (31 * found + unit) & 0xFFFF_FFFF
    return (found ^ 0x8000_0000) - 0x8000_0000
