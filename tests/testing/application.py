"""A small application for tests against an in-memory cluster: it remembers what it has applied."""

from __future__ import annotations

import threading
from collections.abc import Callable

from waltz_ray import Callbacks, Transaction, TransactionBuilder, TransactionContext

__all__ = ["Counted", "Follower"]

PATIENCE_S = 20.0


class Follower(Callbacks):
    """Applies to lists, one a partition; a gap or a repetition is an error."""

    def __init__(self) -> None:
        self.data: dict[int, list[bytes]] = {}
        self.uncaught: list[BaseException] = []
        self._changed = threading.Condition()

    def client_high_water_mark(self, partition_id: int) -> int:
        return len(self.data.get(partition_id, [])) - 1

    def apply_transaction(self, transaction: Transaction) -> None:
        with self._changed:
            applied = self.data.setdefault(transaction.partition_id, [])
            assert transaction.transaction_id == len(applied)
            applied.append(transaction.data)
            self._changed.notify_all()

    def uncaught_exception(self, partition_id: int, transaction_id: int, error: BaseException) -> None:
        self.uncaught.append(error)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE_S)
        assert self.uncaught == []


class Counted(TransactionContext):
    """Adds one to a number in partition 0: what it has read must not be older than what it is written over."""

    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        self.executions = 0
        self.refused: list[int] = []

    def partition_id(self, partitions: int) -> int:
        return 0

    def execute(self, builder: TransactionBuilder) -> bool:
        self.executions += 1
        builder.write_lock("number", 0)
        builder.data = b"%d" % len(self.follower.data.get(0, []))
        return True

    def on_lock_failure(self, transaction_id: int) -> None:
        self.refused.append(transaction_id)
