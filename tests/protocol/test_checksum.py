"""The CRC-32 that is fast is the one of the standard library and of the reference implementation."""

from __future__ import annotations

import zlib

import crcmod.predefined
from hypothesis import given
from hypothesis import strategies as st

from waltz_ray.protocol.checksum import crc32

reference = crcmod.predefined.mkPredefinedCrcFun("crc-32")


@given(st.binary(max_size=5000), st.binary(max_size=200))
def test_it_is_zlibs_and_crcmods(data: bytes, before: bytes) -> None:
    assert crc32(data) == zlib.crc32(data) == reference(data)
    assert crc32(memoryview(data), crc32(before)) == zlib.crc32(before + data)
