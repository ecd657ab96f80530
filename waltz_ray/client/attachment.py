"""One partition as a client has it: outbox for the application's threads, mount for the IO thread, apply queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from waltz_ray.client.applier import Applier, ApplyQueue
from waltz_ray.client.contexts import ContextRunner
from waltz_ray.client.directory import Location
from waltz_ray.client.fates import Completion
from waltz_ray.client.io_thread import IoThread
from waltz_ray.client.lock_lines import LockLines
from waltz_ray.client.mount_stream import MountStream
from waltz_ray.client.outbox import Outbox
from waltz_ray.client.partition import Partition
from waltz_ray.client.requests import Append
from waltz_ray.client.stream import StreamPool
from waltz_ray.config import ClientConfig
from waltz_ray.errors import ClientAhead
from waltz_ray.protocol.ids import NO_TRANSACTION
from waltz_ray.protocol.messages.client import FeedBatch, FeedMode
from waltz_ray.protocol.records import RecordBatch

__all__ = ["Attachment"]


class Attachment:
    """Connects the parts; has no rules of its own. It is the ``Sink`` of its partition."""

    def __init__(
        self,
        partition_id: int,
        client_id: int,
        mode: FeedMode,
        mark: int,
        config: ClientConfig,
        io: IoThread,
        streams: StreamPool[MountStream],
        applier: Applier,
        runner: ContextRunner,
        ready_changed: Callable[[], None],
    ) -> None:
        self._io = io
        self._applier = applier
        self._runner = runner
        self._ready_changed = ready_changed
        self.lines = LockLines()
        self._credit_step_bytes = config.feed_credit_bytes // 4
        self._applied_bytes = 0  # not yet told to the partition; what a mount may still send is smaller by as much
        self._applies = mode in (FeedMode.RECORDS, FeedMode.HEADERS)
        self.outbox = Outbox(partition_id, config, self._wake, lambda: not io.is_current)
        self.queue = ApplyQueue(partition_id, mark, self._give_credit, self._rewind)
        self.partition = Partition(partition_id, client_id, mode, mark, config, streams, self.outbox, self)

    def start(self, location: Location | None) -> None:
        """On the IO thread: begin to mount."""
        self.partition.start(location)
        self.partition.wake()

    # ---- ContextPort

    @property
    def applied_mark(self) -> int | None:
        if not self._applies:
            return None
        return NO_TRANSACTION if self.queue.refusing else self.queue.mark

    @property
    def refusals(self) -> int:
        return self.queue.refusals

    def put(self, append: Append) -> None:
        self.outbox.put(append)

    def when_applied(self, transaction_id: int, action: Callable[[], None]) -> None:
        self._applier.when_applied(self.queue, transaction_id, action)

    # ---- from other threads to the IO thread

    def _wake(self) -> None:
        self._io.post(self.partition.wake)

    def _give_credit(self, frame_bytes: int) -> None:
        """On the apply thread. In large portions: each wakes the IO thread, and the server hears of no smaller ones."""
        self._applied_bytes += frame_bytes
        if self._applied_bytes >= self._credit_step_bytes:
            self._io.post(self.partition.give_credit, self._applied_bytes)
            self._applied_bytes = 0

    def _rewind(self, position: int, epoch: int) -> None:
        self._io.post(self.partition.rewind, position, epoch)

    # ---- Sink, on the IO thread

    def deliver(
        self, feed: RecordBatch | FeedBatch | None, completions: Sequence[Completion], frame_bytes: int, epoch: int
    ) -> None:
        self._applier.deliver(self.queue, (feed, completions, frame_bytes, epoch))

    def ready_changed(self) -> None:
        self._ready_changed()

    def lock_failed(self, append: Append, transaction_id: int) -> None:
        self._runner.lock_failed(append, self, transaction_id)

    def failed(self, append: Append) -> None:
        assert append.run is not None
        self._runner.again(append.run)

    def client_ahead(self, error: ClientAhead) -> None:
        self._applier.report(self.queue.partition_id, self.queue.mark, error)
