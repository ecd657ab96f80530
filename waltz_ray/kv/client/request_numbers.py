"""The numbers of a client's writes, by which one that is repeated is recognised. Pure but for the client's own number.

``model.RequestId``: what is repeated keeps its number; a number below ``settled`` never comes again, so nobody has to
remember it, and a late copy of such a write is refused.
"""

from __future__ import annotations

from waltz_ray.errors import InvariantBroken

__all__ = ["RequestNumbers"]


class RequestNumbers:
    """``client``: 64 random bits, never 0. Sequence numbers begin at 1."""

    def __init__(self, client: int) -> None:
        self.client = client
        self._next = self._lowest = 1
        self._open: set[int] = set()  # without an answer

    def take(self, count: int = 1) -> int:
        """The first of ``count`` consecutive new numbers; each has to be settled."""
        first, self._next = self._next, self._next + count
        self._open.update(range(first, self._next))
        return first

    def settle(self, sequence: int) -> None:
        """It has its answer, or will not be repeated any more."""
        if sequence not in self._open:
            raise InvariantBroken(f"write {sequence} was settled before")
        self._open.remove(sequence)

    @property
    def settled(self) -> int:
        """All numbers below this one are settled."""
        while self._lowest < self._next and self._lowest not in self._open:
            self._lowest += 1
        return self._lowest

    @property
    def unsettled(self) -> int:
        """How many writes have no answer."""
        return len(self._open)
