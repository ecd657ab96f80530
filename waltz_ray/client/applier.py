"""Hands committed transactions to an application, one turn after another; whoever drives it says on which thread.

A turn takes all that is waiting of one partition at a time: first ``on_completion(True)`` of the contexts among it,
then ``apply_transactions``. Feed credit goes back to the server only after that, so what waits here is bounded by
``feed_credit_bytes`` per partition.

When the application raises, the transactions stay here, the mark is asked from the application again, and after a
pause the rest is applied again. If the application went further back than what is here (it restored an older
database), the partition is *rewound*: the server feeds it again from there.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count

from waltz_ray.client.application import Callbacks, checked_mark
from waltz_ray.client.fates import Completion
from waltz_ray.client.feeds import FeedFrame, Origin, Transactions
from waltz_ray.client.shell import Shell
from waltz_ray.errors import WaltzError
from waltz_ray.net.backoff import Backoff
from waltz_ray.protocol.messages.client import FeedBatch
from waltz_ray.protocol.records import RecordBatch

__all__ = ["Applier", "ApplyQueue"]

logger = logging.getLogger(__name__)

Delivery = tuple[RecordBatch | FeedBatch | None, Sequence[Completion], int, int]  # feed, contexts, frame bytes, epoch


class ApplyQueue:
    """What of one partition has been delivered and not applied, and how far the application is."""

    def __init__(
        self,
        partition_id: int,
        mark: int,
        give_credit: Callable[[int], None],
        rewind: Callable[[int, int], None],
    ) -> None:
        self.partition_id = partition_id
        self.mark = mark
        """ID of the last transaction applied."""
        self.give_credit = give_credit
        self.rewind = rewind
        self.deliveries: deque[Delivery] = deque()
        self.kept = Transactions([])  # refused by the application
        self.kept_bytes = 0
        self.epoch = 0
        self.refusals = 0
        """How often the application has refused transactions; it may have gone back each time."""
        self.trouble: BaseException | None = None
        """What the application refused transactions with, until it takes them."""
        self.refusing = False
        """It is being told of that: ``mark`` may be more than it knows."""
        self.unsaid = False
        """The application could not say how far it is when it was asked last."""
        self.queued = False
        self.pauses = Backoff(longest_s=1.0, spread=0.0)  # nobody else waits for the same
        self.waiters: list[tuple[int, int, Callable[[], None]]] = []  # heap: (transaction ID, tie-break, action)


class Applier:
    """All partitions of a client. ``turn`` never runs twice at the same time; the other methods are for any thread."""

    def __init__(
        self,
        callbacks: Callbacks | None,
        origin: Origin,
        completed: Callable[[Completion], BaseException | None],
        shell: Shell,
    ) -> None:
        self._callbacks = callbacks
        self._origin = origin
        self._completed = completed
        self._shell = shell
        self._lock = threading.Lock()
        self._ready: deque[ApplyQueue] = deque()
        self._paused: list[tuple[float, int, ApplyQueue]] = []  # heap by time
        self._reports: deque[tuple[int, int, BaseException]] = deque()
        self._ties = count()
        self._stopped = False
        self._ring = shell.drive(self.turn)

    @property
    def has_work(self) -> bool:
        """Something is waiting for the next turn."""
        return bool(self._ready)

    def deliver(self, queue: ApplyQueue, delivery: Delivery) -> None:
        """To be applied after what was delivered before."""
        with self._lock:
            queue.deliveries.append(delivery)
            if queue.queued:
                return
            queue.queued = True
            self._ready.append(queue)
        self._ring()

    def report(self, partition_id: int, transaction_id: int, error: BaseException) -> None:
        """Tell the application of an error that is not its own."""
        with self._lock:
            self._reports.append((partition_id, transaction_id, error))
        self._ring()

    def when_applied(self, queue: ApplyQueue, transaction_id: int, action: Callable[[], None]) -> None:
        """Call ``action`` once ``transaction_id`` has been applied, in a turn, or at once."""
        with self._lock:
            if queue.mark < transaction_id:
                heapq.heappush(queue.waiters, (transaction_id, next(self._ties), action))
                return
        action()

    def give_up(self, queue: ApplyQueue, action: Callable[[], None]) -> None:
        """Nobody waits for this ``action`` of ``when_applied`` any more."""
        with self._lock:
            queue.waiters = [waiter for waiter in queue.waiters if waiter[2] != action]
            heapq.heapify(queue.waiters)

    def stop(self) -> None:
        """Nothing more is applied; waits for the callback that is running, unless that is who calls."""
        with self._lock:
            self._stopped = True
        self._shell.stop_driving()

    def turn(self) -> float | None:
        """Apply what one partition has; see ``shell.Turn``."""
        with self._lock:
            if self._stopped:
                return None
            work = self._next()
            deliveries = list(work.deliveries) if work else []
            if work:
                work.deliveries.clear()
            reports = list(self._reports)
            self._reports.clear()
        for report in reports:
            self._given_up(*report)
        if work:
            self.apply(work, deliveries)
        with self._lock:
            if self._ready or self._reports:
                return 0.0
            return max(0.0, self._paused[0][0] - self._shell.monotonic()) if self._paused else None

    def _next(self) -> ApplyQueue | None:
        """The next partition with something to do, if there is one."""
        if self._paused and self._paused[0][0] <= self._shell.monotonic():
            queue = heapq.heappop(self._paused)[2]
        elif self._ready:
            queue = self._ready.popleft()
        else:
            return None
        queue.queued = False
        return queue

    def apply(self, queue: ApplyQueue, deliveries: list[Delivery]) -> None:
        """What a turn does with what has been delivered: contexts first, then their transactions are applied."""
        frames, frame_bytes = [*queue.kept.frames], queue.kept_bytes
        last = queue.kept.last_id if queue.kept else queue.mark
        for feed, completions, size, epoch in deliveries:
            for completion in completions:
                self.complete(queue, completion)
            frame_bytes += size
            if feed is not None and epoch == queue.epoch:
                frames.append(FeedFrame(feed, last, self._origin))
                last = max(last, feed.first_id + len(feed) - 1)
        queue.kept, queue.kept_bytes = Transactions([]), 0
        transactions = Transactions(frames)
        if queue.unsaid:  # it may have applied some of them: nothing comes again before it can say
            self._go_on(queue, transactions)
            queue.kept_bytes = frame_bytes
        elif not transactions or self._applied(queue, transactions):
            self._settle(queue, frame_bytes)
        else:
            queue.kept_bytes = frame_bytes

    def _settle(self, queue: ApplyQueue, frame_bytes: int) -> None:
        queue.pauses.reset()
        queue.trouble = None
        if frame_bytes:
            queue.give_credit(frame_bytes)

    def _applied(self, queue: ApplyQueue, transactions: Transactions) -> bool:
        """Hand them to the application; False if some of them have to come again."""
        assert self._callbacks is not None, "a client without callbacks is fed nothing"
        try:
            self._callbacks.apply_transactions(queue.partition_id, transactions)
        except BaseException as error:  # noqa: BLE001 - application code may raise anything; it is told
            return self._refused(queue, transactions, error)
        self._move(queue, transactions.last_id)
        return True

    def _refused(self, queue: ApplyQueue, transactions: Transactions, error: BaseException) -> bool:
        queue.refusals, queue.refusing, queue.trouble = queue.refusals + 1, True, error
        first_id = transactions[0].transaction_id
        failed_id = max(first_id, self.application_mark(queue, first_id - 1) + 1)
        self._uncaught(queue.partition_id, min(failed_id, transactions.last_id), error)
        self._go_on(queue, transactions)
        return False

    def _go_on(self, queue: ApplyQueue, transactions: Transactions) -> None:
        """After a pause, behind what the application says that it has: it may have decided to skip a transaction. All
        of them are kept where it cannot say."""
        first_id = transactions[0].transaction_id
        mark = self.application_mark(queue, first_id - 1)
        if not queue.unsaid:
            self._move(queue, mark)
            queue.refusing = False
        if mark + 1 < first_id:
            queue.epoch += 1
            queue.rewind(mark, queue.epoch)
        else:
            queue.kept = transactions.after(mark)
        with self._lock:
            if queue.queued:
                self._ready.remove(queue)
            queue.queued = True  # deliveries wait for the pause to end
            heapq.heappush(self._paused, (self._shell.monotonic() + queue.pauses.next_s(), next(self._ties), queue))

    def application_mark(self, queue: ApplyQueue, otherwise: int) -> int:
        """How far the application says it is, after it has refused transactions; ``otherwise`` if it cannot say."""
        assert self._callbacks is not None
        try:
            mark = checked_mark(self._callbacks.client_high_water_mark(queue.partition_id))
        except BaseException as error:  # noqa: BLE001 - told like any other; nothing is taken for applied
            queue.unsaid = True
            self._uncaught(queue.partition_id, otherwise + 1, error)
            return otherwise
        queue.unsaid = False
        return mark

    def _move(self, queue: ApplyQueue, mark: int) -> None:
        actions = []
        with self._lock:
            queue.mark = mark
            while queue.waiters and queue.waiters[0][0] <= mark:
                actions.append(heapq.heappop(queue.waiters)[2])
        for action in actions:
            action()

    def complete(self, queue: ApplyQueue, completion: Completion) -> None:
        """Tell a context that its transaction is committed."""
        error = self._completed(completion)
        if error is not None:
            self._uncaught(queue.partition_id, completion[1], error)

    def _given_up(self, partition_id: int, transaction_id: int, error: BaseException) -> None:
        if self._callbacks is None and isinstance(error, WaltzError):  # whose text is all there is to be known
            logger.error("partition %d is given up: %s", partition_id, error)
        else:
            self._uncaught(partition_id, transaction_id, error)

    def _uncaught(self, partition_id: int, transaction_id: int, error: BaseException) -> None:
        if self._callbacks is None:
            logger.error("partition %d, transaction %d: %r", partition_id, transaction_id, error, exc_info=error)
            return
        try:
            self._callbacks.uncaught_exception(partition_id, transaction_id, error)
        except BaseException:
            logger.exception("partition %d: Callbacks.uncaught_exception itself failed", partition_id)
