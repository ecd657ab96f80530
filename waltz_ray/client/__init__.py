"""What applications import; ``waltz_ray`` exports the most used names."""

from waltz_ray.client.aio import AsyncWaltzClient
from waltz_ray.client.application import Callbacks, SubmitResult, Transaction, TransactionBuilder, TransactionContext
from waltz_ray.client.client import WaltzClient
from waltz_ray.client.directory import Directory, Location
from waltz_ray.client.range_reader import RangeReader

__all__ = [
    "AsyncWaltzClient",
    "Callbacks",
    "Directory",
    "Location",
    "RangeReader",
    "SubmitResult",
    "Transaction",
    "TransactionBuilder",
    "TransactionContext",
    "WaltzClient",
]
