"""The future of an append: a ``concurrent.futures.Future`` that costs little while nobody waits for it.

A ``Future`` makes a condition variable when it is made and takes it again and again; of 100 000 futures a second that
is half of what an append costs. Most of them are never waited for, only asked when they are done, or called back.
So this one begins without a condition. It makes one as soon as anybody touches ``_condition`` (``result`` before it is
done, ``wait``, ``as_completed``), and from that moment on it *is* the class it is derived from, method by method.

Thousands are open at a time, so what each consists of the garbage collector walks through again and again: a future
that one callback waits for is one object, without a list and without a ``__dict__`` (nobody may ask for that).

``_LOCK`` covers the short moments in which that is decided; nobody waits or calls anything while holding it. It is
reentrant for the garbage collection, which may begin in such a moment and end other futures.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, LOGGER, RUNNING
from typing import Any, Protocol, TypeVar

from waltz_ray.client.forks import in_forked_child
from waltz_ray.client.io_thread import in_io_thread
from waltz_ray.errors import InvalidInput

__all__ = ["ContextFuture", "Fate", "LightFuture"]

T = TypeVar("T")

Given = TypeVar("Given", contravariant=True)

_LOCK = threading.RLock()


def _renew_lock() -> None:
    global _LOCK
    _LOCK = threading.RLock()


in_forked_child(_renew_lock)


class Fate(Protocol[Given]):
    """The place at which whoever has asked is told the result, once."""

    def done(self) -> bool:
        """Whether the result has been told; nobody may listen any more."""

    def set_result(self, result: Given) -> None:
        """Tell the result to whoever has asked."""

    def set_exception(self, exception: BaseException) -> None:
        """Tell what went wrong."""


class LightFuture(Future[T]):
    """Begins as running: an append cannot be called back, so neither can its future."""

    # What a new future has is here and not in ``__init__``, which does nothing: the instance gets what changes.
    _state = RUNNING
    _result = None
    _exception = None
    _full = False  # it has its condition, and everything goes through the base class
    _first: Callable[[Future[T]], Any] | None = None  # callback, while it has no condition
    _further: list[Callable[[Future[T]], Any]] | None = None

    def __init__(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        """What the base class makes in ``__init__``, made when it is first asked for."""
        if name not in ("_condition", "_waiters", "_done_callbacks"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        with _LOCK:
            if not self._full:
                self._waiters: list[Any] = []
                self._done_callbacks = self._callbacks()
                self._condition = threading.Condition()
                self._full = True
        return self.__dict__[name]

    def cancelled(self) -> bool:
        return False

    def done(self) -> bool:
        return self._state == FINISHED

    def result(self, timeout: float | None = None) -> T:
        if self._state == FINISHED and self._exception is None:
            return self._result  # type: ignore[return-value]
        self._check_who_waits(timeout)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if self._state == FINISHED:
            return self._exception
        self._check_who_waits(timeout)
        return super().exception(timeout)

    def _check_who_waits(self, timeout: float | None) -> None:
        if self._state != FINISHED and timeout != 0 and in_io_thread():
            raise InvalidInput("a future's callback waits for another future, which is set on the callback's thread")

    def add_done_callback(self, fn: Callable[[Future[T]], Any]) -> None:
        with _LOCK:
            if not self._full and self._state != FINISHED:
                if self._first is None:
                    self._first = fn
                elif self._further is None:
                    self._further = [fn]
                else:
                    self._further.append(fn)
                return
        super().add_done_callback(fn)

    def set_result(self, result: T) -> None:
        with _LOCK:
            light = not self._full
            if light:
                assert self._state != FINISHED, "a future has one result"
                self._result = result
                self._state = FINISHED
        if not light:
            super().set_result(result)
        elif self._first is not None:
            self._call()

    def set_exception(self, exception: BaseException | None) -> None:
        with _LOCK:
            light = not self._full
            if light:
                assert self._state != FINISHED, "a future has one result"
                self._exception = exception
                self._state = FINISHED
        if not light:
            super().set_exception(exception)
        elif self._first is not None:
            self._call()

    def _callbacks(self) -> list[Callable[[Future[T]], Any]]:
        """In their order."""
        return [] if self._first is None else [self._first, *(self._further or ())]

    def _call(self) -> None:
        self._tell(self._callbacks())

    def _invoke_callbacks(self) -> None:
        self._tell(self._done_callbacks)

    def _tell(self, callbacks: list[Callable[[Future[T]], Any]]) -> None:
        """It has its result: those who want to be called are, whatever the one before raises.

        Not as by the base class, which lets SystemExit pass: here that would end the thread of all clients, or leave
        the other futures of a frame without their results.
        """
        for callback in callbacks:
            try:
                callback(self)
            except BaseException:  # noqa: BLE001 - a callback's own affair; the next one is called all the same
                LOGGER.exception("exception calling callback for %r", self)


class ContextFuture(LightFuture[T]):
    """Of a transaction context, which ends on its client's apply thread: a callback there must not wait for it."""

    def __init__(self, on_applying: Callable[[], bool]) -> None:
        self._on_applying = on_applying

    def _check_who_waits(self, timeout: float | None) -> None:
        super()._check_who_waits(timeout)
        if self._state != FINISHED and timeout != 0 and self._on_applying():
            raise InvalidInput("a callback waits for a context, which ends on the callback's thread")
