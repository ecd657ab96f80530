"""EXPIRED: what is past its deadline is said in the log, so that feeds see it, in batches and without haste. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from waltz_ray.kv.keeper_types import Serving
from waltz_ray.kv.model import Expired, ItemKey
from waltz_ray.kv.orders import Orders
from waltz_ray.kv.routing import Unit
from waltz_ray.kv.state import KvState

__all__ = ["Expiry"]

_A_TIME = 1_000
_LOOKED_AT = 10_000


class _Batch:
    """An EXPIRED on its way, and until it is folded."""

    def __init__(self, expiry: Expiry, unit: Unit, partition: int) -> None:
        self._expiry = expiry
        self.unit = unit
        self.partition = partition
        self.version: int | None = None
        """None: on its way."""

    def committed(self, version: int) -> None:
        self.version = version

    def refused(self, partition: int, conflict: int) -> None:
        self._expiry.batches.pop(self.unit)

    def lost(self, reason: str) -> None:
        self._expiry.batches.pop(self.unit)


class Expiry:
    """Readers need nothing of this: to them an item is gone at its deadline (``rules.visible``)."""

    def __init__(self, orders: Orders, states: Mapping[int, KvState], serving: Serving) -> None:
        self.batches: dict[Unit, _Batch] = {}
        self._orders = orders
        self._states = states
        self._serving = serving

    def time_passed(self) -> None:
        """Say what has expired, of the units that are served here; one batch of each unit at a time."""
        for batch in list(self.batches.values()):
            if batch.version is not None and batch.version <= self._states[batch.partition].mark:
                del self.batches[batch.unit]
        for partition, state in self._states.items():
            by_unit: dict[Unit, list[tuple[ItemKey, int]]] = defaultdict(list)
            for key, version in state.expired(self._orders.now_ms, _LOOKED_AT):
                unit = self._serving.unit_of(key.hash)
                if unit is not None and unit not in self.batches and len(by_unit[unit]) < _A_TIME:
                    by_unit[unit].append((key, version))
            for served, items in by_unit.items():
                batch = self.batches[served] = _Batch(self, served, partition)
                self._orders.append(batch, served, Expired(tuple(items)))
