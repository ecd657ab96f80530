"""The loop of a stream, its thread and its end. No Spark here: how a batch is run is given."""

from __future__ import annotations

import logging
import math
import platform
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from waltz_ray.client.readers.ranges import Bound, Range, at_time, checked_task_bytes, first_ids, split_ranges
from waltz_ray.client.readers.reading import DEFAULT_SPACE
from waltz_ray.errors import ClientAhead, InvalidInput, Trimmed
from waltz_spark.offset_log import OffsetFiles, OffsetLog, StreamBatch, StreamOf
from waltz_spark.progress import BatchProgress, publish
from waltz_spark.rate_limits import Limits

__all__ = ["FeedStream", "LogEnds", "RunBatch", "RunSettings", "Trigger"]

log = logging.getLogger(__name__)

Trigger = Literal["available_now"] | float
"""Once through everything there is, or a batch every so many seconds."""
RunBatch = Callable[[Sequence[Range], int], None]
"""Gives the transactions of the ranges to the sink, under this batch number; returns when the sink has returned."""


class LogEnds(Protocol):
    """What the loop asks of the log (``waltz_ray.client.readers.reading.Marks``)."""

    def high_water_mark(self, partition_id: int) -> int: ...
    def beginnings(self, partitions: Iterable[int]) -> dict[int, int]: ...
    def hold(self, name: str, positions: Mapping[int, int], why: str) -> None: ...
    def first_id_at(self, partition_id: int, time_ms: int) -> int: ...
    def record_bytes(self, ranges: Sequence[Range]) -> dict[int, float]: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class RunSettings:
    """``mark_is_final``: a high-water mark below what was read is an error, not a lower bound of the real one."""

    checkpoint: Path
    of: StreamOf
    trigger: Trigger
    limits: Limits
    start: Bound = "earliest"
    bytes_per_task: int = 32 * 1024 * 1024
    mark_is_final: bool = True
    space: str = DEFAULT_SPACE

    def __post_init__(self) -> None:
        trigger = self.trigger
        seconds = isinstance(trigger, int | float) and not isinstance(trigger, bool) and 0 <= trigger < math.inf
        if trigger != "available_now" and not seconds:
            raise InvalidInput(f"trigger must be 'available_now' or seconds between two batches, not {trigger!r}")
        checked_task_bytes(self.bytes_per_task)
        # What makes no sense is said now.
        first_ids(self.start_at(lambda partition_id, time_ms: 0), dict.fromkeys(self.of.partitions, -1))

    def hold_name(self, stream_id: str) -> str:
        """Of the hold with which the stream keeps what it has not read."""
        return f"spark.{self.space}.{stream_id}"

    def start_at(self, first_id_at: Callable[[int, int], int]) -> Bound:
        """``start``, with the transaction ID of each partition in place of a time."""
        return at_time("start", self.start, self.of.partitions, first_id_at)


class FeedStream:
    """A stream that may be run: in this thread (``run``), or in one of its own (``start``).

    ``connect()`` opens the connection to the log; ``prepare(stream ID)`` gives what runs a batch.
    """

    def __init__(
        self,
        settings: RunSettings,
        connect: Callable[[], LogEnds],
        prepare: Callable[[str], RunBatch],
        on_progress: Callable[[BatchProgress], None] | None = None,
        files: OffsetFiles | None = None,
    ) -> None:
        self._settings = settings
        self._connect = connect
        self._prepare = prepare
        self._on_progress = on_progress
        self._files = files
        self._stopping = threading.Event()
        self._running = threading.Lock()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.last_progress: BatchProgress | None = None
        """Of the last batch this object has committed."""

    # ---- control ----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run in this thread until the trigger's end or ``stop()``. Raises whatever ends it otherwise.

        May be called again: it goes on where the checkpoint says.
        """
        self._take()
        try:
            self._run()
        finally:
            self._running.release()

    def start(self) -> FeedStream:
        """Run in a thread of its own; ``await_termination`` says how it ended."""
        self._take()
        self._error = None
        self._thread = threading.Thread(target=self._run_in_thread, name="waltz stream", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self._running.release()
            raise
        return self

    def _take(self) -> None:
        if not self._running.acquire(blocking=False):
            raise InvalidInput("this stream is running already")
        self._stopping.clear()  # of an earlier run, which may have ended before it

    @property
    def is_active(self) -> bool:
        """Whether it runs now."""
        return self._running.locked()

    def stop(self) -> None:
        """End after the batch that runs now, or do nothing. Returns at once; ``await_termination`` waits."""
        self._stopping.set()

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait until the thread of ``start`` has ended: True, or False after ``timeout_s``. Raises what ended it."""
        if self._thread is None:
            raise InvalidInput("there is nothing to wait for: start() the stream first")
        if timeout_s is not None and not timeout_s >= 0:  # nor is NaN
            raise InvalidInput(f"timeout_s must be a number of seconds, at least 0, or None, not {timeout_s!r:.60}")
        self._thread.join(None if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX))
        if self._thread.is_alive():
            return False
        error, self._error = self._error, None
        if error is not None:
            raise error
        return True

    def _run_in_thread(self) -> None:
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001 - raised again by await_termination
            self._error = error
            log.error("the stream of %s has ended: %s", self._settings.of.cluster, error)
        finally:
            self._running.release()

    # ---- the loop ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        ends = self._connect()
        try:
            offsets = OffsetLog(
                self._settings.checkpoint,
                self._settings.of,
                lambda stream_id: self._begin(ends, stream_id),
                self._files,
            )
            try:
                self._hold(ends, offsets.stream_id, offsets.ends)
                self._batches(ends, offsets, self._prepare(offsets.stream_id))
            finally:
                offsets.close()
        finally:
            ends.close()

    def _begin(self, ends: LogEnds, stream_id: str) -> Mapping[int, int]:
        """Where a new stream begins. Held before it is written down: a checkpoint never has what is gone already."""
        settings = self._settings
        while True:
            beginnings = ends.beginnings(settings.of.partitions)
            begin = first_ids(settings.start_at(ends.first_id_at), self._marks(ends), beginnings)
            try:
                self._hold(ends, stream_id, begin)
            except Trimmed:
                if isinstance(settings.start, int | Mapping):
                    raise
                continue  # the log was trimmed between the two: look again
            return begin

    def _hold(self, ends: LogEnds, stream_id: str, positions: Mapping[int, int]) -> None:
        """What this stream has not committed is not trimmed. Trimmed if it has been."""
        checkpoint = f"{platform.node()}:{self._settings.checkpoint}"
        ends.hold(self._settings.hold_name(stream_id), positions, f"Spark stream with checkpoint {checkpoint}")

    def _batches(self, ends: LogEnds, offsets: OffsetLog, run_batch: RunBatch) -> None:
        trigger = self._settings.trigger
        goal = self._marks(ends) if trigger == "available_now" else None
        while not self._stopping.is_set():
            began = time.monotonic()
            marks = goal or self._marks(ends)
            done = self._one_batch(ends, offsets, run_batch, marks)
            if trigger == "available_now":
                if not done:
                    return
            else:
                self._stopping.wait(min(max(0.0, began + float(trigger) - time.monotonic()), threading.TIMEOUT_MAX))

    def _one_batch(self, ends: LogEnds, offsets: OffsetLog, run_batch: RunBatch, marks: Mapping[int, int]) -> bool:
        """The one that was left over or the next one; False if there is nothing to read up to ``marks``."""
        begin = time.monotonic()
        batch, replayed = offsets.pending, offsets.pending is not None
        self._check_not_ahead(offsets, marks)
        available = [Range(p, offsets.ends[p], mark + 1) for p, mark in sorted(marks.items())]
        available = [each for each in available if each.first_id < each.end_id]
        if batch is None and not available:
            return False
        record_bytes = ends.record_bytes(_first_of_each(batch.ranges) if batch is not None else available)
        if batch is None:
            wanted = self._settings.limits.of(available, record_bytes)
            batch = offsets.plan(tuple(split_ranges(wanted, record_bytes, self._settings.bytes_per_task)))
        run_batch(batch.ranges, batch.batch_id)
        records = sum(each.end_id - each.first_id for each in batch.ranges)
        offsets.commit(records=records)
        self._hold(ends, offsets.stream_id, offsets.ends)
        self._report(batch, records, record_bytes, marks, time.monotonic() - begin, replayed)
        return True

    def _check_not_ahead(self, offsets: OffsetLog, marks: Mapping[int, int]) -> None:
        for partition_id, mark in marks.items():
            end_id = offsets.ends[partition_id]
            if self._settings.mark_is_final and end_id > max(mark + 1, offsets.start[partition_id]):
                raise ClientAhead(
                    f"the stream has read partition {partition_id} up to {end_id - 1}, but its log ends with {mark}: "
                    f"has the cluster lost its log? {self._settings.checkpoint} is of another one"
                )

    def _marks(self, ends: LogEnds) -> dict[int, int]:
        return {p: ends.high_water_mark(p) for p in self._settings.of.partitions}

    def _report(
        self,
        batch: StreamBatch,
        records: int,
        record_bytes: Mapping[int, float],
        marks: Mapping[int, int],
        duration_s: float,
        replayed: bool,
    ) -> None:
        size = sum((each.end_id - each.first_id) * record_bytes.get(each.partition_id, 0.0) for each in batch.ranges)
        lag = {p: max(0, mark + 1 - batch.ends[p]) for p, mark in marks.items()}
        rate = records / max(duration_s, 1e-9)
        progress = BatchProgress(batch.batch_id, records, round(size), duration_s, rate, lag, replayed)
        self.last_progress = progress
        publish(self._settings.of.cluster, str(self._settings.checkpoint), progress)
        if self._on_progress is not None:
            self._on_progress(progress)


def _first_of_each(ranges: Sequence[Range]) -> list[Range]:
    """The first range of each partition."""
    return list({each.partition_id: each for each in reversed(ranges)}.values())
