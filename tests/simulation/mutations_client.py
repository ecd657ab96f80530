"""Rules of the client, broken (see ``mutations.py``).

Most are broken under a walk of ``Mounting`` alone, too (``tests/protocol/test_mounting.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation.break_rule import break_rule
from waltz_ray.client.applier import Applier, ApplyQueue, Delivery
from waltz_ray.client.attachment import Attachment
from waltz_ray.protocol.client_monitor import ClientMonitor
from waltz_ray.protocol.messages.client import FROM_NOW
from waltz_ray.protocol.mounting import Mounting
from waltz_ray.protocol.mounting_types import CancelTimer, Event, FailAppends, Rewound, SendUnmount, SetTimer, Timer

__all__ = [
    "older_pending_are_not_failed",
    "fates_decided_at_a_lost_connection",
    "own_mount_skips_what_is_pending",
    "sequence_numbers_come_again",
    "rewinds_are_skipped",
    "the_back_off_is_forgotten",
    "applied_before_completion",
    "callbacks_after_close",
    "contexts_do_not_wait_for_who_was_in_the_way",
    "refused_transactions_are_let_go",
]

Patch = pytest.MonkeyPatch


# ---- which append has which fate --------------------------------------------------------------------------------


def older_pending_are_not_failed(patch: Patch) -> None:
    break_rule(patch, ClientMonitor, "fail_before", lambda self, end: [])


def fates_decided_at_a_lost_connection(patch: Patch) -> None:
    """What was on its way is sent again at once, although it may be in the log."""

    def step(self: Mounting[Any], event: Event) -> Any:
        effects = original(self, event)
        if not any(isinstance(effect, SendUnmount) for effect in effects):
            return effects
        return [*effects, FailAppends(self.monitor.mounted_ready(-1), "the mount has ended")]

    original = Mounting.step
    break_rule(patch, Mounting, "step", step)


def own_mount_skips_what_is_pending(patch: Patch) -> None:
    break_rule(patch, ClientMonitor, "resume_mark", property(lambda self: FROM_NOW))


def sequence_numbers_come_again(patch: Patch) -> None:
    """A client gives the numbers of requests that have their fate once more."""

    def register(self: ClientMonitor[Any], token: Any, start: int, count: int) -> int:
        if not self.pending and self.next_number > 20:
            self.next_number -= 10
        return original(self, token, start, count)

    original = ClientMonitor.register
    break_rule(patch, ClientMonitor, "register", register)


# ---- mounts -----------------------------------------------------------------------------------------------------


def rewinds_are_skipped(patch: Patch) -> None:
    """The application went back; what it asks for again does not come."""

    def step(self: Mounting[Any], event: Event) -> Any:
        return original(self, Rewound(self.position, event.epoch) if isinstance(event, Rewound) else event)

    original = Mounting.step
    break_rule(patch, Mounting, "step", step)


def the_back_off_is_forgotten(patch: Patch) -> None:
    def step(self: Mounting[Any], event: Event) -> Any:
        return [effect for effect in original(self, event) if not is_pause(effect)]

    def is_pause(effect: object) -> bool:
        return isinstance(effect, SetTimer | CancelTimer) and effect.timer is Timer.RETRY

    original = Mounting.step
    break_rule(patch, Mounting, "step", step)


# ---- what the application is told -------------------------------------------------------------------------------


def applied_before_completion(patch: Patch) -> None:
    def apply(self: Applier, queue: ApplyQueue, deliveries: list[Delivery]) -> None:
        late = [completion for _, completions, _, _ in deliveries for completion in completions]
        original(self, queue, [(feed, (), size, epoch) for feed, _, size, epoch in deliveries])
        for completion in late:
            self.complete(queue, completion)

    original = Applier.apply
    break_rule(patch, Applier, "apply", apply)


def refused_transactions_are_let_go(patch: Patch) -> None:
    """The application raised: the client goes on behind what it had handed over."""

    def application_mark(self: Applier, queue: ApplyQueue, otherwise: int) -> int:
        mark: int = original(self, queue, otherwise)
        return max(mark, otherwise + 1)

    original = Applier.application_mark
    break_rule(patch, Applier, "application_mark", application_mark)


def contexts_do_not_wait_for_who_was_in_the_way(patch: Patch) -> None:
    def when_applied(self: Attachment, transaction_id: int, action: Callable[[], None]) -> None:
        action()

    break_rule(patch, Attachment, "when_applied", when_applied)


def callbacks_after_close(patch: Patch) -> None:
    break_rule(patch, Applier, "stop", lambda self: None)
