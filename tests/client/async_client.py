"""``AsyncWaltzClient`` on a loop of its own thread, with the methods of ``WaltzClient``: one contract for both."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Literal, TypeVar, overload

from waltz_ray.client import AsyncWaltzClient, Callbacks, Directory, SubmitResult, Transaction, TransactionContext
from waltz_ray.client.engine import FeedKind
from waltz_ray.client.followers import AsyncFollower
from waltz_ray.client.keys import Key
from waltz_ray.client.transport import Transport
from waltz_ray.config import ClientConfig
from waltz_ray.protocol.records import Int64s

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread, until ``end``."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="test-loop")
        self._thread.start()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.start(coroutine).result(30)

    def end(self) -> set[str]:
        """Names of the tasks that were left; nothing but the loop's own may be."""
        left = self.call(_others())
        self.call(self.loop.shutdown_asyncgens())
        self.call(self.loop.shutdown_default_executor())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
        return left

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()


async def _others() -> set[str]:
    await asyncio.sleep(0)  # for what has just been cancelled
    return {repr(task.get_coro()) for task in asyncio.all_tasks() if task is not asyncio.current_task()}


class AsyncClient:
    """See the module."""

    def __init__(
        self,
        directory: Directory,
        transport: Transport,
        callbacks: Callbacks | None = None,
        config: ClientConfig | None = None,
        partitions: Sequence[int] | None = None,
        feed: FeedKind | None = None,
    ) -> None:
        self.thread = LoopThread()
        self.client = AsyncWaltzClient(directory, transport, callbacks, config, partitions, feed)
        self._open = True
        try:
            self.thread.call(self.client.start())
        except BaseException:
            self._open = False
            self.thread.end()
            raise
        self.client_id = self.client.client_id

    def append(self, partition_id: int, data: bytes, **options: Any) -> Future[int]:
        return self._start(self.client.append(partition_id, data, **options))

    def try_append(self, partition_id: int, data: bytes, **options: Any) -> Future[int]:
        return self._start(self.client.try_append(partition_id, data, **options))

    def supersede(self, client_id: int, timeout: float | None = None) -> list[int]:
        return self.thread.call(self.client.supersede(client_id, timeout))

    def partition_for(self, key: Key) -> int:
        return self.client.partition_for(key)

    def append_many(
        self, partition_id: int, datas: Sequence[bytes], headers: Any = 0, timeout: float | None = None, **options: Any
    ) -> Future[Int64s]:
        return self._start(self.client.append_many(partition_id, datas, headers, timeout, **options))

    def submit(self, context: TransactionContext, timeout: float | None = None) -> Future[SubmitResult]:
        return self._start(self.client.submit(context, timeout))

    def flush(self, timeout: float | None = None) -> None:
        self.thread.call(self.client.flush(timeout))

    def wait_ready(self, timeout: float | None = None) -> None:
        self.thread.call(self.client.wait_ready(timeout))

    def fetch(self, transaction: Transaction) -> bytes:
        return self.thread.call(self.client.fetch(transaction))

    def wait_applied(self, partition_id: int, transaction_id: int, timeout: float | None = None) -> None:
        self.thread.call(self.client.wait_applied(partition_id, transaction_id, timeout))

    def high_water_mark(self, partition_id: int) -> int:
        return self.thread.call(self.client.high_water_mark(partition_id))

    def server_high_water_mark(self, partition_id: int) -> int:
        return self.thread.call(self.client.server_high_water_mark(partition_id))

    def statistics(self) -> dict[str, int]:
        return self.client.statistics()

    def read(self, partition_id: int, first_id: int, end_id: int) -> Iterator[Transaction]:
        return self._iterated(self.client.read(partition_id, first_id, end_id))

    @overload
    def feed(self, partitions: Any, *, follow: Literal[True], **options: Any) -> FollowerThere: ...
    @overload
    def feed(self, partitions: Any, *, follow: Literal[False] = ..., **options: Any) -> Iterator[Transaction]: ...
    def feed(self, partitions: Any, *, follow: bool = False, **options: Any) -> Iterator[Transaction]:
        if follow:
            return FollowerThere(self, self.thread.call(self._following(partitions, options)))
        return self._iterated(self.client.feed(partitions, **options))

    async def _following(self, partitions: Any, options: dict[str, Any]) -> AsyncFollower:
        follower: AsyncFollower = self.client.feed(partitions, follow=True, **options)
        return follower

    def close(self) -> None:
        if self._open:
            self._open = False
            self.thread.call(self.client.close())
            left = self.thread.end()
            assert left == set(), left

    def _start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        if self._open:
            return self.thread.start(coroutine)
        future: Future[T] = Future()
        try:
            coroutine.send(None)  # as far as it comes: a client that is closed does not wait
        except BaseException as error:  # noqa: BLE001 - it is the result
            future.set_exception(error)
        finally:
            coroutine.close()
        return future

    def _iterated(self, iterator: AsyncIterator[Transaction]) -> Iterator[Transaction]:
        try:
            while (transaction := self.thread.call(_next(iterator))) is not None:
                yield transaction
        finally:
            if self._open:
                self.thread.call(iterator.aclose())  # type: ignore[attr-defined]


class FollowerThere(Iterator[Transaction]):
    """``AsyncFollower`` with the methods of ``Follower``."""

    def __init__(self, client: AsyncClient, follower: AsyncFollower) -> None:
        self._client, self._follower = client, follower

    @property
    def stopped(self) -> bool:
        return self._follower.stopped

    def poll(self, timeout: float | None = None) -> Sequence[Transaction]:
        return self._client.thread.call(self._follower.poll(timeout))

    def stop(self) -> None:
        self._client.thread.call(self._follower.stop())

    def __enter__(self) -> FollowerThere:
        self._client.thread.call(self._follower.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._client.thread.call(self._follower.__aexit__(None, None, None))

    def __next__(self) -> Transaction:
        transaction = self._client.thread.call(_next(self._follower))
        if transaction is None:
            raise StopIteration
        return transaction


async def _next(iterator: AsyncIterator[Transaction]) -> Transaction | None:
    return await anext(iterator, None)
