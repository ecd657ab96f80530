"""What goes wrong in an in-memory cluster, and how often."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, fields
from random import Random

from waltz_ray.errors import ConfigError

__all__ = ["FaultDice", "Faults"]


@dataclass(frozen=True)
class Faults:
    """Shares from 0 to 1 of the messages that bring appends. One message has all the appends that waited to be sent:
    with ``ClientConfig(batch_records=1)`` each has one.
    """

    append_failures: float = 0.0
    """Refused: known not to be in the log. The client sends them again, or with ``retry=False`` says AppendFailed."""

    connections_lost: float = 0.0
    """The connection ends before the appends are in the log. The client learns from the next mount's feed that they
    are not, and sends them again."""

    answers_lost: float = 0.0
    """The connection ends when the appends are in the log and nobody has been told: the client learns of it from the
    feed, and must not send them again."""

    lock_failures: float = 0.0
    """Only of messages whose appends all have locks: refused as if the partition's last transaction had taken the same
    ones. Never while the partition is empty."""

    delay_ms: tuple[float, float] = (0.0, 0.0)
    """The least and the most that bytes are under way, either way. Their order is kept."""

    def __post_init__(self) -> None:
        for name in KINDS:
            share = getattr(self, name)
            if not 0.0 <= share <= 1.0:
                raise ConfigError(f"Faults.{name} must be a share from 0 to 1, not {share!r}")
        least, most = self.delay_ms
        if not 0.0 <= least <= most:
            raise ConfigError(f"Faults.delay_ms must be (least, most) in milliseconds, not {self.delay_ms!r}")


KINDS = tuple(field.name for field in fields(Faults) if field.name != "delay_ms")


class FaultDice:
    """Draws faults: the forced ones first, then by chance. ``done`` counts them by kind. Any thread."""

    def __init__(self, faults: Faults, seed: int) -> None:
        self.faults = faults
        self.done: Counter[str] = Counter()
        self._forced: Counter[str] = Counter()
        self._random = Random(seed)
        self._lock = threading.Lock()

    def force(self, counts: dict[str, int]) -> None:
        """Let the next so many messages with appends meet these faults."""
        for kind in counts:
            if kind not in KINDS:
                raise ConfigError(f"there is no fault {kind!r}; there are {', '.join(KINDS)}")
        with self._lock:
            self._forced.update(counts)

    def draw(self, locks_can_fail: bool) -> str | None:
        """Draw the kind of fault that the next message with appends meets, None for none."""
        with self._lock:
            for kind in KINDS:
                if kind == "lock_failures" and not locks_can_fail:
                    continue
                if self._forced[kind] > 0:
                    self._forced[kind] -= 1
                elif (share := getattr(self.faults, kind)) == 0.0 or self._random.random() >= share:
                    continue
                self.done[kind] += 1
                return kind
        return None

    def delay_s(self) -> float:
        """Draw how long the next bytes are under way, in seconds."""
        least, most = self.faults.delay_ms
        if not most:
            return 0.0
        with self._lock:
            return self._random.uniform(least, most) / 1000
