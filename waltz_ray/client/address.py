"""What of a client travels when it is pickled: how to connect, not the connections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from waltz_ray.client.bounds import Partitions
from waltz_ray.client.codecs import Codec
from waltz_ray.client.directory import Directory
from waltz_ray.client.transport import Transport
from waltz_ray.config import ClientConfig
from waltz_ray.errors import InvalidInput

__all__ = ["Address", "Find", "StaysHere", "travelling"]

Find = Callable[[], tuple[Directory, Transport]]
"""Finds the cluster, and may block; it pickles."""


@dataclass(frozen=True)
class Address:
    """Where a client without callbacks is to be had once more."""

    find: Find
    config: ClientConfig | None
    partitions: Partitions
    codec: Codec | None = None


class StaysHere:
    """What is of one process only, and says so where it is pickled: for Ray's tasks and actors, or Spark's."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        raise InvalidInput(
            f"{type(self).__name__} does not pickle: it is of this process; give its client, or the cluster's name, "
            "and have one made of that where it is used"
        )


def travelling(address: Address | None, has_callbacks: bool) -> Address:
    """The address, if the client may travel."""
    if has_callbacks:
        raise InvalidInput(
            "a client with callbacks does not pickle: they belong to this process; connect where they are to be called"
        )
    if address is None:
        raise InvalidInput("this client does not pickle: only those of connect() and connect_async() have an address")
    return address
