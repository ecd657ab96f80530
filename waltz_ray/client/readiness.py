"""What ``wait_ready``, ``wait_applied`` and ``supersede`` wait for; each client waits in its own way."""

from __future__ import annotations

from typing import Protocol

from waltz_ray.client.applier import Applier
from waltz_ray.client.attachment import Attachment
from waltz_ray.client.core import PartitionShell
from waltz_ray.errors import ClientClosed, NotApplied, WaltzError
from waltz_ray.protocol.mounting_types import MountingState

__all__ = ["Awaited", "MountedWait", "ReadyWait"]


class Awaited(Protocol):
    """``reached`` may have become true whenever ``ready_changed`` is called."""

    def reached(self, closed: bool) -> bool:
        """ClientAhead, Trimmed or InvariantBroken if it never will be, ClientClosed if it is ``closed`` before."""

    def error(self, waited_s: float) -> WaltzError:
        """Why it is not reached, for who has waited as long as he wanted."""

    def give_up(self) -> None:
        """Nobody waits any more."""


class MountedWait:
    """One partition, mounted."""

    def __init__(self, partition: PartitionShell) -> None:
        self._partition = partition

    def reached(self, closed: bool) -> bool:
        if self._partition.error is not None:
            raise self._partition.error.with_traceback(None)  # which would grow with each time
        if self._partition.machine.state is MountingState.READY:
            return True
        if closed:
            raise ClientClosed("the client was closed while it waited for its partitions")
        return False

    def error(self, waited_s: float) -> WaltzError:
        return self._partition.machine.not_ready_error(waited_s * 1000)

    def give_up(self) -> None:
        pass


class ReadyWait:
    """One partition, ready: mounted, and applied up to ``transaction_id``, or up to where the log was then (None)."""

    def __init__(self, attachment: Attachment, applier: Applier, transaction_id: int | None) -> None:
        self._attachment = attachment
        self._applier = applier
        self._transaction_id: int | None = None
        if transaction_id is not None:
            self._apply_up_to(transaction_id)

    def reached(self, closed: bool) -> bool:
        """ClientAhead, Trimmed or InvariantBroken if it never will be, ClientClosed if it is ``closed`` before."""
        machine, error = self._attachment.partition.machine, self._attachment.partition.error
        if error is not None:
            raise error.with_traceback(None)  # which would grow with each time
        if self._transaction_id is None and machine.state is MountingState.READY:
            if not self._attachment.applies:
                return True
            self._apply_up_to(machine.position)  # which is the server's mark at the mount, or more
        if self._transaction_id is not None and self._attachment.queue.mark >= self._transaction_id:
            return True
        if closed:
            raise ClientClosed("the client was closed before its partitions were ready")
        return False

    def error(self, waited_s: float) -> WaltzError:
        """Why it is not ready, for who has waited as long as he wanted."""
        partition, queue = self._attachment.partition, self._attachment.queue
        if self._transaction_id is None or partition.machine.state is not MountingState.READY:
            return partition.machine.not_ready_error(waited_s * 1000)
        if partition.machine.position < self._transaction_id:
            why = f"the log has come to {partition.machine.position}"
        elif queue.trouble is None:
            why = "the application is at work on what follows"
        else:
            why = f"applying what follows raised {queue.trouble!r}"
        return NotApplied(
            f"partition {queue.partition_id} was applied up to {queue.mark}, not up to {self._transaction_id}, after "
            f"{waited_s * 1000:.0f} ms: {why}; wait again"
        )

    def give_up(self) -> None:
        """Nobody waits any more."""
        self._applier.give_up(self._attachment.queue, self._wake)

    def _apply_up_to(self, transaction_id: int) -> None:
        self._transaction_id = transaction_id
        self._applier.when_applied(self._attachment.queue, transaction_id, self._wake)

    def _wake(self) -> None:
        self._attachment.ready_changed()
