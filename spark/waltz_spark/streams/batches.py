"""How many of the works that wait are copied together, and by whom. Pure.

Without Spark each is copied and committed by itself. With it they are copied in batches, so that there is something to
do for every task; what is copied twice after a crash is one batch at the most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from waltz_spark.streams.commit import Work
from waltz_spark.streams.copying import Copier
from waltz_spark.streams.settings import StreamSettings
from waltz_spark.streams.work import Found

__all__ = ["FILES_OF_A_BATCH", "Copies", "Ready"]

FILES_OF_A_BATCH = 10_000
"""At the most, but for one part that has more: the driver keeps their names."""


class Ready(NamedTuple):
    """Work that nothing is in the way of: its inputs have been looked at."""

    found: Found
    work: Work

    @property
    def size_bytes(self) -> int:
        return sum(self.work.sizes)


class Copies:
    """Which copier takes a batch. ``on_spark``: None = there is no Spark, or it is not wanted."""

    def __init__(self, settings: StreamSettings, in_process: Copier, on_spark: Copier | None) -> None:
        self._in_process = in_process
        self._on_spark = on_spark if settings.spark_copy_bytes else None
        self._from_bytes = settings.spark_copy_bytes
        self._full_bytes = settings.copy_tasks * settings.copy_bytes_per_task

    def is_full(self, batch: Sequence[Ready]) -> bool:
        """Whether the batch should be copied before anything more is added."""
        if self._on_spark is None:
            return bool(batch)
        return _bytes(batch) >= self._full_bytes or sum(len(each.work.inputs) for each in batch) >= FILES_OF_A_BATCH

    def copier(self, batch: Sequence[Ready]) -> Copier:
        """Spark's tasks for at least ``spark_copy_bytes``: starting them takes longer than copying a little."""
        if self._on_spark is not None and _bytes(batch) >= self._from_bytes:
            return self._on_spark
        return self._in_process


def _bytes(batch: Sequence[Ready]) -> int:
    return sum(each.size_bytes for each in batch)
