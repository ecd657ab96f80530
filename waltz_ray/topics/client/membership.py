"""A consumer as the master knows it: it registers, says from time to time that it is there and what it has, and is told
what to connect to and what to leave."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from waltz_ray import compat
from waltz_ray.client.application import checked_int
from waltz_ray.errors import ClientClosed, InvalidInput, PartitionNotReady, TopicRefused
from waltz_ray.topics.client.arguments import checked_offset, checked_text
from waltz_ray.topics.client.masters import Masters
from waltz_ray.topics.client.order_book import OrderBook
from waltz_ray.topics.client.rights import TopicRights
from waltz_ray.topics.client.settings import TopicClientConfig
from waltz_ray.topics.codes import TopicCode
from waltz_ray.topics.messages import EventProto
from waltz_ray.topics.messages_consumer import (
    CloseRequestC2M,
    HeartRequestC2M,
    HeartResponseM2C,
    RegisterRequestC2M,
    RegisterResponseM2C,
)
from waltz_ray.topics.texts import condition_text, required_partitions_text

__all__ = ["BoundGroup", "GroupMembership", "GroupStart", "TopicSubscription"]

log = logging.getLogger(__name__)

_HOST = "127.0.0.1"
_SIGN_AGAIN = (TopicCode.UNAUTHORIZED, TopicCode.CERTIFICATE_FAILURE)

GroupStart = Literal["earliest", "latest", "end"]
"""Where a group begins: "earliest" and "latest" count for one that was nowhere yet; "end" skips what there is when a
consumer has a partition for the first time."""


@dataclass(frozen=True)
class BoundGroup:
    """A group that begins together, at given offsets: when all ``members`` are there that say the same ``key``."""

    key: str
    members: int
    offsets: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Where (topic, partition) begins; those that are not in it, where the group is."""
    largest: bool = True
    """Of two offsets that members give for a partition the larger counts; else the smaller."""

    def __post_init__(self) -> None:
        """InvalidInput."""
        checked_text("a group's key", self.key)
        if checked_int("the number of members", self.members) < 1:
            raise InvalidInput(f"a group has at least one member, not {self.members}")
        for (topic, partition), offset in self.offsets.items():
            checked_text("a topic's name", topic)
            checked_int("a partition", partition)
            checked_offset(offset)


class TopicSubscription(NamedTuple):
    """What a consumer is made of. ``topics``: by name, the message types wanted of each; none: all."""

    group: str
    topics: Mapping[str, frozenset[str]]
    start: GroupStart = "earliest"
    bound: BoundGroup | None = None


class GroupMembership:
    """In one event loop. ``reported``: the subscriptions that the consumer has."""

    def __init__(
        self,
        client_id: str,
        masters: Masters,
        config: TopicClientConfig,
        wanted: TopicSubscription,
        reported: Callable[[], Sequence[str]],
    ) -> None:
        self.client_id = client_id
        self.rights = TopicRights(config.user, config.password)
        self.failure: TopicRefused | None = None
        """Why the master does not want us now."""
        self._masters, self._config, self._wanted, self._reported = masters, config, wanted, reported
        self._orders = OrderBook()
        self._registered = False
        self._may_be_known = False  # to the master, perhaps without our having heard so
        self._not_allocated: bool | None = None  # what the master has said last of the group, told to who leads next
        self._beat_now = asyncio.Event()

    async def register(self) -> None:
        """Say who we are, and what we have. TopicRefused, PartitionNotReady."""
        for _ in range(3):
            self._may_be_known = True
            answer = await self._masters.ask(self._registration, self._config.timeout_s)
            assert isinstance(answer, RegisterResponseM2C)
            if answer.success:
                self._registered = True
                self._not_allocated = answer.not_allocated
                self._orders = OrderBook()
                self.rights.adopt(answer.authorized_info)
                return
            self._may_be_known = self._registered
            if answer.err_code not in _SIGN_AGAIN or self.rights.signs:
                raise TopicRefused(answer.err_code, answer.err_msg)
            self.rights.sign_again()
        raise PartitionNotReady("the master asks for signatures again and again; see the log of the topic actors")

    def _registration(self) -> RegisterRequestC2M:
        wanted, bound = self._wanted, self._wanted.bound
        conditions = tuple(condition_text(topic, types) for topic, types in wanted.topics.items() if types)
        offsets = {} if bound is None else {(p + 1, topic, 0): at for (topic, p), at in bound.offsets.items()}
        return RegisterRequestC2M(
            self.client_id,
            wanted.group,
            _HOST,
            tuple(sorted(wanted.topics)),
            tuple(self._reported()),
            conditions,
            None if bound is None else True,
            None if bound is None else time.time_ns() // 1_000_000,
            None if bound is None else bound.key,
            None if bound is None else bound.members,
            None if bound is None else required_partitions_text(offsets),
            not_allocated=self._not_allocated,
            select_big=None if bound is None else bound.largest,
            auth_info=self.rights.for_master(),
        )

    async def beat(self) -> EventProto | None:
        """Once, registering again where that is needed. What it orders, if that is new; ``done`` follows."""
        try:
            if not self._registered:
                await self.register()
            return await self._beat()
        except TopicRefused as error:
            self.failure = error
        except PartitionNotReady as error:  # what we have goes on without a master
            log.warning("consumer %s: %s", self.client_id, error)
        return None

    async def _beat(self) -> EventProto | None:
        def make() -> HeartRequestC2M:
            shown = self.rights.for_master()
            reported = tuple(self._reported())
            return HeartRequestC2M(
                self.client_id, self._wanted.group, reported, True, self._orders.report, auth_info=shown
            )

        answer = await self._masters.ask(make, self._config.timeout_s)
        assert isinstance(answer, HeartResponseM2C)
        if answer.success:
            self.failure = None
            self._not_allocated = answer.not_allocated
            self.rights.adopt(answer.authorized_info, answer.require_auth)
            if answer.event is not None and self._orders.take(answer.event):
                return answer.event
        elif answer.err_code == TopicCode.HB_NO_NODE:
            self._registered = False
            self._beat_now.set()
        elif answer.err_code in _SIGN_AGAIN and not self.rights.signs:
            self.rights.sign_again()
        else:
            raise TopicRefused(answer.err_code, answer.err_msg)
        return None

    def done(self, order: EventProto) -> None:
        """It has been obeyed: the master hears of it at once."""
        self._orders.done(order)
        self._beat_now.set()

    async def until_next_beat(self) -> None:
        """Wait."""
        try:
            async with compat.timeout(self._config.heartbeat_s):
                await self._beat_now.wait()
        except TimeoutError:
            pass
        self._beat_now.clear()

    async def leave(self) -> None:
        """Log out, if we may be registered: until we were missed nobody would have our share."""
        if self._may_be_known:
            out = CloseRequestC2M(self.client_id, self._wanted.group, self.rights.for_master())
            try:
                await self._masters.ask(lambda: out, 1.0)
            except (PartitionNotReady, ClientClosed) as error:  # we shall be missed
                log.info("consumer %s has not logged out: %s", self.client_id, error)
