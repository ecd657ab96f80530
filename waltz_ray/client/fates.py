"""What becomes of a partition's appends: the monitor's verdicts turned into futures, re-sends and re-executions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from waltz_ray.client.outbox import Outbox
from waltz_ray.client.requests import Append, Batch, ManyAppend, Part, Slice
from waltz_ray.config import ClientConfig
from waltz_ray.errors import AppendFailed, LockConflict
from waltz_ray.protocol.client_monitor import ClientMonitor, Piece
from waltz_ray.protocol.messages.client import LockFailureBatch, Rejected, RejectionCode
from waltz_ray.protocol.records import Int32s, Int64s

__all__ = ["Completion", "ContextFates", "Fates"]

Completion = tuple[Append, int]  # an attempt of a context, and its transaction ID

_FINAL_REJECTIONS = (RejectionCode.BAD_CHECKSUM, RejectionCode.TOO_LARGE)


class ContextFates(Protocol):
    """Who runs contexts again. Called on the IO thread; must not block."""

    def lock_failed(self, append: Append, transaction_id: int) -> None:
        """A context's attempt was refused because of ``transaction_id``."""

    def failed(self, append: Append) -> None:
        """A context's attempt is known not to be in the log."""


class Fates:
    """The appends of one partition that have been sent. IO thread only."""

    def __init__(self, partition_id: int, config: ClientConfig, outbox: Outbox, contexts: ContextFates) -> None:
        self._partition_id = partition_id
        self._outbox = outbox
        self._contexts = contexts
        self.monitor: ClientMonitor[Batch] = ClientMonitor(config.outstanding_appends)
        self.committed = self.lock_conflicts = self.retries = 0

    def entries(self, sequence_numbers: Int32s, transaction_ids: Int64s) -> list[Completion]:
        """Own entries of the log, in order; the contexts among them."""
        committed, failed = self.monitor.committed(sequence_numbers, transaction_ids)
        ended: list[Completion] = []
        for batch, start, size, offset in committed:
            self.committed += size
            if batch.plain:
                ids = transaction_ids[offset : offset + size].tolist()
                ended += zip(batch.entries[start : start + size], ids, strict=True)  # type: ignore[arg-type]
            else:
                self._add_ended(ended, batch.parts(start, size, offset), transaction_ids)
        appends = [append for append, _ in ended]
        self._outbox.free(appends)
        completions: list[Completion] = []
        for completion in ended:
            append, transaction_id = completion
            if append.run is not None:
                completions.append(completion)
            else:
                append.future.set_result(append.ids if isinstance(append, ManyAppend) else transaction_id)
        self._outbox.forget(appends)
        if failed:
            self._fail([*self._parts(failed)], self._dropped)
        return completions

    @staticmethod
    def _add_ended(ended: list[Completion], parts: Iterable[Part], transaction_ids: Int64s) -> None:
        for append, start, size, offset in parts:
            ids = transaction_ids[offset : offset + size]
            if not isinstance(append, ManyAppend) or append.committed(start, ids):
                ended.append((append, int(ids[0])))

    def lock_failures(self, message: LockFailureBatch) -> None:
        """A plain append tells its caller; a context waits for the transaction that was in its way."""
        parts = [*self._parts(self.monitor.lock_failed(message.sequence_numbers))]
        self.lock_conflicts += sum(part.size for part in parts)
        appends = _open_appends(parts)
        self._outbox.free(appends)
        for append, _, _, offset in parts:
            transaction_id = int(message.transaction_ids[offset])
            if append.run is not None:
                self.retries += 1
                self._contexts.lock_failed(append, transaction_id)
            else:
                append.fail(LockConflict(self._partition_id, transaction_id))
        self._outbox.forget(appends)

    def rejected(self, message: Rejected) -> None:
        """Never admitted: again, unless sending it again cannot help."""
        parts = [*self._parts(self.monitor.rejected(message.sequence_numbers))]
        reason = self.reason(message)
        if message.code not in _FINAL_REJECTIONS:
            self._fail(parts, reason)
            return
        appends = _open_appends(parts)
        self._outbox.free(appends)
        for append in appends:
            append.fail(AppendFailed(reason))
        self._outbox.forget(appends)

    def mounted_ready(self, high_water_mark: int) -> None:
        """What is still pending is not in the log."""
        self._fail([*self._parts(self.monitor.mounted_ready(high_water_mark))], self._dropped)

    def reason(self, message: Rejected) -> str:
        return f"partition {self._partition_id}: the append was refused ({message.code.name}): {message.message}"

    @property
    def _dropped(self) -> str:
        return f"partition {self._partition_id}: the append was dropped before it was committed; it is not in the log"

    def _fail(self, parts: list[Part], reason: str) -> None:
        """These are known not to be in the log: again, unless the caller does not want that."""
        again: list[Append | Slice] = []
        contexts: list[Append] = []
        given_up: list[Append] = []
        for part in parts:
            append = part.append
            if append.run is not None:
                contexts.append(append)
            elif append.future.done():
                continue  # another part of it has already ended in an error
            elif append.retry:
                again.append(part.entry)
            else:
                given_up.append(append)
        self.retries += len(again) + len(contexts)
        self._outbox.put_back(again)
        self._outbox.free(contexts + given_up)
        for append in contexts:
            self._contexts.failed(append)
        for append in given_up:
            append.fail(AppendFailed(f"{reason}; append it again"))
        self._outbox.forget(contexts + given_up)

    @staticmethod
    def _parts(pieces: Iterable[Piece[Batch]]) -> Iterator[Part]:
        for batch, start, size, offset in pieces:
            yield from batch.parts(start, size, offset)


def _open_appends(parts: list[Part]) -> list[Append]:
    """Each append once, and none that has ended in an error because of another part of it."""
    return [*dict.fromkeys(part.append for part in parts if not part.append.future.done())]
