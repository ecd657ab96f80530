"""waltz_ray: a distributed, replicated write-ahead log for applications on Ray.

``connect`` gives a client, ``connect_async`` one for coroutines, ``init_ray`` joins the cluster's Ray, ``Spaces`` adds
partitions and deletes them;
the other names are what an application writes, catches (``waltz_ray.errors``) or sets.
Each is imported when it is asked for: who needs one of them, or the command line, does not wait for the rest.
``waltz_ray.testing`` has a cluster for tests.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from waltz_ray import errors

if TYPE_CHECKING:
    from waltz_ray.client.aio import AsyncWaltzClient
    from waltz_ray.client.application import (
        Callbacks,
        SubmitResult,
        Transaction,
        TransactionBuilder,
        TransactionContext,
    )
    from waltz_ray.client.client import WaltzClient
    from waltz_ray.client.codecs import JsonCodec, MsgpackCodec, TypedCodec, ZstdCodec
    from waltz_ray.client.range_reader import RangeReader
    from waltz_ray.client.ray import WaltzDatasink, block_rows, feed_dataset, read_dataset
    from waltz_ray.client.sql import SQLAlchemyCallbacks
    from waltz_ray.config import ClientConfig
    from waltz_ray.connecting import connect, connect_async, init_ray
    from waltz_ray.protocol.ids import LockId, ReqId
    from waltz_ray.spaces import Spaces

    __version__: str

__all__ = [
    "AsyncWaltzClient",
    "Callbacks",
    "ClientConfig",
    "JsonCodec",
    "LockId",
    "MsgpackCodec",
    "RangeReader",
    "ReqId",
    "SQLAlchemyCallbacks",
    "Spaces",
    "SubmitResult",
    "Transaction",
    "TransactionBuilder",
    "TransactionContext",
    "TypedCodec",
    "WaltzClient",
    "WaltzDatasink",
    "ZstdCodec",
    "block_rows",
    "connect",
    "connect_async",
    "errors",
    "feed_dataset",
    "init_ray",
    "read_dataset",
]

_MODULES = {
    "AsyncWaltzClient": "client.aio",
    "Callbacks": "client.application",
    "ClientConfig": "config",
    "JsonCodec": "client.codecs",
    "LockId": "protocol.ids",
    "MsgpackCodec": "client.codecs",
    "RangeReader": "client.range_reader",
    "ReqId": "protocol.ids",
    "SQLAlchemyCallbacks": "client.sql",
    "Spaces": "spaces",
    "SubmitResult": "client.application",
    "Transaction": "client.application",
    "TransactionBuilder": "client.application",
    "TransactionContext": "client.application",
    "TypedCodec": "client.codecs",
    "WaltzClient": "client.client",
    "WaltzDatasink": "client.ray",
    "ZstdCodec": "client.codecs",
    "block_rows": "client.ray",
    "connect": "connecting",
    "connect_async": "connecting",
    "feed_dataset": "client.ray",
    "init_ray": "connecting",
    "read_dataset": "client.ray",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from waltz_ray.runtime.process import installed_version

        return installed_version()
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
