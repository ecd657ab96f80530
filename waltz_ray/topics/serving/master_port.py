"""The port of the master: what producers and consumers say to it, its machine, and the time that passes for it.

Only one actor leads; all have the port, and those that do not lead answer with a StandbyException.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, cast

from waltz_ray.errors import BadPayload
from waltz_ray.topics.access import KnownClient, TopicAccess, authorized, known_at_master, refused_topics
from waltz_ray.topics.codes import TopicCode
from waltz_ray.topics.flow_table import FlowTable
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
from waltz_ray.topics.groups.machine import STANDBY, TopicMaster
from waltz_ray.topics.groups.table import SlotPlace, TopicPartition, TopicTable
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
from waltz_ray.topics.messages_consumer import HeartRequestC2M, HeartResponseM2C, RegisterRequestC2M
from waltz_ray.topics.messages_producer import HeartRequestP2M, HeartResponseM2P, RegisterRequestP2M
from waltz_ray.topics.refusals import Refusal
from waltz_ray.topics.rpc import FaultName, RpcCall, RpcFault
from waltz_ray.topics.serving.client_owners import ClientOwners
from waltz_ray.topics.serving.deliveries import unix_ms
from waltz_ray.topics.serving.own_tasks import OwnTasks
from waltz_ray.topics.texts import parse_conditions
from waltz_ray.topics.wire import TopicRequest, TopicResponse

__all__ = ["MasterPort", "StoresOffsets"]

log = logging.getLogger(__name__)

Answered = Callable[["TopicResponse | RpcFault"], None]
StoresOffsets = Callable[[str, Mapping[TopicPartition, int], Callable[[], bool]], Awaitable[str]]
"""(group, offsets, whether they are to be stored still): stores where a bound group begins; "" or why it could not."""


class _Asked(NamedTuple):
    request: MasterRequest
    call: RpcCall
    answer: Answered
    known: KnownClient


async def _nobody_is_told(group: str, partition: TopicPartition, client_id: str, place: SlotPlace) -> None:
    return


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
        self._asked: dict[int, _Asked] = {}
        self._owners = ClientOwners()
        self.access: Callable[[], TopicAccess] = TopicAccess
        """Asked at each request: what holds now."""
        self.flow: Callable[[], FlowTable] = FlowTable
        self.granted: Callable[[str, TopicPartition, str, SlotPlace], Coroutine[Any, Any, None]] = _nobody_is_told
        """(group, partition, consumer, where its slot is): nobody else is to have it."""
        self._ticker: asyncio.TimerHandle | None = None
        self.tasks = OwnTasks("the master of topics")

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
        await self.tasks.stop()

    def _tick(self) -> None:
        try:
            self.step(BalanceDue())
            self._owners.keep(self.machine.client_ids())
        except Exception as error:
            self.tasks.failed("groups are not balanced any more", error)
            raise
        self.start()

    # ---- requests

    def submit(self, request: TopicRequest, call: RpcCall, connection: int, answer: Answered) -> None:
        asked = cast(MasterRequest, request)  # the port lets no other through
        if not self.machine.leads:
            answer(FaultName.STANDBY.fault(STANDBY, call))
            return
        number = next(self._calls)
        try:
            known = self._known(asked)  # first: a long list of partitions takes its time, and is not read for strangers
            if isinstance(known, Refusal):
                answer(refused_with(asked, known.code, known.text))
                return
            event = event_of(asked, number)
        except BadPayload as error:
            answer(refused_with(asked, TopicCode.BAD_REQUEST, str(error)))
            return
        self._asked[number] = _Asked(asked, call, answer, known)
        self.step(event)

    def _known(self, request: MasterRequest) -> KnownClient | Refusal:
        """Who it is, if it may do that. BadPayload."""
        access = self.access()
        known = known_at_master(access, request.auth_info, unix_ms())
        if isinstance(known, Refusal):
            return known
        refused = self._owners.refused(request.client_id, known.user)
        if refused is not None:
            return refused
        if isinstance(request, RegisterRequestP2M | HeartRequestP2M):
            refused = refused_topics(access, known, request.topic_list)
        elif isinstance(request, RegisterRequestC2M):
            filters = parse_conditions(request.topic_condition)
            refused = self._refused_group(access, known, request.group_name, request.topic_list, filters)
        elif isinstance(request, HeartRequestC2M):  # a member that may not consume any more, is as one that is silent
            terms = self.machine.terms_of(request.group_name)
            if terms is not None:
                refused = self._refused_group(access, known, request.group_name, terms.topics, terms.filters)
        return refused or known

    @staticmethod
    def _refused_group(
        access: TopicAccess,
        known: KnownClient,
        group: str,
        topics: Iterable[str],
        filters: Mapping[str, Collection[str]],
    ) -> Refusal | None:
        refused: Refusal | None = None
        for topic in sorted(topics):
            refused = refused or refused_topics(access, known, [topic], group, filters.get(topic, ()))
        return refused

    def step(self, event: MasterEvent) -> None:
        """Tell the machine, and carry out what it orders."""
        for effect in self.machine.step(event, self._now_ms()):
            self._carry_out(effect)

    def _carry_out(self, effect: MasterEffect) -> None:
        match effect:
            case RefuseClient(number, reason, text):
                request, call, answer, _ = self._asked.pop(number)
                if reason is GroupRefusal.STANDBY:
                    answer(FaultName.STANDBY.fault(text, call))
                else:
                    answer(refused_with(request, code_of(reason), text))
            case TellClosed(number):
                request, _, answer, _ = self._asked.pop(number)
                if not self.machine.knows(request.client_id):
                    self._owners.forget(request.client_id)
                answer(closed(request))
            case ProducerAnswer(number) | ConsumerAnswer(number):
                request, _, answer, known = self._asked.pop(number)
                self._owners.told(request.client_id, known.user)
                answer(self._answer(request, effect, known))
            case StoreOffsets(group, session_key, offsets):
                self._spawn(self._store(group, session_key, offsets))
            case PartitionGranted(group, partition, client_id, _, reported):
                log.info("group %s: %s has %s", group, client_id, partition)
                if not reported and partition.slot in self._table.slots:
                    self._spawn(self.granted(group, partition, client_id, self._table.slots[partition.slot]))
            case PartitionFreed(group, partition, client_id, how):
                log.info("group %s: %s has %s no more: %s", group, client_id, partition, how.value)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.begin(work, "a task of the master has ended")

    def _answer(
        self, request: MasterRequest, answer: ProducerAnswer | ConsumerAnswer, known: KnownClient
    ) -> MasterResponse:
        topics = topics_text(answer.topics, self._table.slots, self._max_message_bytes)
        rights = authorized(self.access(), known, answer.topics, unix_ms())
        renew = known.renew or None
        if isinstance(answer, ProducerAnswer):
            assert isinstance(request, RegisterRequestP2M | HeartRequestP2M)
            to_producer = producer_answered(request, answer, topics)
            if isinstance(to_producer, HeartResponseM2P):
                return replace(to_producer, authorized_info=rights, require_auth=renew)
            return replace(to_producer, authorized_info=rights)
        assert isinstance(request, RegisterRequestC2M | HeartRequestC2M)
        to_consumer = consumer_answered(request, answer, topics)
        known_ids = request.def_flow_check_id or 0, request.group_flow_check_id or 0
        (default_id, default_text), (group_id, group_text) = self.flow().news(request.group_name, *known_ids)
        flow: dict[str, Any] = {
            "def_flow_check_id": default_id,
            "def_flow_control_info": default_text,
            "group_flow_check_id": group_id,
            "group_flow_control_info": group_text,
        }
        if isinstance(to_consumer, HeartResponseM2C):
            return replace(to_consumer, authorized_info=rights, require_auth=renew, **flow)
        return replace(to_consumer, authorized_info=rights, **flow)

    async def _store(self, group: str, session_key: str, offsets: Mapping[TopicPartition, int]) -> None:
        why = await self._store_offsets(group, offsets, lambda: self.machine.is_storing(group, session_key))
        self.step(OffsetsNotStored(group, session_key, why) if why else OffsetsStored(group, session_key))
