"""One partition as a client has it: its shell on the loop, its apply queue, and where its contexts stand in line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from waltz_ray.client.applier import Applier, ApplyQueue
from waltz_ray.client.contexts import ContextRunner
from waltz_ray.client.core import Mounter, PartitionShell
from waltz_ray.client.fates import Completion
from waltz_ray.client.lock_lines import LockLines
from waltz_ray.client.requests import AppendCall
from waltz_ray.errors import WaltzError
from waltz_ray.protocol.ids import NO_TRANSACTION
from waltz_ray.protocol.messages.client import FeedBatch, FeedMode
from waltz_ray.protocol.records import RecordBatch

__all__ = ["Attachment", "Home"]


class Home(Protocol):
    """The client that partitions are attached to."""

    @property
    def mounter(self) -> Mounter:
        """What mounts the partitions of this client."""

    @property
    def applier(self) -> Applier:
        """Who hands their transactions to the application."""

    @property
    def runner(self) -> ContextRunner:
        """Who runs their contexts."""

    def ready_changed(self) -> None:
        """A partition may have become ready, or never will be."""


class Attachment:
    """Connects the parts; has no rules of its own. It is the ``Sink`` of its partition and the port of its contexts."""

    def __init__(self, home: Home, partition_id: int, mark: int) -> None:
        self._home = home
        self._shell = home.mounter.shell
        self.lines = LockLines()
        self._credit_step_bytes = home.mounter.config.feed_credit_bytes // 4
        self._applied_bytes = 0  # not yet told to the partition; what a mount may still send is smaller by as much
        self.applies = home.mounter.mode in (FeedMode.RECORDS, FeedMode.HEADERS)
        """There are callbacks to be fed."""
        self.queue = ApplyQueue(partition_id, mark, self._give_credit, self._rewind)
        self.partition = PartitionShell(home.mounter, partition_id, mark, self)
        self.outbox = self.partition.outbox

    # ---- ContextPort

    @property
    def applied_mark(self) -> int | None:
        if not self.applies:
            return None
        return NO_TRANSACTION if self.queue.refusing else self.queue.mark

    @property
    def refusals(self) -> int:
        return self.queue.refusals

    def put(self, append: AppendCall) -> None:
        self._shell.put(self.outbox, append)

    def when_applied(self, transaction_id: int, action: Callable[[], None]) -> None:
        self._home.applier.when_applied(self.queue, transaction_id, action)

    # ---- from where callbacks run to the loop

    def _give_credit(self, frame_bytes: int) -> None:
        """In large portions: each wakes the loop, and the server hears of no smaller ones."""
        self._applied_bytes += frame_bytes
        if self._applied_bytes >= self._credit_step_bytes:
            self._shell.post(self.partition.applied, self._applied_bytes)
            self._applied_bytes = 0

    def _rewind(self, position: int, epoch: int) -> None:
        self._shell.post(self.partition.rewind, position, epoch)

    # ---- Sink, on the loop

    def deliver(
        self, feed: RecordBatch | FeedBatch | None, completions: Sequence[Completion], frame_bytes: int, epoch: int
    ) -> None:
        self._home.applier.deliver(self.queue, (feed, completions, frame_bytes, epoch))

    def ready_changed(self) -> None:
        self._home.ready_changed()

    def lock_failed(self, append: AppendCall, transaction_id: int) -> None:
        self._home.runner.lock_failed(append, self, transaction_id)

    def failed(self, append: AppendCall) -> None:
        assert append.run is not None
        self._home.runner.again(append.run)

    def never_ready(self, error: WaltzError) -> None:
        self._home.runner.give_up(self.lines, error)
        self._home.applier.report(self.queue.partition_id, self.queue.mark, error)
