"""``timeout=`` of an append: whoever waits is told something in time, and the fate itself comes when it comes.

An append that has not been sent when its time is over is taken back: it is known not to be in the log
(``AppendFailed``, or ``OutboxFull`` if there was not even room for it). One that has been sent is in the log or not,
and only the feed can say so: ``AppendTimeout`` carries its fate, a future that is done then. It is not sent again after
its time; neither is what had not been sent of many records that go in several frames (``PartlyAppended``).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from numbers import Real
from typing import Any, Generic, TypeVar

from waltz_ray.client.futures import LightFuture
from waltz_ray.client.outbox import Outbox
from waltz_ray.client.requests import AppendCall
from waltz_ray.errors import AppendFailed, AppendTimeout, InvalidInput, WaltzError

__all__ = ["TimeLimit", "checked_timeout", "checked_wait", "expire_append", "unknown_error"]

T = TypeVar("T")


def checked_timeout(timeout: float) -> float:
    """``timeout`` in seconds, if it is one; at most what a thread can wait, which is some three hundred years."""
    if isinstance(timeout, bool) or not isinstance(timeout, Real) or not timeout >= 0:  # nor is it NaN
        raise InvalidInput(f"timeout must be a number of seconds, at least 0, not {timeout!r:.60}")
    return float(min(timeout, threading.TIMEOUT_MAX))  # of any kind of number: what waits takes this kind


def checked_wait(timeout: float | None) -> float | None:
    """``timeout`` of what may also wait for as long as that takes (None)."""
    return None if timeout is None else checked_timeout(timeout)


def expire_append(outbox: Outbox, append: AppendCall, timeout: float) -> WaltzError | None:
    """On the loop: its time is over. An error if nothing of it is under way; else its fate is still to come.

    Of many records some may be in the log: PartlyAppended, and the others are not.
    """
    if not outbox.withdraw(append):
        return None
    return append.error_of(
        AppendFailed(
            f"partition {outbox.partition_id}: the append was not sent within {timeout:g} s and is not in the log; "
            f"append it again{outbox.why}"
        )
    )


def unknown_error(what: str, timeout: float, fate: Future[Any] | asyncio.Future[Any], why: str) -> AppendTimeout:
    """Of what is under way. ``why``: ``Outbox.why`` or ``Engine.why``."""
    return AppendTimeout(
        f"{what} has no fate after {timeout:g} s: whether it is in the log is unknown until the feed says; "
        f"do not append it again before the error's `fate` is done{why}",
        fate,
    )


class TimeLimit(Generic[T]):
    """``answer`` is done with what ``fate`` becomes, or with an error when the time is over before."""

    def __init__(
        self,
        fate: Future[T],
        what: str,
        timeout: float,
        expire: Callable[[], Exception | None],
        why: Callable[[], str],
    ) -> None:
        """``expire`` is called when the time is over, before anybody hears of that: what is known of the fate then.

        ``why`` says what kept it waiting, for the error.
        """
        self.answer: LightFuture[T] = LightFuture()
        self._fate = fate
        self._what, self._timeout = what, timeout
        self._expire = expire
        self._why = why
        self._lock = threading.Lock()
        self._told = False
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, post: Callable[..., None], left_s: float) -> Future[T]:
        """The answer, in ``left_s`` seconds at the latest. ``post``: see ``shell.Shell``."""
        self._post = post
        self._fate.add_done_callback(self._done)
        post(self._set_timer, left_s)
        return self.answer

    def _set_timer(self, left_s: float) -> None:
        if not self._fate.done():
            self._timer = asyncio.get_running_loop().call_later(left_s, self._expired)

    def _expired(self) -> None:
        if self._fate.done():
            return
        error = self._expire()
        if error is not None:
            self._fate.set_exception(error)  # the answer follows
        elif self._first():
            self.answer.set_exception(unknown_error(self._what, self._timeout, self._fate, self._why()))

    def _done(self, fate: Future[T]) -> None:
        if self._timer is not None:
            self._post(self._timer.cancel)  # it would keep the append until then
        if not self._first():
            return
        error = fate.exception()
        if error is None:
            self.answer.set_result(fate.result())
        else:
            self.answer.set_exception(error)

    def _first(self) -> bool:
        with self._lock:
            told, self._told = self._told, True
        return not told
