"""Rules of the client, broken (see ``mutations.py``)."""

from __future__ import annotations

from typing import Any

import pytest

from waltz_ray.client.applier import Applier, ApplyQueue, Delivery
from waltz_ray.client.attachment import Attachment
from waltz_ray.client.contexts import ContextPort, ContextRun, ContextRunner
from waltz_ray.protocol.client_monitor import ClientMonitor
from waltz_ray.protocol.messages.client import FROM_NOW
from waltz_ray.protocol.mounting import Mounting
from waltz_ray.protocol.mounting_types import FailAppends

__all__ = [
    "applied_before_completion",
    "callbacks_after_close",
    "contexts_do_not_wait_for_who_was_in_the_way",
    "fates_decided_at_a_lost_connection",
    "older_pending_are_not_failed",
    "own_mount_skips_what_is_pending",
    "refused_transactions_are_let_go",
    "rewinds_are_skipped",
    "sequence_numbers_come_again",
]

Patch = pytest.MonkeyPatch


def older_pending_are_not_failed(patch: Patch) -> None:
    def fail_before(self: ClientMonitor[Any], end: int) -> list[Any]:
        return []

    patch.setattr(ClientMonitor, "_fail_before", fail_before)


def fates_decided_at_a_lost_connection(patch: Patch) -> None:
    """What was on its way is sent again at once, although it may be in the log."""

    def end(self: Mounting[Any], reason: Exception) -> Any:
        return [*original(self, reason), FailAppends(self.monitor.mounted_ready(-1), str(reason))]

    original = Mounting._end
    patch.setattr(Mounting, "_end", end)


def own_mount_skips_what_is_pending(patch: Patch) -> None:
    patch.setattr(ClientMonitor, "resume_mark", property(lambda self: FROM_NOW))


def sequence_numbers_come_again(patch: Patch) -> None:
    """A client gives the numbers of requests that have their fate once more."""

    def register(self: ClientMonitor[Any], token: Any, start: int, count: int) -> int:
        if not self.pending and self._next > 20:
            self._next -= 10
        return original(self, token, start, count)

    original = ClientMonitor.register
    patch.setattr(ClientMonitor, "register", register)


def applied_before_completion(patch: Patch) -> None:
    def apply(self: Applier, queue: ApplyQueue, deliveries: list[Delivery]) -> None:
        late = [completion for _, completions, _, _ in deliveries for completion in completions]
        original(self, queue, [(feed, (), size, epoch) for feed, _, size, epoch in deliveries])
        for completion in late:
            self._complete(queue, completion)

    original = Applier._apply
    patch.setattr(Applier, "_apply", apply)


def refused_transactions_are_let_go(patch: Patch) -> None:
    """The application raised: the client goes on behind what it had handed over."""

    def application_mark(self: Applier, queue: ApplyQueue, otherwise: int) -> int:
        mark: int = original(self, queue, otherwise)
        return max(mark, otherwise + 1)

    original = Applier._application_mark
    patch.setattr(Applier, "_application_mark", application_mark)


def rewinds_are_skipped(patch: Patch) -> None:
    """The application went back; what it asks for again does not come."""
    patch.setattr(Attachment, "_rewind", lambda self, position, epoch: None)


def contexts_do_not_wait_for_who_was_in_the_way(patch: Patch) -> None:
    def when_applied(self: ContextRunner, run: ContextRun, port: ContextPort) -> None:
        if run.place is not None:
            self.again(run)

    patch.setattr(ContextRunner, "_when_applied", when_applied)


def callbacks_after_close(patch: Patch) -> None:
    patch.setattr(Applier, "stop", lambda self: None)
