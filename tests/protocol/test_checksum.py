"""The CRC-32 that is fast is the one of the standard library and of the reference implementation."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

import crcmod.predefined
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from waltz_ray.protocol import checksum
from waltz_ray.protocol.checksum import are_whole, crc32

reference = crcmod.predefined.mkPredefinedCrcFun("crc-32")


@given(st.binary(max_size=5000), st.binary(max_size=200))
def test_it_is_zlibs_and_crcmods(data: bytes, before: bytes) -> None:
    assert crc32(data) == zlib.crc32(data) == reference(data)
    assert crc32(memoryview(data), crc32(before)) == zlib.crc32(before + data)


BODIES = st.lists(st.binary(min_size=4, max_size=60), min_size=1, max_size=30)


def records_of(bodies: Sequence[bytes]) -> tuple[bytes, npt.NDArray[np.int64]]:
    """Each body with its CRC behind it, and where each begins and the last one ends."""
    records = [body + zlib.crc32(body).to_bytes(4, "big") for body in bodies]
    return b"".join(records), np.array([0, *accumulate(map(len, records))], dtype=np.int64)


@pytest.fixture(params=[1 << 20, 100, 8], ids=["in one piece", "in several", "each by itself"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksum, "_PIECE_BYTES", request.param)
    monkeypatch.setattr(checksum, "_scratches", [])


@pytest.mark.usefixtures("pieces")
@given(BODIES, st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_records_are_whole_together_if_each_of_them_is(bodies: Sequence[bytes], data: st.DataObject) -> None:
    records, bounds = records_of(bodies)
    assert are_whole(records, bounds)
    assert are_whole(memoryview(b"." + records)[1:], bounds)  # wherever they are
    damaged = bytearray(records)
    for at in data.draw(st.lists(st.integers(0, len(records) - 1), min_size=1, max_size=4, unique=True)):
        damaged[at] ^= data.draw(st.integers(1, 255))
    each = zip(bounds.tolist(), bounds[1:].tolist(), strict=False)
    alone = all(
        zlib.crc32(damaged[start : end - 4]).to_bytes(4, "big") == damaged[end - 4 : end] for start, end in each
    )
    assert are_whole(bytes(damaged), bounds) == alone


@pytest.mark.usefixtures("pieces")
def test_records_that_have_changed_places_are_whole_and_lost_bounds_are_not() -> None:
    """It is for others to see which record is where: each of these ends with its CRC."""
    bodies = [b"the first", b"the second, longer", b"third"]
    records, bounds = records_of(bodies)
    assert are_whole(*records_of(bodies[::-1]))
    assert not are_whole(records, bounds[[0, 2, 3]])
    assert not are_whole(records, bounds + np.array([0, 1, 0, 0]))
    assert are_whole(b"", np.zeros(1, dtype=np.int64))


@pytest.mark.parametrize("every", [1, 2, 3, 64])
def test_the_same_change_in_many_records_does_not_cancel(every: int) -> None:
    bodies = [bytes([n % 251]) * 508 for n in range(1024)]
    records, bounds = records_of(bodies)
    damaged = np.frombuffer(records, np.uint8).copy()
    damaged[100 :: 512 * every] ^= 4
    assert not are_whole(damaged.tobytes(), bounds)


def test_threads_do_not_mix_up_what_they_check() -> None:
    """ISA-L lets go of the interpreter's lock while it computes."""
    whole, bounds = records_of([bytes([n % 251]) * 1000 for n in range(900)])
    bad = bytearray(whole)
    bad[500_000] ^= 1
    with ThreadPoolExecutor(8) as threads:
        found = [threads.submit(are_whole, bytes(bad) if n % 3 else whole, bounds) for n in range(120)]
        assert [each.result() for each in found] == [not n % 3 for n in range(120)]
