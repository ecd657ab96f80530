"""The key/value layer (OpenCluster): an application of the log. docs/opencluster.md.

``connect`` gives a client, ``connect_async`` one for coroutines; the other names are what an application writes or is
given. Each is imported when it is asked for: the actors, and who only folds, load no client. What the names are, for
type checkers, is in ``__init__.pyi``.
"""

from importlib import import_module
from typing import Any

_MODULES = {
    "ABSENT": "messages",
    "AsyncKvClient": "client.aio",
    "AsyncKvLock": "client.locks",
    "AsyncKvMap": "client.items",
    "AsyncKvWatch": "client.watching",
    "Entry": "client.values",
    "ItemDeleted": "client.watching",
    "ItemEvent": "client.watching",
    "ItemExpired": "client.watching",
    "ItemSet": "client.watching",
    "ItemTouched": "client.watching",
    "KvClient": "client.client",
    "KvClientConfig": "client.settings",
    "KvLock": "client.client",
    "KvMap": "client.client",
    "KvWatch": "client.watching",
    "NamedEntry": "client.values",
    "connect": "client.connecting",
    "connect_async": "client.connecting",
}

__all__ = [
    "ABSENT",
    "AsyncKvClient",
    "AsyncKvLock",
    "AsyncKvMap",
    "AsyncKvWatch",
    "Entry",
    "ItemDeleted",
    "ItemEvent",
    "ItemExpired",
    "ItemSet",
    "ItemTouched",
    "KvClient",
    "KvClientConfig",
    "KvLock",
    "KvMap",
    "KvWatch",
    "NamedEntry",
    "connect",
    "connect_async",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
