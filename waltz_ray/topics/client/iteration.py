"""The messages of a consumer, one after the other, for coroutines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

from waltz_ray.topics.client.messages import Message, MessageBatch

__all__ = ["MessageIteration"]


class MessageIteration(AsyncIterator[Message]):
    """``next_batch`` waits for one; ``consumed``: the application has gone on behind its last message; ``give_up``: the
    iteration has ended before, which is noticed when nobody has it any more, in whichever thread that is. No generator:
    one that is left ends at some later moment, when others may have been given what is behind.
    """

    def __init__(
        self,
        next_batch: Callable[[], Awaitable[MessageBatch]],
        consumed: Callable[[MessageBatch], None],
        give_up: Callable[[MessageBatch], None],
    ) -> None:
        self._next_batch, self._consumed, self._give_up = next_batch, consumed, give_up
        self._batch: MessageBatch | None = None
        self._rest: Iterator[Message] = iter(())
        self._ended = False

    async def __anext__(self) -> Message:
        while not self._ended:
            for message in self._rest:
                return message
            batch, self._batch = self._batch, None
            if batch is not None:
                self._consumed(batch)
            self._batch = await self._next_batch()
            self._rest = iter(self._batch)
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """End it, for ``contextlib.aclosing``. Idempotent."""
        self._ended = True
        self._leave()

    def __del__(self) -> None:
        self._leave()

    def _leave(self) -> None:
        batch, self._batch = self._batch, None
        if batch is not None:
            self._give_up(batch)
