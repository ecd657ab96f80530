"""Ctrl-C in the moment before a wait: its handler runs nevertheless."""

from __future__ import annotations

import concurrent.futures
import faulthandler
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import pytest

from waltz_ray.client.feeds import Origin
from waltz_ray.client.followers import Arrivals, Follower
from waltz_ray.client.io_thread import IoThread
from waltz_ray.client.subscription import Subscription
from waltz_ray.client.waits import LOOK_S, item_of, result_of, undone, wait_for
from waltz_ray.testing import InMemoryCluster


class CtrlC(Exception):
    """The handler has run."""


@contextmanager
def ctrl_c_that_interrupts_no_wait() -> Iterator[None]:
    """SIGINT comes while this thread waits, and wakes another one: as if it had come right before the wait."""

    def handler(number: int, frame: object) -> None:
        raise CtrlC

    before = signal.signal(signal.SIGINT, handler)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    waiting = threading.Event()
    sender = threading.Thread(target=_send, args=(waiting,), daemon=True)
    sender.start()
    try:
        waiting.set()
        yield
    finally:
        sender.join()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        signal.signal(signal.SIGINT, before)


def _send(waiting: threading.Event) -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    waiting.wait()
    time.sleep(LOOK_S / 5)  # what waits has begun to; if not, the test passes without having shown anything
    os.kill(os.getpid(), signal.SIGINT)


class _Nothing:
    """A subscription that brings nothing."""

    def used(self, item: object) -> None:
        pass

    def abandon(self) -> None:
        pass


def follower() -> Follower:
    return Follower(cast(Subscription, _Nothing()), Arrivals(), cast(Origin, None))


WAITS: dict[str, Callable[[], object]] = {
    "an item": lambda: item_of(queue.SimpleQueue[int]()),
    "an item, for an hour": lambda: item_of(queue.SimpleQueue[int](), 3600),
    "a result": lambda: result_of(concurrent.futures.Future[int]()),
    "a result, for an hour": lambda: result_of(concurrent.futures.Future[int](), 3600),
    "an event": lambda: wait_for(threading.Event()),
    "several results": lambda: undone([concurrent.futures.Future[int]()]),
    "several results, for an hour": lambda: undone([concurrent.futures.Future[int]()], 3600),
    "a follower": lambda: next(follower()),
    "a follower's poll": lambda: follower().poll(3600),
    "a call": lambda: IoThread.result(concurrent.futures.Future[int]()),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_a_signal_that_interrupts_no_wait_is_seen(wait: Callable[[], object]) -> None:
    faulthandler.dump_traceback_later(60, exit=True)  # or a failure would last for ever
    try:
        with ctrl_c_that_interrupts_no_wait(), pytest.raises(CtrlC):
            wait()
    finally:
        faulthandler.cancel_dump_traceback_later()


def test_a_signal_that_interrupts_no_flush_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with InMemoryCluster() as cluster, cluster.connect() as client:
        monkeypatch.setattr(client._engine, "open_futures", lambda: [concurrent.futures.Future[int]()])
        test_a_signal_that_interrupts_no_wait_is_seen(client.flush)


def test_what_has_come_is_given_and_what_has_not_within_its_time_is_not() -> None:
    items: queue.SimpleQueue[int] = queue.SimpleQueue()
    items.put(7)
    assert item_of(items, 0) == 7
    with pytest.raises(queue.Empty):
        item_of(items, 0)
    future: concurrent.futures.Future[int] = concurrent.futures.Future()
    began_s = time.monotonic()
    with pytest.raises(concurrent.futures.TimeoutError):
        result_of(future, LOOK_S + 0.1)
    assert time.monotonic() - began_s >= LOOK_S + 0.1
    began_s = time.monotonic()
    assert undone([future], LOOK_S + 0.1) == {future}
    assert time.monotonic() - began_s >= LOOK_S + 0.1
    future.set_result(8)
    assert result_of(future, 0) == 8
    assert undone([future, future], 0) == undone([]) == set()
    event = threading.Event()
    assert not wait_for(event, 0)
    event.set()
    assert wait_for(event, 0)


def test_a_timeout_that_a_future_failed_with_is_its_failure() -> None:
    future: concurrent.futures.Future[int] = concurrent.futures.Future()
    future.set_exception(concurrent.futures.TimeoutError("the answer"))
    with pytest.raises(concurrent.futures.TimeoutError, match="the answer"):
        result_of(future)
