"""What a call says whose client was closed while it was with ZooKeeper: that session was the client's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from waltz_ray.errors import ClientClosed, ZooKeeperUnreachable

__all__ = ["closed_meanwhile"]


@contextmanager
def closed_meanwhile(check_open: Callable[[], None]) -> Iterator[None]:
    """ClientClosed in place of ZooKeeperUnreachable, where ``check_open`` raises it: it is of no use to try again."""
    try:
        yield
    except ZooKeeperUnreachable as error:
        try:
            check_open()
        except ClientClosed:
            raise ClientClosed("the client is closed; what was about to be written may be written") from error
        raise
