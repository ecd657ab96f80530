"""What the wire tests share: comparing messages that hold columns, and the fuzz of a decoder."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from waltz_ray.errors import WireError
from waltz_ray.protocol.records import RecordBatch

__all__ = ["assert_same", "fuzz", "int32s", "int64s", "joined", "uint32s"]


def int32s(*values: int) -> Any:
    return np.array(values, dtype=np.int32)


def int64s(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


def uint32s(*values: int) -> Any:
    return np.array(values, dtype=np.uint32)


def joined(parts: list[bytes | bytearray | memoryview]) -> bytes:
    return b"".join(parts)


def assert_same(left: object, right: object) -> None:
    """Equal field by field; columns by value and type, bodies by content."""
    if isinstance(left, np.ndarray):
        assert isinstance(right, np.ndarray)
        assert left.dtype == right.dtype
        assert left.dtype.isnative
        assert left.tolist() == right.tolist()
    elif isinstance(left, RecordBatch):
        assert isinstance(right, RecordBatch)
        for name in ("partition_id", "first_id", "lengths", "records"):
            assert_same(getattr(left, name), getattr(right, name))
    elif is_dataclass(left):
        assert type(left) is type(right)
        for field in fields(left):
            assert_same(getattr(left, field.name), getattr(right, field.name))
    else:
        assert left == right


def fuzz(decode: Callable[[bytes], object], samples: list[bytes], rounds: int) -> int:
    """Feed mutations of ``samples`` to ``decode``; how many it refused. Anything but ``WireError`` fails the test."""
    rng = random.Random(20261121)
    refused = 0
    for sample in samples:
        for mutated in _mutations(rng, sample, rounds):
            try:
                decode(mutated)
            except WireError:
                refused += 1
            except Exception as error:
                raise AssertionError(f"{type(error).__name__} ({error}) for {mutated.hex()}") from error
    return refused


def _mutations(rng: random.Random, sample: bytes, rounds: int) -> list[bytes]:
    mutated = [sample[:cut] for cut in range(len(sample))]
    mutated += [sample + b"\0", sample + sample]
    for _ in range(rounds):
        data = bytearray(sample)
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(data))
            data[place] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        mutated.append(bytes(data))
    mutated += [bytes([sample[0]]) + rng.randbytes(rng.randint(0, 60)) for _ in range(rounds)]
    return mutated
