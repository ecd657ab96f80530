"""``LightFuture`` is a ``Future`` for everybody who uses one, whenever they begin to look."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, TimeoutError, as_completed, wait
from types import ModuleType

import pytest

from waltz_ray.client import credentials, futures
from waltz_ray.client.futures import LightFuture

PATIENCE_S = 20.0


def test_a_result_before_anybody_looks() -> None:
    future: LightFuture[int] = LightFuture()
    assert (future.done(), future.running(), future.cancelled(), future.cancel()) == (False, True, False, False)
    future = LightFuture()
    future.set_result(7)
    assert (future.result(0), future.exception(0), future.done(), future.cancel()) == (7, None, True, False)
    assert "finished" in repr(future)


def test_an_error_before_anybody_looks() -> None:
    future: LightFuture[int] = LightFuture()
    future.set_exception(ValueError("no"))
    assert isinstance(future.exception(0), ValueError)
    with pytest.raises(ValueError, match="no"):
        future.result(0)


def test_a_time_out_and_then_a_result() -> None:
    future: LightFuture[int] = LightFuture()
    with pytest.raises(TimeoutError):
        future.result(0)
    with pytest.raises(TimeoutError):
        future.exception(0)
    future.set_result(1)
    assert future.result(0) == 1


@pytest.mark.parametrize("error", [ValueError("callback"), SystemExit(1), KeyboardInterrupt()])
@pytest.mark.parametrize("looked_at", [False, True])
def test_callbacks_run_once_in_order_and_one_that_raises_stops_none(
    looked_at: bool, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it raises: who sets the result goes on to the next future, and to the next client."""
    future: LightFuture[int] = LightFuture()
    told: list[object] = []

    def raises(done: Future[int]) -> None:
        raise error

    future.add_done_callback(lambda done: told.append(("first", done.result())))
    if looked_at:
        assert not wait([future], 0).done
    future.add_done_callback(raises)
    future.add_done_callback(lambda done: told.append("second"))
    future.set_result(3)
    future.add_done_callback(lambda done: told.append("late"))
    assert told == [("first", 3), "second", "late"]
    assert "exception calling callback" in caplog.text


def test_a_future_may_end_while_another_one_is_being_looked_at() -> None:
    """The garbage collection begins at any allocation, and what it calls may end futures."""
    future: LightFuture[int] = LightFuture()

    def collected() -> None:
        with futures._LOCK:
            future.set_result(3)

    thread = threading.Thread(target=collected, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert future.result(0) == 3


def _use_a_context() -> None:
    assert credentials.Credentials(tls=True).context() is not None


def _use_a_future() -> None:
    future: LightFuture[int] = LightFuture()
    future.set_result(3)
    assert future.result() == 3


@pytest.mark.parametrize(("module", "use"), [(futures, _use_a_future), (credentials, _use_a_context)])
def test_a_child_that_is_forked_in_the_wrong_moment_does_not_wait_for_a_thread_that_it_has_not(
    module: ModuleType, use: Callable[[], None]
) -> None:
    lock = getattr(module, "_LOCK", None) or getattr(module, "_lock")  # noqa: B009 - one of the two
    with ThreadPoolExecutor(1) as elsewhere:
        elsewhere.submit(lock.acquire).result(PATIENCE_S)
        child = multiprocessing.get_context("fork").Process(target=use)
        child.start()
        elsewhere.submit(lock.release).result(PATIENCE_S)
        child.join(PATIENCE_S)
        hangs = child.is_alive()
        child.kill()
        child.join()
    assert (hangs, child.exitcode) == (False, 0)


def test_a_second_result_is_a_bug() -> None:
    future: LightFuture[int] = LightFuture()
    future.set_result(3)
    with pytest.raises(AssertionError):
        future.set_result(4)
    with pytest.raises(AssertionError):
        future.set_exception(ValueError())


def test_an_unknown_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        LightFuture().nonsense  # noqa: B018


def test_wait_and_as_completed() -> None:
    futures: list[LightFuture[int]] = [LightFuture() for _ in range(4)]
    futures[0].set_result(0)

    def finish() -> None:
        for i, future in enumerate(futures[1:], 1):
            future.set_result(i)

    finisher = threading.Thread(target=finish)
    assert wait(futures, 0, FIRST_EXCEPTION).done == {futures[0]}
    finisher.start()
    assert sorted(future.result() for future in as_completed(futures, PATIENCE_S)) == [0, 1, 2, 3]
    finisher.join()
    assert wait(futures, 0).not_done == set()


def test_in_a_coroutine() -> None:
    async def main() -> int:
        future: LightFuture[int] = LightFuture()
        wrapped = asyncio.wrap_future(future)
        threading.Thread(target=future.set_result, args=(5,)).start()
        return await wrapped

    assert asyncio.run(main()) == 5


def test_looking_while_it_ends() -> None:
    """Whoever begins to wait in the very moment of the result is woken; every callback runs once."""
    rounds = 2000
    futures: list[LightFuture[int]] = [LightFuture() for _ in range(rounds)]
    called: list[int] = []
    results: list[int] = []
    start = threading.Barrier(3)

    def end() -> None:
        start.wait(PATIENCE_S)
        for i, future in enumerate(futures):
            future.set_result(i)

    def look() -> None:
        start.wait(PATIENCE_S)
        for future in futures:
            results.append(future.result(PATIENCE_S))

    def call_back() -> None:
        start.wait(PATIENCE_S)
        for future in reversed(futures):
            future.add_done_callback(lambda done: called.append(done.result()))
            assert len(wait([future], PATIENCE_S).done) == 1

    threads = [threading.Thread(target=target) for target in (end, look, call_back)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert results == list(range(rounds))
    assert sorted(called) == list(range(rounds))
