"""``AsyncKvClient`` on a loop of its own thread, with the methods of ``KvClient``: one contract for both."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from tests.client.async_client import LoopThread
from waltz_ray.client.codecs import Codec
from waltz_ray.kv.client.aio import AsyncKvClient
from waltz_ray.kv.client.place import KvPlace
from waltz_ray.kv.client.settings import KvClientConfig

__all__ = ["AsyncKvThere"]


class _There:
    """What it has, called there and waited for here."""

    def __init__(self, thread: LoopThread, object_there: Any) -> None:
        self._thread, self._there = thread, object_there

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._there, name)
        if not callable(found):
            return found
        return lambda *args, **options: self._call(found, args, options)

    def _call(self, function: Callable[..., Any], args: Any, options: Any) -> Any:
        async def call() -> Any:
            result = function(*args, **options)
            return await result if inspect.iscoroutine(result) else result

        result = self._thread.call(call())
        if hasattr(result, "__anext__"):
            return self._iterated(result)
        if type(result).__module__.startswith("waltz_ray.kv.client") and not isinstance(result, tuple):
            return _There(self._thread, result)
        return result

    def _iterated(self, iterator: Any) -> Iterator[Any]:
        async def following() -> Any:
            return await anext(iterator, None)

        while (item := self._thread.call(following())) is not None:
            yield item

    def __enter__(self) -> Any:
        self._call(self._there.__aenter__, (), {})
        return self

    def __exit__(self, *how: Any) -> None:
        self._call(self._there.__aexit__, how, {})


class AsyncKvThere(_There):
    """See the module."""

    def __init__(self, place: KvPlace, config: KvClientConfig | None = None, codec: Codec | None = None) -> None:
        super().__init__(LoopThread(), AsyncKvClient(place, config, codec))
        self._open = True
        self._call(self._there.start, (), {})

    def close(self) -> None:
        if self._open:
            self._open = False
            self._call(self._there.close, (), {})
            left = self._thread.end()
            assert left == set(), left
