"""Appends for ``waltz produce``: runs of records as one ``append_many``, and what became of every one of them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from waltz_ray.cli.produce_records import Record
from waltz_ray.client.keys import lock_of
from waltz_ray.errors import PartlyAppended
from waltz_ray.protocol.ids import NO_TRANSACTION, LockId

__all__ = ["ProducePort", "Sender", "Span"]


class ProducePort(Protocol):
    """What of a client is used."""

    def append(
        self,
        partition_id: int,
        data: bytes,
        header: int = 0,
        *,
        append_locks: tuple[LockId, ...] = (),
        client_mark: int | None = None,
    ) -> Future[int]: ...

    def append_many(self, partition_id: int, datas: Sequence[Any], headers: list[int]) -> Future[Any]: ...


@dataclass
class Span:
    """``records`` of a partition that are in the log; the lowest and the highest ID of them."""

    records: int
    first_id: int
    last_id: int


class Sender:
    """Used by one thread, which may be interrupted anywhere: the client's thread counts. ``limit``: records without a
    fate at which ``send`` waits."""

    def __init__(self, client: ProducePort, header: int, limit: int = 20_000) -> None:
        self._client, self._header, self._limit = client, header, limit
        self._changed = threading.Condition(threading.RLock())
        self.sent = 0
        """Records handed over, or about to be."""
        self._settled = 0
        self.appended = 0
        self.spans: dict[int, Span] = {}
        self._error: BaseException | None = None

    @property
    def open(self) -> int:
        """Records without a known fate."""
        return self.sent - self._settled

    def send(self, partition_id: int, records: Sequence[Record]) -> None:
        """Append them in their order. Raises what an earlier one failed with."""
        run: list[Record] = []
        for record in records:
            if record.lock is not None:
                self._many(partition_id, run)
                self._locked(partition_id, record, record.lock)
                run = []
            else:
                run.append(record)
        self._many(partition_id, run)

    def finish(self, timeout_s: float | None = None) -> None:
        """Wait for all fates. Raises what one failed with."""
        self._wait(0, timeout_s)

    def abandon(self, timeout_s: float) -> None:
        """Wait for the fates of what is under way, whatever they are, at most so long."""
        with self._changed:
            self._changed.wait_for(lambda: not self.open, timeout_s)

    def _many(self, partition_id: int, run: list[Record]) -> None:
        if run:
            self._begin(len(run))
            future = self._client.append_many(partition_id, [r.data for r in run], [*map(self._header_of, run)])
            future.add_done_callback(partial(self._done, partition_id, len(run)))

    def _locked(self, partition_id: int, record: Record, lock: tuple[str, str | int]) -> None:
        self._begin(1)
        locks, header = (lock_of(*lock),), self._header_of(record)
        future = self._client.append(partition_id, record.data, header, append_locks=locks, client_mark=NO_TRANSACTION)
        future.add_done_callback(partial(self._done, partition_id, 1))

    def _header_of(self, record: Record) -> int:
        return self._header if record.header is None else record.header

    def _begin(self, count: int) -> None:
        self._wait(max(0, self._limit - count), None)
        with self._changed:
            self.sent += count

    def _wait(self, most_open: int, timeout_s: float | None) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or self.open <= most_open, timeout_s)
            if self._error is not None:
                raise self._error

    def _done(self, partition_id: int, count: int, future: Future[Any]) -> None:
        error = future.exception()
        if error is None:
            result = future.result()
            ids = [result] if isinstance(result, int) else [int(each) for each in result]
        else:
            ids = [each for each in error.transaction_ids if each >= 0] if isinstance(error, PartlyAppended) else []
        with self._changed:
            self._error = self._error or error
            self._settled += count
            if ids:
                self.appended += len(ids)
                span = self.spans.setdefault(partition_id, Span(0, ids[0], ids[0]))
                span.records += len(ids)
                span.first_id, span.last_id = min(span.first_id, *ids), max(span.last_id, *ids)
            self._changed.notify_all()
