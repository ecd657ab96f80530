"""What the simulated applications put into the log: text that says who wants what, so the log alone can be judged."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

__all__ = ["LOCKS", "Payload"]

LOCKS = 6
"""Distinct lock numbers, few enough to collide often."""


class Payload(NamedTuple):
    """``uid`` names the logical transaction; ``mark`` is the client's when this attempt was built (-2: no locks)."""

    uid: str
    mark: int = -2
    write: tuple[int, ...] = ()
    read: tuple[int, ...] = ()
    append: tuple[int, ...] = ()

    def encode(self, padding: int, at_least: int = 0) -> bytes:
        """With ``padding`` bytes behind, or filled up to ``at_least`` where that is given."""
        kinds = ";".join(",".join(map(str, kind)) for kind in (self.write, self.read, self.append))
        data = f"{self.uid};{self.mark};{kinds};".encode()
        return data.ljust(at_least, b".") if at_least else data + b"." * padding

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Payload:
        uid, mark, *kinds, _ = bytes(data).decode().split(";")
        write, read, append = (tuple(int(n) for n in kind.split(",") if n) for kind in kinds)
        return cls(uid, int(mark), write, read, append)

    @staticmethod
    def random_locks(random: Random) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Write, read and append locks, at least one."""
        while True:
            write, read, append = (tuple(random.sample(range(LOCKS), random.choice([0, 0, 1, 1, 2]))) for _ in range(3))
            if write or read or append:
                return write, read, append
