"""How fast one group consumes one partition, held to its rules: ``flow_rules.py`` says what they mean. Pure.

Counted in minutes, the first of which begins with the first pull under a rule. What was read beyond the limit, as a
batch is not cut in two, is taken from the next minute: over time the rate is the rule's.

Nobody is let off: that a client asks for it (escFlowCtrl) is not even looked at.

``now_ms`` is of a clock that nobody sets; ``unix_ms`` says what time of the day it is (None: ``now_ms`` does).
"""

from __future__ import annotations

from waltz_ray.topics.flow_rules import DataRule, FlowRules

__all__ = ["FlowMeter", "is_little", "is_over", "left_over"]

_MINUTE_MS = 60_000
_LITTLE_BYTES = 65_536


def is_over(read_bytes: int, rule: DataRule) -> bool:
    """Whether what was read in this minute is as much as the rule allows."""
    return read_bytes >= rule.limit_bytes


def left_over(read_bytes: int, minutes: int, rule: DataRule) -> int:
    """What of it still counts so many minutes later."""
    return max(0, read_bytes - minutes * rule.limit_bytes)


def is_little(read_bytes: int) -> bool:
    """Whether filters have left so little of a pull that the next may come later (requireSlow)."""
    return read_bytes < _LITTLE_BYTES


class FlowMeter:
    """Of one (group, topic, partition)."""

    __slots__ = ("_began_ms", "_empties", "_free_ms", "_read")

    def __init__(self) -> None:
        self._began_ms: int | None = None
        self._read = 0
        self._empties = 0
        self._free_ms = 0

    def wait_ms(self, rules: FlowRules, lag_bytes: int, now_ms: int, unix_ms: int | None = None) -> int:
        """0 = a pull is allowed now; else it is refused (452), and this is its minLimitTime in milliseconds."""
        if now_ms < self._free_ms:
            return self._free_ms - now_ms
        rule = rules.data_rule(lag_bytes, now_ms if unix_ms is None else unix_ms)
        if rule is None:
            self._began_ms, self._read = None, 0
            return 0
        if self._began_ms is None:
            self._began_ms = now_ms
        minutes, into = divmod(now_ms - self._began_ms, _MINUTE_MS)
        if minutes:
            self._began_ms = now_ms - into
            self._read = left_over(self._read, minutes, rule)
        return min(rule.wait_ms, _MINUTE_MS - into) if is_over(self._read, rule) else 0

    def pulled(self, rules: FlowRules, read_bytes: int, filtered: bool, now_ms: int) -> None:
        """A pull has been answered with so many bytes of messages; 0 = there was nothing for it."""
        if not read_bytes:
            self._empties += 1
            self._free_ms = now_ms + rules.empty_wait_ms(self._empties)
            return
        self._empties = 0
        self._free_ms = now_ms + rules.pause_ms(filtered, is_little(read_bytes))
        if self._began_ms is not None:
            self._read += read_bytes

    def forget_waits(self) -> None:
        """The rules, or who pulls, are others now: what was to be waited for counts no more, what was read does."""
        self._empties, self._free_ms = 0, 0
