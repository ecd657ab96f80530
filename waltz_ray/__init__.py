"""waltz_ray: a distributed, replicated write-ahead log for applications on Ray.

``connect`` gives a client, ``connect_async`` one for coroutines;
the other names are what an application writes, catches (``waltz_ray.errors``) or sets.
``read_dataset`` and what else is in ``waltz_ray.client.ray``, and ``SQLAlchemyCallbacks`` (``waltz_ray.client.sql``)
are imported when they are asked for: nobody else has to wait for Ray Data, or to have SQLAlchemy. ``waltz_ray.testing``
is for tests.
"""

from typing import TYPE_CHECKING, Any

from waltz_ray.client.aio import AsyncWaltzClient
from waltz_ray.client.application import Callbacks, SubmitResult, Transaction, TransactionBuilder, TransactionContext
from waltz_ray.client.client import WaltzClient
from waltz_ray.client.range_reader import RangeReader
from waltz_ray.config import ClientConfig

# This also makes sure that ``waltz_ray.connect`` is the function, not the module it is in.
from waltz_ray.connect import connect, connect_async
from waltz_ray.protocol.ids import LockId, ReqId

if TYPE_CHECKING:
    from waltz_ray.client.ray import WaltzDatasink, block_rows, feed_dataset, read_dataset
    from waltz_ray.client.sql import SQLAlchemyCallbacks

__all__ = [
    "AsyncWaltzClient",
    "Callbacks",
    "ClientConfig",
    "LockId",
    "RangeReader",
    "ReqId",
    "SQLAlchemyCallbacks",
    "SubmitResult",
    "Transaction",
    "TransactionBuilder",
    "TransactionContext",
    "WaltzClient",
    "WaltzDatasink",
    "block_rows",
    "connect",
    "connect_async",
    "feed_dataset",
    "read_dataset",
]

_OF_RAY_DATA = ("WaltzDatasink", "block_rows", "feed_dataset", "read_dataset")


def __getattr__(name: str) -> Any:
    if name in _OF_RAY_DATA:
        from waltz_ray.client import ray

        return getattr(ray, name)
    if name == "SQLAlchemyCallbacks":
        from waltz_ray.client.sql import SQLAlchemyCallbacks

        return SQLAlchemyCallbacks
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
