"""The port of the master: what producers and consumers say to it, its machine, and the time that passes for it.

Only one actor leads; all have the port, and those that do not lead answer with a StandbyException.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import cast

from waltz_ray.errors import BadPayload
from waltz_ray.topics.codes import TopicCode
from waltz_ray.topics.groups.effects import (
    ConsumerAnswer,
    GroupRefusal,
    MasterEffect,
    PartitionFreed,
    PartitionGranted,
    ProducerAnswer,
    RefuseClient,
    StoreOffsets,
    TellClosed,
)
from waltz_ray.topics.groups.events import BalanceDue, MasterEvent, OffsetsNotStored, OffsetsStored, TableKnown
from waltz_ray.topics.groups.limits import GroupLimits, GroupTimes
from waltz_ray.topics.groups.machine import TopicMaster
from waltz_ray.topics.groups.table import TopicPartition, TopicTable
from waltz_ray.topics.groups.words import (
    MasterRequest,
    MasterResponse,
    closed,
    code_of,
    consumer_answered,
    event_of,
    producer_answered,
    refused_with,
    topics_text,
)
from waltz_ray.topics.messages_consumer import HeartRequestC2M, RegisterRequestC2M
from waltz_ray.topics.messages_producer import HeartRequestP2M, RegisterRequestP2M
from waltz_ray.topics.rpc import FaultName, RpcCall, RpcFault
from waltz_ray.topics.wire import TopicRequest, TopicResponse

__all__ = ["MasterPort", "StoresOffsets"]

log = logging.getLogger(__name__)

Answered = Callable[["TopicResponse | RpcFault"], None]
StoresOffsets = Callable[[str, Mapping[TopicPartition, int]], Awaitable[str]]
"""(group, offsets): stores where a bound group begins; "" or why it could not."""


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class MasterPort:
    """``RequestPort`` of the master. In one event loop."""

    def __init__(
        self,
        store_offsets: StoresOffsets,
        max_message_bytes: int,
        balance_s: float = 1.0,
        times: GroupTimes | None = None,
        limits: GroupLimits | None = None,
        now_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        self.machine = TopicMaster(times, limits)
        self._store_offsets = store_offsets
        self._max_message_bytes = max_message_bytes
        self._balance_s = balance_s
        self._table = TopicTable({}, {})
        self._now_ms = now_ms
        self._calls = itertools.count(1)
        self._asked: dict[int, tuple[MasterRequest, RpcCall, Answered]] = {}
        self._ticker: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def table_known(self, table: TopicTable) -> None:
        """Slots and topics as they are now."""
        if table != self._table:
            self._table = table
            self.step(TableKnown(table))

    def start(self) -> None:
        """Balance from now on."""
        self._ticker = asyncio.get_running_loop().call_later(self._balance_s, self._tick)

    async def close(self) -> None:
        """Idempotent."""
        if self._ticker is not None:
            self._ticker.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _tick(self) -> None:
        self.step(BalanceDue())
        self.start()

    # ---- requests

    def submit(self, request: TopicRequest, call: RpcCall, answer: Answered) -> None:
        asked = cast(MasterRequest, request)  # the port lets no other through
        number = next(self._calls)
        try:
            event = event_of(asked, number)
        except BadPayload as error:
            answer(refused_with(asked, TopicCode.BAD_REQUEST, str(error)))
            return
        self._asked[number] = asked, call, answer
        self.step(event)

    def step(self, event: MasterEvent) -> None:
        """Tell the machine, and carry out what it orders."""
        for effect in self.machine.step(event, self._now_ms()):
            self._carry_out(effect)

    def _carry_out(self, effect: MasterEffect) -> None:
        match effect:
            case RefuseClient(number, reason, text):
                request, call, answer = self._asked.pop(number)
                if reason is GroupRefusal.STANDBY:
                    answer(FaultName.STANDBY.fault(text, call))
                else:
                    answer(refused_with(request, code_of(reason), text))
            case TellClosed(number):
                request, _, answer = self._asked.pop(number)
                answer(closed(request))
            case ProducerAnswer(number) | ConsumerAnswer(number):
                request, _, answer = self._asked.pop(number)
                answer(self._answer(request, effect))
            case StoreOffsets(group, session_key, offsets):
                task = asyncio.get_running_loop().create_task(self._store(group, session_key, offsets))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case PartitionGranted(group, partition, client_id):
                log.info("group %s: %s has %s", group, client_id, partition)
            case PartitionFreed(group, partition, client_id, how):
                log.info("group %s: %s has %s no more: %s", group, client_id, partition, how.value)

    def _answer(self, request: MasterRequest, answer: ProducerAnswer | ConsumerAnswer) -> MasterResponse:
        topics = topics_text(answer.topics, self._table.slots, self._max_message_bytes)
        if isinstance(answer, ProducerAnswer):
            assert isinstance(request, RegisterRequestP2M | HeartRequestP2M)
            return producer_answered(request, answer, topics)
        assert isinstance(request, RegisterRequestC2M | HeartRequestC2M)
        return consumer_answered(request, answer, topics)

    async def _store(self, group: str, session_key: str, offsets: Mapping[TopicPartition, int]) -> None:
        why = await self._store_offsets(group, offsets)
        self.step(OffsetsNotStored(group, session_key, why) if why else OffsetsStored(group, session_key))
