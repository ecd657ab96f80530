"""Which consumer has a partition, and for how long. Pure."""

from __future__ import annotations

from waltz_ray.topics import delivery_rules as rules
from waltz_ray.topics.codes import TopicCode

__all__ = ["DeliveryLease"]


class DeliveryLease:
    """``holder``: the consumer, None = nobody. ``term``: which lease it is, another one after each registration, so
    that what was asked under one is not answered under the next; 0 = none."""

    def __init__(self, lease_ms: int) -> None:
        self.holder: str | None = None
        self.term = 0
        self._lease_ms = lease_ms
        self._until_ms = 0
        self._terms = 0

    def grant(self, consumer: str, now_ms: int) -> None:
        """The consumer has it from now on."""
        self._terms += 1
        self.holder, self.term = consumer, self._terms
        self._until_ms = now_ms + self._lease_ms

    def end(self) -> None:
        """Nobody has it."""
        self.holder, self.term = None, 0

    def is_over(self, now_ms: int) -> bool:
        """Whether its holder has given no sign of life for too long."""
        return self.holder is not None and rules.is_expired(self._until_ms, now_ms)

    def renew(self, consumer: str, now_ms: int) -> TopicCode:
        """A sign of life; OK if it is the holder's."""
        code = rules.holder_code(self.holder, consumer)
        if code is TopicCode.OK:
            self._until_ms = now_ms + self._lease_ms
        return code

    def refusal(self, consumer: str) -> tuple[TopicCode, str] | None:
        """Why a request of the consumer is refused: code and text; None: it is the holder."""
        code = rules.holder_code(self.holder, consumer)
        return None if code is TopicCode.OK else (code, self.text(code))

    def text(self, code: TopicCode) -> str:
        """What to tell with a code of ``renew``."""
        if code is TopicCode.HB_NO_NODE:
            return "the consumer does not have the partition (any more): register first"
        return "" if code is TopicCode.OK else f"consumer {self.holder} has the partition"
