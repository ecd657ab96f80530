"""What becomes of a partition's appends: the machine's verdicts turned into futures, re-sends and re-executions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from waltz_ray.client.outbox import Outbox
from waltz_ray.client.requests import AppendCall, ManyAppend, Sending, Unsent, unsent
from waltz_ray.errors import AccessRefused, AppendFailed, InvalidInput, LockConflict, WaltzError
from waltz_ray.protocol.client_monitor import Piece
from waltz_ray.protocol.messages.client import RejectionCode
from waltz_ray.protocol.records import Int64s

__all__ = ["Completion", "ContextFates", "Fates"]

Completion = tuple[AppendCall, int]  # an attempt of a context, and its transaction ID


class ContextFates(Protocol):
    """Who runs contexts again. Called on the client's loop; must not block."""

    def lock_failed(self, append: AppendCall, transaction_id: int) -> None:
        """A context's attempt was refused because of ``transaction_id``."""

    def failed(self, append: AppendCall) -> None:
        """A context's attempt is known not to be in the log."""


class Fates:
    """The appends of one partition that have been sent. On the client's loop only."""

    def __init__(self, partition_id: int, outbox: Outbox, contexts: ContextFates) -> None:
        self._partition_id = partition_id
        self._outbox = outbox
        self._contexts = contexts
        self.committed = self.lock_conflicts = self.retries = 0

    def in_the_log(self, pieces: Sequence[Piece[Sending]], transaction_ids: Int64s) -> list[Completion]:
        """Own records, in the order of the log; the contexts among them."""
        ended: list[Completion] = []
        for batch, start, size, offset in pieces:
            self.committed += size
            if batch.plain:
                ids = transaction_ids[offset : offset + size].tolist()
                ended += zip(batch.pieces[start : start + size], ids, strict=True)  # type: ignore[arg-type]
            else:
                self._add_ended(ended, batch.pieces_of(start, size, offset), transaction_ids)
        appends = [append for append, _ in ended]
        self._outbox.free(appends)
        completions: list[Completion] = []
        for completion in ended:
            append, transaction_id = completion
            if append.run is not None:
                completions.append(completion)
            elif isinstance(append, ManyAppend):
                append.end()
            else:
                append.future.set_result(transaction_id)
        self._outbox.forget(appends)
        return completions

    @staticmethod
    def _add_ended(ended: list[Completion], pieces: Iterable[Piece[AppendCall]], transaction_ids: Int64s) -> None:
        for append, start, size, offset in pieces:
            ids = transaction_ids[offset : offset + size]
            if not isinstance(append, ManyAppend) or append.committed(start, ids):
                ended.append((append, int(ids[0])))

    def lock_failed(self, pieces: Sequence[Piece[Sending]], transaction_ids: Int64s) -> None:
        """A plain append tells its caller; a context waits for the transaction that was in its way."""
        refused = _of_appends(pieces)
        self.lock_conflicts += sum(piece.size for piece in refused)
        appends = _still_open(refused)
        self._outbox.drop(appends)
        self._outbox.free(appends)
        for append, _, _, offset in refused:
            transaction_id = int(transaction_ids[offset])
            if append.run is not None:
                self.retries += 1
                self._contexts.lock_failed(append, transaction_id)
            else:
                append.fail(LockConflict(self._partition_id, transaction_id))
        self._outbox.forget(appends)

    def unknown(self, pieces: Sequence[Piece[Sending]], error: WaltzError) -> None:
        """Nobody can tell any more whether these are in the log; they are not sent again."""
        self._end(pieces, error)

    def refused(self, pieces: Sequence[Piece[Sending]], reason: str, code: RejectionCode) -> None:
        """Fail these appends for good: they are not in the log and would be refused again. Too large is invalid."""
        self._end(pieces, _REFUSALS.get(code, AppendFailed)(reason))

    def _end(self, pieces: Sequence[Piece[Sending]], error: WaltzError) -> None:
        appends = _still_open(_of_appends(pieces))
        self._outbox.drop(appends)
        self._outbox.free(appends)
        for append in appends:
            append.fail(error)
        self._outbox.forget(appends)

    def failed(self, pieces: Sequence[Piece[Sending]], reason: str) -> None:
        """Send these appends again, unless the caller does not want that: they are known not to be in the log."""
        again: list[Unsent] = []
        contexts: list[AppendCall] = []
        given_up: list[AppendCall] = []
        for piece in _of_appends(pieces):
            append = piece.token
            if append.run is not None:
                contexts.append(append)
            elif append.future.done():
                continue  # another piece of it has already ended in an error
            elif append.retry:
                again.append(unsent(piece))
            else:
                given_up.append(append)
        given_up = [*dict.fromkeys(given_up)]
        self.retries += len(again) + len(contexts)
        self._outbox.put_back(again)
        self._outbox.drop(given_up)
        self._outbox.free(contexts + given_up)
        for append in contexts:
            self._contexts.failed(append)
        for append in given_up:
            append.fail(AppendFailed(f"{reason}; append it again"))
        self._outbox.forget(contexts + given_up)


_REFUSALS: dict[RejectionCode, type[WaltzError]] = {
    RejectionCode.TOO_LARGE: InvalidInput,
    RejectionCode.NOT_ALLOWED: AccessRefused,
}


def _of_appends(pieces: Iterable[Piece[Sending]]) -> list[Piece[AppendCall]]:
    """Whose they are; the server, too, may divide what came in one frame."""
    found = [one for batch, start, size, offset in pieces for one in batch.pieces_of(start, size, offset)]
    for append, _, size, _ in found:
        if isinstance(append, ManyAppend) and size < append.count:
            append.divided = True
    return found


def _still_open(pieces: Iterable[Piece[AppendCall]]) -> list[AppendCall]:
    """Each append once, and none that has ended in an error because of another piece of it."""
    return [*dict.fromkeys(piece.token for piece in pieces if not piece.token.future.done())]
