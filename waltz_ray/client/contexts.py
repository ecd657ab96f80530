"""Runs transaction contexts: execute, append, and again until the transaction commits or the code gives up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from waltz_ray.client.application import SubmitResult, TransactionBuilder, TransactionContext, checked_header
from waltz_ray.client.codecs import Codec, checked_data, encoded
from waltz_ray.client.futures import Fate
from waltz_ray.client.keys import lock_hash
from waltz_ray.client.lock_lines import LockLines, Place
from waltz_ray.client.requests import AppendCall, check_size
from waltz_ray.client.shell import Shell
from waltz_ray.config import ClientConfig
from waltz_ray.errors import AppendFailed, ClientClosed, InvalidInput, WaltzError
from waltz_ray.protocol.checksum import crc32
from waltz_ray.protocol.ids import NO_TRANSACTION

__all__ = ["ContextPort", "ContextRun", "ContextRunner"]


class ContextPort(Protocol):
    """What a context needs of one partition."""

    @property
    def lines(self) -> LockLines:
        """The lines in which contexts that want the same lock wait for each other."""

    @property
    def applied_mark(self) -> int | None:
        """The client's high-water mark; None if this client applies nothing.

        -1 while the application is told of an error: it may go back, and nobody knows how far.
        """

    @property
    def refusals(self) -> int:
        """How often the application has refused a transaction, and so may have gone back."""

    def put(self, append: AppendCall) -> None:
        """Send it. May wait for room where contexts may wait; raises what an append may end with."""

    def when_applied(self, transaction_id: int, action: Callable[[], None]) -> None:
        """Call ``action`` once this client has applied ``transaction_id``."""


class ContextRun:
    """One ``submit``: a context, its future, and nothing that lasts beyond them."""

    def __init__(self, runner: ContextRunner, context: TransactionContext, future: Fate[SubmitResult]) -> None:
        self._runner = runner
        self.context = context
        self.conflict: int | None = None  # the transaction that refused the latest attempt
        self.place: Place | None = None  # of the latest refused attempt, in the lines of ``lines``
        self.lines: LockLines | None = None
        self.future = future
        self.ended = False
        self.thread: int | None = None  # on which it executes just now
        self.expired: WaltzError | None = None  # with which it ends instead of another attempt
        self.partition_id = -1

    def fail(self, error: BaseException) -> None:
        """No further attempt: the client cannot append."""
        self._runner.fail(self, error)


class ContextRunner:
    """``execute`` and most hooks run where the shell runs contexts; ``on_completion(True)`` runs where callbacks run,
    before the transaction is applied.
    """

    def __init__(
        self,
        partitions: int,
        config: ClientConfig,
        port: Callable[[int], ContextPort],
        shell: Shell,
        codec: Codec | None = None,
    ) -> None:
        self._partitions = partitions
        self._config = config
        self._codec = codec
        self._port = port
        self._shell = shell
        self._lock = threading.Lock()
        self._runs: dict[ContextRun, None] = {}  # in their order
        self._closed = False

    def submit(self, context: TransactionContext, future: Fate[SubmitResult]) -> ContextRun:
        """Run it until it ends; ``future`` is told how. InvalidInput: it is no context."""
        if not isinstance(context, TransactionContext):
            raise InvalidInput(f"submit takes a TransactionContext, not {type(context).__name__}: {context!r:.60}")
        run = ContextRun(self, context, future)
        try:
            with self._lock:
                if self._closed:
                    raise ClientClosed("the client is closed, this was not sent; connect again")
                self._runs[run] = None
            self.again(run)
        except BaseException as error:  # no thread, or Ctrl-C: nobody is to wait for one that may never be begun
            if self._take_out(run):
                future.set_exception(error)
            raise
        return run

    def open_runs(self) -> list[ContextRun]:
        """Every context that has not ended."""
        with self._lock:
            return list(self._runs)

    @property
    def executes_here(self) -> bool:
        """Who asks is the code of a context, which does not end before he goes on."""
        thread = threading.get_ident()
        return any(run.thread == thread for run in self.open_runs())

    def again(self, run: ContextRun) -> None:
        """The next attempt, later."""
        self._shell.run_context(self._execute, run)

    def lock_failed(self, append: AppendCall, port: ContextPort, transaction_id: int) -> None:
        """The next attempt when the transaction that was in the way has been applied, and this one's turn has come."""
        run = append.run
        assert run is not None
        if run.ended:
            return  # it must not hold up who stands behind it
        run.conflict = transaction_id
        # Read locks exclude nobody, and append locks are not refused.
        place, hashes = run.place, frozenset(append.locks[0] if append.locks else ())
        if place is not None and place.hashes == hashes and run.lines is port.lines:
            place.after = max(place.after, transaction_id)
            self._when_applied(run, port)
            return
        self._leave(run, NO_TRANSACTION)
        run.place, run.lines = Place(hashes, transaction_id, lambda: self._when_applied(run, port)), port.lines
        port.lines.enter(run.place)

    def _when_applied(self, run: ContextRun, port: ContextPort) -> None:
        place = run.place
        if place is not None:  # else it has ended meanwhile: the client is being closed
            port.when_applied(place.after, lambda: self.again(run))

    @staticmethod
    def _leave(run: ContextRun, transaction_id: int) -> None:
        place, run.place = run.place, None
        if place is not None:
            assert run.lines is not None
            run.lines.leave(place, transaction_id)

    def committed(self, run: ContextRun, transaction_id: int) -> BaseException | None:
        """Before it is applied: tell the context; what it raises is returned, the transaction stays committed."""
        return self._complete(run, True, transaction_id)

    def fail(self, run: ContextRun, error: BaseException) -> None:
        """End without commit because of ``error``."""
        self._shell.run_context(self._end_in_error, run, error)

    def give_up(self, lines: LockLines, error: BaseException) -> None:
        """Nothing more will be applied: end those that stand in line for it."""
        for run in self.open_runs():
            if run.place is not None and run.lines is lines:
                self.fail(run, error)

    def cancel(self, run: ContextRun, error: BaseException) -> None:
        """Nobody waits for it any more: no further attempt. One that is under way may still commit."""
        self._end_in_error(run, error)

    def expire(self, run: ContextRun, timeout: float) -> None:
        """Its time is over: no further attempt. One that is under way may still commit."""
        run.expired = AppendFailed(
            f"the context did not commit within {timeout:g} s: no attempt of it is in the log; submit it again"
        )

    def leave_to_parent(self) -> None:
        """In a forked child, which has no thread for any: no further one is taken."""
        self._lock = threading.Lock()  # whoever held it is in the parent
        self._closed = True

    def close(self) -> None:
        """End what is left with ClientClosed; waits for what is running (``Shell.stop_contexts``)."""
        with self._lock:
            self._closed = True
        for run in self.open_runs():
            if run.thread is None:  # one that executes may be waiting for this one
                self._end_in_error(run, self._closed_error())
        self._shell.stop_contexts()
        for run in self.open_runs():
            self._end_in_error(run, self._closed_error())

    @staticmethod
    def _closed_error() -> ClientClosed:
        return ClientClosed("the client was closed before the transaction had its fate")

    def _execute(self, run: ContextRun) -> None:
        thread = run.thread = threading.get_ident()
        try:
            self._attempt(run)
        finally:
            if run.thread == thread:  # else the next attempt has begun
                run.thread = None

    def _attempt(self, run: ContextRun) -> None:
        if run.ended:
            return
        try:
            if run.expired is not None:
                raise run.expired
            if run.conflict is not None:
                conflict, run.conflict = run.conflict, None
                run.context.on_lock_failure(conflict)
            partition_id = run.partition_id = run.context.partition_id(self._partitions)
            port = self._port(partition_id)
            # Before the application reads its state: a mark from later would claim too much.
            refusals, mark = port.refusals, port.applied_mark
            builder = TransactionBuilder()
            if run.context.execute(builder):
                if port.refusals != refusals:
                    # The application may have gone back before it was read, so that it knew less than the mark says.
                    self.again(run)
                    return
                port.put(self._append(run, partition_id, builder, mark))
                return
        except BaseException as error:  # noqa: BLE001 - application code may raise anything; its future carries it
            self._end_in_error(run, error)
            return
        error_in_hook = self._complete(run, False, NO_TRANSACTION)
        if error_in_hook is not None:
            raise error_in_hook  # for the log

    def _append(self, run: ContextRun, partition_id: int, builder: TransactionBuilder, mark: int | None) -> AppendCall:
        data = self._data(run, builder)
        locks = builder.write_locks, builder.read_locks, builder.append_locks
        check_size(partition_id, len(data), sum(map(len, locks)), self._config.max_frame_bytes)
        append = AppendCall(data, checked_header(builder.header), crc32(data), run=run)
        if any(locks):
            if mark is None:
                raise InvalidInput(
                    "a context that takes locks needs a client with callbacks: this one applies nothing, "
                    "so it cannot say how much its application knows"
                )
            write, read, appended = ([lock_hash(lock) for lock in kind] for kind in locks)
            append.take_locks(mark, (write, read, appended))
        return append

    def _data(self, run: ContextRun, builder: TransactionBuilder) -> bytes:
        has_value = hasattr(builder, "value")
        if has_value == (builder.data is not None):
            both = "both builder.data and builder.value" if has_value else "no builder.data"
            raise InvalidInput(f"{type(run.context).__name__}.execute returned True but set {both}")
        return encoded(self._codec, builder.value) if has_value else checked_data(builder.data)

    def _complete(self, run: ContextRun, committed: bool, transaction_id: int) -> BaseException | None:
        if not self._take_out(run):
            return None
        self._leave(run, transaction_id)
        problem: BaseException | None = None
        try:
            run.context.on_completion(committed)
        except BaseException as error:  # noqa: BLE001 - the fate stands whatever the hook does
            problem = error
        run.future.set_result(SubmitResult(run.partition_id, transaction_id if committed else None))
        return problem

    def _end_in_error(self, run: ContextRun, error: BaseException) -> None:
        if not self._take_out(run):
            return
        self._leave(run, NO_TRANSACTION)
        try:
            run.context.on_exception(error)
        except BaseException as hook_error:  # noqa: BLE001 - the future carries both
            hook_error.__cause__ = error
            error = hook_error
        run.future.set_exception(error)

    def _take_out(self, run: ContextRun) -> bool:
        """True for the one caller that may end it."""
        with self._lock:
            if run not in self._runs:
                return False
            del self._runs[run]
            run.ended = True
            return True
