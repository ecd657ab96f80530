"""The port of one slot: what clients say to a broker. In one event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from waltz_ray.errors import CoordinationError
from waltz_ray.topics.access import KnownClient, known_at_broker, refused_topics
from waltz_ray.topics.codes import BrokerOperation, TopicCode
from waltz_ray.topics.lease_ending import OTHERS_END, is_from_a_master
from waltz_ray.topics.messages_consumer import (
    CommitOffsetRequestC2B,
    GetMessageRequestC2B,
    HeartBeatRequestC2B,
    HeartBeatResponseB2C,
    ProgressRequestC2B,
    RegisterRequestC2B,
    RegisterResponseB2C,
)
from waltz_ray.topics.messages_producer import SendMessageRequestP2B, SendMessageResponseB2P
from waltz_ray.topics.produce_rules import message_of, why_no_message
from waltz_ray.topics.refusals import Refusal
from waltz_ray.topics.rpc import RpcCall, RpcFault
from waltz_ray.topics.serving.connection_proofs import ConnectionProofs
from waltz_ray.topics.serving.deliveries import unix_ms
from waltz_ray.topics.serving.fates import AppendedMessage, MessageFate, MessageRefused, NotServed
from waltz_ray.topics.serving.served_topic import ServedTopic
from waltz_ray.topics.serving.slot_consumers import SlotConsumers
from waltz_ray.topics.serving.slot_duties import SlotDuties
from waltz_ray.topics.serving.slot_partition import SlotPartition
from waltz_ray.topics.wire import TopicRequest, TopicResponse

__all__ = ["SlotPort"]

log = logging.getLogger(__name__)

_MAY_BE_BEHIND = (TopicCode.UNAUTHORIZED, TopicCode.CERTIFICATE_FAILURE)

Answered = Callable[["TopicResponse | RpcFault"], None]


class SlotPort:
    """``RequestPort`` of one slot. ``topics``: those there are, by name; it changes."""

    def __init__(self, slot: int, topics: Mapping[str, ServedTopic], duties: SlotDuties) -> None:
        self._slot = slot
        self._topics = topics
        self._duties = duties
        self._deliveries = duties.deliveries
        self._proofs = ConnectionProofs()
        self._consumers = SlotConsumers(self._found, duties, self._proofs)
        self._looking: dict[int, asyncio.Event] = {}  # by connection: set when its last request is decided

    def submit(self, request: TopicRequest, call: RpcCall, connection: int, answer: Answered) -> None:
        if isinstance(request, RegisterRequestC2B) and request.op_type == OTHERS_END:
            self._others_end(request, answer)
            return
        before, refused = self._looking.get(connection), self._refused(request, connection)
        if before is None and not self._may_be_behind(refused):
            self._decided(request, refused, connection, answer)
            return
        looked = self._looking[connection] = asyncio.Event()
        self._deliveries.spawn(self._look_again(before, looked, request, connection, answer))

    def _may_be_behind(self, refused: Refusal | None) -> bool:
        """Whether what holds may be newer than what was told, and lets the client."""
        return refused is not None and refused.code in _MAY_BE_BEHIND and self._duties.access_again is not None

    def _decided(self, request: TopicRequest, refused: Refusal | None, connection: int, answer: Answered) -> None:
        if refused is None:
            self._submit(request, connection, answer)
        else:
            answer(_refusal(request, refused))

    def _others_end(self, request: RegisterRequestC2B, answer: Answered) -> None:
        """Of a master: it has granted the partition."""
        if not is_from_a_master(self._duties.access().secrets, request, self._slot):
            text = f"opType is 31 (register) or 32 (log out), not {request.op_type}"
            answer(RegisterResponseB2C(False, TopicCode.BAD_REQUEST, text))
            return
        delivery = self._consumers.delivery(request.topic_name, request.partition_id, request.group_name)
        if not isinstance(delivery, Refusal):
            delivery.end_others(request.client_id)
        answer(RegisterResponseB2C(True, TopicCode.OK, ""))

    async def _look_again(
        self,
        before: asyncio.Event | None,
        looked: asyncio.Event,
        request: TopicRequest,
        connection: int,
        answer: Answered,
    ) -> None:
        """What comes over the connection meanwhile waits ``before`` it is looked at: it is not to overtake."""
        try:
            if before is not None:
                await before.wait()
            refused = self._refused(request, connection)
            if self._may_be_behind(refused):
                await self._look_at_rights()
                refused = self._refused(request, connection)
            self._decided(request, refused, connection, answer)
        finally:
            looked.set()
            if self._looking.get(connection) is looked:
                del self._looking[connection]

    async def _look_at_rights(self) -> None:
        """Where that is not possible now, what is known holds: who waits has to be answered."""
        assert self._duties.access_again is not None
        try:
            await self._duties.access_again()
        except CoordinationError as error:
            log.info("slot %d: whether rights are others by now is not known: %s", self._slot, error)

    def _refused(self, request: TopicRequest, connection: int) -> Refusal | None:
        """Why the client may not: who sends or registers shows tokens, who pulls has registered."""
        known = self._known(request)
        if known is None or isinstance(known, Refusal):
            return known
        access = self._duties.access()
        self._proofs.shown(connection, known.user, access.rules.users.get(known.user, ""))
        match request:
            case SendMessageRequestP2B(_, topic):
                return refused_topics(access, known, [topic])
            case RegisterRequestC2B(BrokerOperation.REGISTER, _, group, topic):
                filters = [each.strip() for each in request.filter_cond_str if each.strip()]
                return refused_topics(access, known, [topic], group or "?", filters)
        return None

    def _known(self, request: TopicRequest) -> KnownClient | Refusal | None:
        """Who it is by what it shows; None: such a request shows nothing."""
        access, now_ms = self._duties.access(), unix_ms()
        match request:
            case SendMessageRequestP2B(client_id, topic) | RegisterRequestC2B(_, client_id, _, topic):
                return known_at_broker(access, request.auth_info, [topic], client_id, now_ms)
            case HeartBeatRequestC2B():
                return known_at_broker(access, request.auth_info, [], request.client_id, now_ms)
        return None

    def _submit(self, request: TopicRequest, connection: int, answer: Answered) -> None:
        match request:
            case SendMessageRequestP2B():
                self._send(request, answer)
            case RegisterRequestC2B():
                self._consumers.register(request, connection, answer)
            case HeartBeatRequestC2B():
                self._consumers.heartbeat(request, answer)
            case GetMessageRequestC2B():
                self._consumers.pull(request, connection, answer)
            case CommitOffsetRequestC2B():
                self._consumers.confirm(request, connection, answer)
            case ProgressRequestC2B():
                self._consumers.progress(request, connection, answer)
            case _:
                raise AssertionError(f"the port lets no {type(request).__name__} through")

    def _found(self, topic: str, partition_id: int) -> SlotPartition | Refusal:
        """The slot's partition of a topic, which is served."""
        served = self._topics.get(topic)
        if served is None:
            text = f"no topic {topic:.100} is served here: if waltz space list has it, it is new, and will be soon"
            return Refusal(TopicCode.FORBIDDEN, text)
        if partition_id != 0:
            text = f"slot {self._slot} has partition 0 of each topic, and no partition {partition_id}"
            return Refusal(TopicCode.BAD_REQUEST, text)
        if self._slot > served.count:
            text = f"topic {topic} has {served.count} partitions: slot {self._slot} has none of it"
            return Refusal(TopicCode.FORBIDDEN, text)
        partition = served.of_slot(self._slot)
        if partition is None or not partition.serving:
            return Refusal(TopicCode.NOT_READY, f"slot {self._slot} is being moved: ask again soon")
        return partition

    # ---- producers

    def _send(self, request: SendMessageRequestP2B, answer: Answered) -> None:
        duties = self._duties
        partition = self._found(request.topic_name, request.partition_id)
        most = duties.most_bytes(request.topic_name)
        refused = partition if isinstance(partition, Refusal) else why_no_message(request, most)
        if refused is not None:
            duties.refused += 1
            answer(_not_sent(refused))
            return
        assert isinstance(partition, SlotPartition)
        message = message_of(request, unix_ms())

        def told(fate: MessageFate) -> None:
            if isinstance(fate, AppendedMessage):
                duties.produced += 1
                number = fate.transaction_id
                answer(SendMessageResponseB2P(True, TopicCode.OK, "", None, number, message.append_ms, number))
                return
            duties.refused += 1
            if isinstance(fate, NotServed):
                refusal = Refusal(TopicCode.NOT_READY, f"slot {self._slot} has moved: ask the master where it is")
            elif isinstance(fate, MessageRefused):
                refusal = Refusal(TopicCode.BAD_REQUEST, fate.reason)
            else:
                text = f"nobody can say whether the message is in the log: {fate.reason}"
                refusal = Refusal(TopicCode.INTERNAL_ERROR, text)
            answer(_not_sent(refusal))

        partition.append(message, told)


def _refusal(request: TopicRequest, refused: Refusal) -> TopicResponse:
    """The answer to a request that the client may not make."""
    code, text = refused.code, refused.text
    match request:
        case SendMessageRequestP2B():
            return SendMessageResponseB2P(False, code, text, code is TopicCode.CERTIFICATE_FAILURE or None)
        case RegisterRequestC2B():
            return RegisterResponseB2C(False, code, text)
    require = code in (TopicCode.CERTIFICATE_FAILURE, TopicCode.UNAUTHORIZED) or None
    return HeartBeatResponseB2C(False, code, text, None, (), require)


def _not_sent(refusal: Refusal) -> SendMessageResponseB2P:
    return SendMessageResponseB2P(False, refusal.code, refusal.text)
