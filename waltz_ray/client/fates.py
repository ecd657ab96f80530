"""What becomes of a partition's appends: the monitor's verdicts turned into futures, re-sends and re-executions."""

from __future__ import annotations

from typing import Protocol

from waltz_ray.client.outbox import Outbox
from waltz_ray.client.requests import Append, Slice
from waltz_ray.config import ClientConfig
from waltz_ray.errors import AppendFailed, LockConflict
from waltz_ray.protocol.client_monitor import ClientMonitor, Piece
from waltz_ray.protocol.records import Int32s, Int64s
from waltz_ray.wire.batches import LockFailureBatch, Rejected, RejectionCode

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
        self.monitor: ClientMonitor[Append] = ClientMonitor(config.outstanding_appends)
        self.committed = self.lock_conflicts = self.retries = 0

    def entries(self, sequence_numbers: Int32s, transaction_ids: Int64s) -> list[Completion]:
        """Own entries of the log, in order; the contexts among them."""
        committed, failed = self.monitor.committed(sequence_numbers, transaction_ids)
        completions: list[Completion] = []
        finished: list[Append] = []
        for append, start, size, offset in committed:
            self.committed += size
            if append.run is not None:
                completions.append((append, int(transaction_ids[offset])))
                finished.append(append)
            elif append.committed(start, transaction_ids[offset : offset + size]):
                finished.append(append)
        self._outbox.finish(finished)
        self._fail(failed, self._dropped)
        return completions

    def lock_failures(self, message: LockFailureBatch) -> None:
        """A plain append tells its caller; a context waits for the transaction that was in its way."""
        pieces = self.monitor.lock_failed(message.sequence_numbers)
        self.lock_conflicts += sum(piece.size for piece in pieces)
        self._outbox.finish(piece.token for piece in pieces)
        for append, _, _, offset in pieces:
            transaction_id = int(message.transaction_ids[offset])
            if append.run is not None:
                self.retries += 1
                self._contexts.lock_failed(append, transaction_id)
            else:
                append.fail(LockConflict(self._partition_id, transaction_id))

    def rejected(self, message: Rejected) -> None:
        """Never admitted: again, unless sending it again cannot help."""
        pieces = self.monitor.rejected(message.sequence_numbers)
        reason = self.reason(message)
        if message.code not in _FINAL_REJECTIONS:
            self._fail(pieces, reason)
            return
        self._outbox.finish(piece.token for piece in pieces)
        for piece in pieces:
            piece.token.fail(AppendFailed(reason))

    def mounted_ready(self, high_water_mark: int) -> None:
        """What is still pending is not in the log."""
        self._fail(self.monitor.mounted_ready(high_water_mark), self._dropped)

    def reason(self, message: Rejected) -> str:
        return f"partition {self._partition_id}: the append was refused ({message.code.name}): {message.message}"

    @property
    def _dropped(self) -> str:
        return f"partition {self._partition_id}: the append was dropped before it was committed; it is not in the log"

    def _fail(self, pieces: list[Piece[Append]], reason: str) -> None:
        """These are known not to be in the log: again, unless the caller does not want that."""
        again: list[Slice] = []
        for append, start, size, _ in pieces:
            if append.run is not None:
                self.retries += 1
                self._outbox.finish([append])
                self._contexts.failed(append)
            elif append.future.done():
                continue  # another part of it has already ended in an error
            elif append.retry:
                self.retries += 1
                again.append(Slice(append, start, start + size))
            else:
                self._outbox.finish([append])
                append.fail(AppendFailed(f"{reason}; append it again"))
        self._outbox.put_back(again)
