from waltz_ray.kv.client.aio import AsyncKvClient
from waltz_ray.kv.client.client import KvClient, KvLock, KvMap
from waltz_ray.kv.client.connecting import connect, connect_async
from waltz_ray.kv.client.items import AsyncKvMap
from waltz_ray.kv.client.locks import AsyncKvLock
from waltz_ray.kv.client.settings import KvClientConfig
from waltz_ray.kv.client.values import Entry, NamedEntry
from waltz_ray.kv.client.watching import (
    AsyncKvWatch,
    ItemDeleted,
    ItemEvent,
    ItemExpired,
    ItemSet,
    ItemTouched,
    KvWatch,
)
from waltz_ray.kv.messages import ABSENT

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
