"""Turns that a replica is handling, and who they are of."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import Protocol

from tests.simulation.disk_threads import Pace
from waltz_ray.protocol.ids import NO_TRANSACTION
from waltz_ray.protocol.messages.replica import (
    Append,
    Appended,
    Begin,
    Open,
    ReplicaReply,
    ReplicaRequest,
    Truncate,
)

__all__ = ["Copier", "Peer", "Turn"]


class Peer(Protocol):
    """Who a turn is of. ``peer``: its name."""

    peer: str

    def answer(self, replies: list[ReplicaReply]) -> None: ...


class Copier:
    """Somebody who reads beside the servers that are there, as one does that copies to another replica."""

    peer = "a copier"

    def answer(self, replies: list[ReplicaReply]) -> None:
        """It has seen them."""


class Turn:
    """A turn that is being handled.

    ``number``: in which order turns began. ``cut``: partitions that another connection may have cut meanwhile;
    ``surely_cut``: that it has, by a turn that began later, and to which ID;
    ``told``: that it has opened meanwhile, and was told where they end. ``abandoned``: its own connection is lost while
    it is handled. ``decided``: only its answer is under way, which what happens now can no longer change. ``pace``: of
    its thread, if that is given.
    """

    def __init__(self, connection: Peer, requests: list[ReplicaRequest]) -> None:
        self.connection, self.requests = connection, requests
        self.number = -1
        self.cut: set[int] = set()
        self.surely_cut: dict[int, int] = {}
        self.told: dict[int, int] = {}
        self.abandoned = self.decided = False
        self.pace: Pace | None = None

    @property
    def copies(self) -> bool:
        return isinstance(self.connection, Copier)

    def cuts(self) -> dict[int, int]:
        """Partition -> the last ID that is to be left of it."""
        cut = {request.partition_id: request.last_id for request in self.requests if isinstance(request, Truncate)}
        return cut | {request.partition_id: NO_TRANSACTION for request in self.requests if isinstance(request, Begin)}

    def opens(self, partition_id: int) -> bool:
        return any(type(request) is Open and request.partition_id == partition_id for request in self.requests)

    def partitions(self) -> list[int]:
        return list(dict.fromkeys(request.partition_id for request in self.requests))

    @property
    def appends(self) -> bool:
        return any(type(request) is Append for request in self.requests)

    def comes_back_to(self) -> list[int]:
        """Partitions that it appends to, leaves, and appends to again."""
        appended = [request.partition_id for request in self.requests if type(request) is Append]
        pieces = [partition_id for partition_id, _ in groupby(appended)]
        return [partition_id for partition_id, count in Counter(pieces).items() if count > 1]

    def only_appends_to(self, partition_id: int) -> bool:
        """So that nothing comes between the decision to acknowledge and the answer."""
        return all(type(request) is Append and request.partition_id == partition_id for request in self.requests)

    def record(self, appended: Appended) -> bytes:
        """The last one of those that are acknowledged."""
        for request in reversed(self.requests):
            if isinstance(request, Append) and request.partition_id == appended.partition_id:
                end_id = request.first_id + len(request.lengths)
                if request.session_id == appended.session_id and end_id == appended.last_id + 1:
                    return bytes(request.records)[-int(request.lengths[-1]) :]
        raise AssertionError(f"{appended} acknowledges what was not asked for: {self.requests}")
