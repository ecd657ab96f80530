"""Where a key/value client's cluster is: what it is made of, and what of it travels when it is pickled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from waltz_ray.kv.client.members import KvDirectory

if TYPE_CHECKING:
    from waltz_ray.client.aio import AsyncWaltzClient
    from waltz_ray.client.client import WaltzClient

__all__ = ["KvPlace"]


class KvPlace(Protocol):
    """One space of one cluster. It pickles; its methods may block."""

    def directory(self) -> KvDirectory:
        """Who serves it. The caller closes that."""

    def log(self) -> WaltzClient:
        """A client of its log, whose partitions are the space's. The caller closes it."""

    async def log_async(self) -> AsyncWaltzClient:
        """The same for the loop that runs."""
