"""What a replica link tells the partitions of its server, without partitions."""

from __future__ import annotations

from collections.abc import Callable

from waltz_ray.protocol.partition.events import SessionConfirmed
from waltz_ray.protocol.session_types import SessionEvent

__all__ = ["Listening"]

Tell = Callable[[int, SessionEvent | SessionConfirmed], object]


class _Listener:
    def __init__(self, partition_id: int, tell: Tell) -> None:
        self._partition_id = partition_id
        self._tell = tell

    def handle(self, event: SessionEvent | SessionConfirmed) -> None:
        self._tell(self._partition_id, event)


class Listening(dict[int, _Listener]):
    """Calls ``tell(partition ID, event)``. ``known``: the partitions that hear what is for all."""

    def __init__(self, tell: Tell, *known: int) -> None:
        super().__init__({partition_id: _Listener(partition_id, tell) for partition_id in known})
        self._tell = tell

    def __missing__(self, partition_id: int) -> _Listener:
        listener = self[partition_id] = _Listener(partition_id, self._tell)
        return listener
