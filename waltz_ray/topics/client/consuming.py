"""Messages of a topic through the actors' ports, as a member of a group: for commands. In one event loop.

A message is given out before it is confirmed: with the next pull of its partition, or at the end. So who ends in the
midst of it has the last ones again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Collection, Sequence
from typing import NamedTuple

from waltz_ray.errors import InvalidInput
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.topics.client.caller import TopicCaller, ask_master
from waltz_ray.topics.client.producing import certificate
from waltz_ray.topics.codes import BrokerOperation, TopicCode
from waltz_ray.topics.groups.events import OrderStatus, RebalanceOp
from waltz_ray.topics.messages import AuthorizedInfo, EventProto, MasterAuthorizedInfo
from waltz_ray.topics.messages_consumer import (
    CloseRequestC2M,
    CommitOffsetRequestC2B,
    GetMessageRequestC2B,
    GetMessageResponseB2C,
    HeartRequestC2M,
    HeartResponseM2C,
    RegisterRequestC2B,
    RegisterRequestC2M,
    RegisterResponseB2C,
    RegisterResponseM2C,
)
from waltz_ray.topics.payload import unpacked_payload
from waltz_ray.topics.rpc import RpcFault
from waltz_ray.topics.slots import partition_of_slot
from waltz_ray.topics.texts import condition_text, consumer_id, parse_subscription

__all__ = ["ConsumedMessage", "TopicReader"]

_BEAT_S = 1.0
_PAUSE_S = 0.02
_CONNECTS = (RebalanceOp.CONNECT, RebalanceOp.ONLY_CONNECT)
_DISCONNECTS = (RebalanceOp.DISCONNECT, RebalanceOp.ONLY_DISCONNECT)


class ConsumedMessage(NamedTuple):
    """A message as it is given out."""

    partition: int
    offset: int
    data: bytes


class TopicReader:
    """Of ``topic`` as a member of ``group``; ``types``: of these types only."""

    def __init__(
        self,
        masters: Sequence[Endpoint],
        group: str,
        topic: str,
        types: Collection[str],
        timeout_s: float,
        user: str = "",
        password: str = "",
    ) -> None:
        self._masters, self._group, self._topic, self._types = masters, group, topic, types
        self._timeout_s, self._user, self._password = timeout_s, user, password
        self._id = consumer_id(group, "127.0.0.1", os.getpid(), time.time_ns() // 1_000_000, 1, "Pull", "waltz")
        self._master: TopicCaller | None = None
        self._has: dict[str, tuple[int, TopicCaller]] = {}  # subscription -> its slot, and the connection with it
        self._rights: MasterAuthorizedInfo | None = None
        self._event: EventProto | None = None
        self._beat_at_s = 0.0

    async def messages(self) -> AsyncIterator[ConsumedMessage]:
        """As they come, for ever; InvalidInput if we are refused, PartitionNotReady if there is no master."""
        while True:
            await self._beat()
            got = False
            for subscription in list(self._has):
                for message in await self._pull(subscription):
                    got = True
                    yield message
            if not got:
                await asyncio.sleep(_PAUSE_S)

    async def close(self) -> None:
        """Confirm what was given out, and leave the group."""
        for subscription in list(self._has):
            await self._leave(subscription, consumed=True)
        if self._master is not None:
            with contextlib.suppress(OSError, TimeoutError):  # it will notice that we are gone
                await self._master.ask(CloseRequestC2M(self._id, self._group, certificate(self._user, self._password)))
            await self._master.close()

    # ---- the master

    async def _beat(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._master is None:
            await self._register()
        elif now_s < self._beat_at_s and self._event is None:
            return
        self._beat_at_s = now_s + _BEAT_S
        assert self._master is not None
        event, self._event = self._event, None
        shown = certificate(self._user, self._password)
        request = HeartRequestC2M(self._id, self._group, tuple(self._has), True, event, auth_info=shown)
        try:
            answer = await self._master.ask(request)
        except (OSError, TimeoutError):
            answer = None
        if not isinstance(answer, HeartResponseM2C) or not answer.success:
            await self._master.close()
            self._master = None  # another one leads, or it does not know us any more
            return
        self._rights = answer.authorized_info or self._rights
        if answer.event is not None:
            await self._obey(answer.event)

    async def _register(self) -> None:
        conditions = (condition_text(self._topic, self._types),) if self._types else ()
        request = RegisterRequestC2M(
            self._id,
            self._group,
            "127.0.0.1",
            (self._topic,),
            tuple(self._has),
            conditions,
            auth_info=certificate(self._user, self._password),
        )
        self._master, answer = await ask_master(self._masters, request, self._timeout_s)
        assert isinstance(answer, RegisterResponseM2C)
        if not answer.success:
            raise InvalidInput(f"the master refuses us ({answer.err_code}): {answer.err_msg}")
        self._rights = answer.authorized_info

    async def _obey(self, event: EventProto) -> None:
        for each in event.subscribe_info:
            if event.op_type in _CONNECTS and each not in self._has:
                await self._connect(each)
            elif event.op_type in _DISCONNECTS:
                await self._leave(each, consumed=True)
        self._event = EventProto(event.rebalance_id, event.op_type, OrderStatus.DONE, event.subscribe_info)

    # ---- slots

    async def _connect(self, subscription: str) -> None:
        """Where it does not succeed the master tells us again in a later round."""
        place = parse_subscription(subscription).place
        rights = self._rights
        shown = None if rights is None else AuthorizedInfo(rights.visit_authorized_token, rights.auth_authorized_token)
        request = RegisterRequestC2B(
            BrokerOperation.REGISTER,
            self._id,
            self._group,
            self._topic,
            place.partition_id,
            0,
            tuple(self._types),
            auth_info=shown,
        )
        try:
            caller = await TopicCaller.open(Endpoint(place.broker.host, place.broker.port), self._timeout_s)
        except (OSError, TimeoutError):
            return
        try:
            answer = await caller.ask(request)
        except (OSError, TimeoutError):
            answer = None
        if isinstance(answer, RegisterResponseB2C) and answer.success:
            self._has[subscription] = place.broker.broker_id, caller
            return
        await caller.close()
        refused = (TopicCode.UNAUTHORIZED, TopicCode.FORBIDDEN, TopicCode.GROUP_FORBIDDEN, TopicCode.CONTENT_FORBIDDEN)
        if isinstance(answer, RegisterResponseB2C) and answer.err_code in refused:
            raise InvalidInput(f"partition {place} is refused ({answer.err_code}): {answer.err_msg}")

    async def _pull(self, subscription: str) -> list[ConsumedMessage]:
        slot, caller = self._has[subscription]
        try:
            answer = await caller.ask(GetMessageRequestC2B(self._id, 0, self._group, self._topic, True))
        except (OSError, TimeoutError):
            answer = RpcFault("", "the connection was lost")
        if not isinstance(answer, GetMessageResponseB2C):
            await self._forget(subscription)
            return []
        if not answer.success:
            if answer.err_code in (TopicCode.HB_NO_NODE, TopicCode.MOVED, TopicCode.DUPLICATE_PARTITION):
                await self._forget(subscription)
            elif answer.min_limit_time:
                await asyncio.sleep(answer.min_limit_time / 1000)
            return []
        partition = partition_of_slot(slot)
        return [
            ConsumedMessage(partition, each.message_id, unpacked_payload(each.pay_load_data, each.flag)[0])
            for each in answer.messages
        ]

    async def _leave(self, subscription: str, consumed: bool) -> None:
        if subscription not in self._has:
            return
        _, caller = self._has[subscription]
        status = 0 if consumed else 1
        out = RegisterRequestC2B(BrokerOperation.LOGOUT, self._id, self._group, self._topic, 0, status)
        with contextlib.suppress(OSError, TimeoutError):  # what was not confirmed comes again
            await caller.ask(CommitOffsetRequestC2B(self._id, self._topic, 0, self._group, consumed))
            await caller.ask(out)
        await self._forget(subscription)

    async def _forget(self, subscription: str) -> None:
        _, caller = self._has.pop(subscription)
        await caller.close()
