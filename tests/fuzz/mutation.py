"""Bytes made of other bytes, by chance, the same for the same seed: where there is no atheris to look at coverage."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

__all__ = ["mutations"]

_EDGES = (0, 1, 0x20, 0x2F, 0x7B, 0x7F, 0x80, 0xFE, 0xFF)
_NUMBERS = (0, 1, -1, 2**15, 2**31 - 1, -(2**31), 2**32 - 1, 2**63 - 1, -(2**63))
_LONGEST = 1 << 16


def mutations(samples: Sequence[bytes], seed: int) -> Iterator[bytes]:
    """Without end: each a sample after one to eight changes."""
    chance = random.Random(seed)
    while True:
        data = bytearray(chance.choice(samples))
        for _ in range(chance.choice((1, 1, 2, 3, 8))):
            chance.choice(_CHANGES)(chance, data, samples)
        yield bytes(data[:_LONGEST])


def _byte(chance: random.Random, data: bytearray, samples: Sequence[bytes]) -> None:
    if data:
        data[chance.randrange(len(data))] = chance.choice((*_EDGES, chance.randrange(256)))


def _bit(chance: random.Random, data: bytearray, samples: Sequence[bytes]) -> None:
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _cut(chance: random.Random, data: bytearray, samples: Sequence[bytes]) -> None:
    at = chance.randrange(len(data) + 1)
    del data[at : at + chance.choice((1, 2, 4, 8, len(data)))]


def _more(chance: random.Random, data: bytearray, samples: Sequence[bytes]) -> None:
    at = chance.randrange(len(data) + 1)
    data[at:at] = chance.randbytes(chance.choice((1, 2, 4, 8, 64)))


def _number(chance: random.Random, data: bytearray, samples: Sequence[bytes]) -> None:
    """A length, a count: at its bounds, in either order of bytes, or in digits."""
    number, size = chance.choice(_NUMBERS), chance.choice((2, 4, 8))
    if chance.random() < 0.2:
        raw = str(number).encode()
    else:
        order = "big" if chance.random() < 0.7 else "little"
        raw = (number & (1 << 8 * size) - 1).to_bytes(size, order)  # type: ignore[arg-type]
    at = chance.randrange(len(data) + 1)
    data[at : at + len(raw)] = raw


def _piece(chance: random.Random, data: bytearray, samples: Sequence[bytes]) -> None:
    """Of another sample, or of itself again."""
    other = chance.choice(samples)
    begin = chance.randrange(len(other) + 1)
    at = chance.randrange(len(data) + 1)
    data[at:at] = other[begin : begin + chance.choice((1, 4, 16, 256))]


_CHANGES: tuple[Callable[[random.Random, bytearray, Sequence[bytes]], None], ...] = (
    *(_byte, _byte, _bit, _cut, _more, _number, _number, _piece),
)
