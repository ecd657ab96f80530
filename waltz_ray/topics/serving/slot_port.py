"""The port of one slot: what clients say to a broker. In one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from waltz_ray.errors import BadPayload, InvalidInput
from waltz_ray.topics import delivery_types as t
from waltz_ray.topics import texts
from waltz_ray.topics.access import KnownClient, TopicAccess, known_at_broker, refused_topics
from waltz_ray.topics.authorization import refused_group
from waltz_ray.topics.codes import BrokerOperation, TopicCode
from waltz_ray.topics.lease_ending import OTHERS_END, is_from_a_master
from waltz_ray.topics.messages_consumer import (
    CommitOffsetRequestC2B,
    CommitOffsetResponseB2C,
    GetMessageRequestC2B,
    GetMessageResponseB2C,
    HeartBeatRequestC2B,
    HeartBeatResponseB2C,
    ProgressRequestC2B,
    ProgressResponseB2C,
    RegisterRequestC2B,
    RegisterResponseB2C,
    TransferedMessage,
)
from waltz_ray.topics.messages_producer import SendMessageRequestP2B, SendMessageResponseB2P
from waltz_ray.topics.produce_rules import message_of, why_no_message
from waltz_ray.topics.refusals import Refusal
from waltz_ray.topics.rpc import RpcCall, RpcFault
from waltz_ray.topics.serving.deliveries import ConsumerRights, Deliveries, GroupDelivery
from waltz_ray.topics.serving.fates import AppendedMessage, MessageFate, MessageRefused, NotServed
from waltz_ray.topics.serving.served_topic import ServedTopic
from waltz_ray.topics.serving.slot_partition import SlotPartition
from waltz_ray.topics.wire import TopicRequest, TopicResponse

__all__ = ["SlotDuties", "SlotPort"]

_MAY_BE_BEHIND = (TopicCode.UNAUTHORIZED, TopicCode.CERTIFICATE_FAILURE)

Answered = Callable[["TopicResponse | RpcFault"], None]


@dataclass
class SlotDuties:
    """What all slots of an actor do alike."""

    deliveries: Deliveries
    max_message_bytes: int
    """Of a message of any topic."""
    access: Callable[[], TopicAccess] = TopicAccess
    """Asked at each request: what holds now."""
    access_again: Callable[[], Awaitable[None]] | None = None
    """Looks at ZooKeeper again: what holds may be newer than what was told."""
    topic_bytes: Mapping[str, int] = field(default_factory=dict)
    """Of a message of a topic that says so itself: never more."""
    produced: int = 0
    """Messages that were appended."""
    refused: int = 0
    """Messages that were not."""

    def most_bytes(self, topic: str) -> int:
        """How large a message may be."""
        return self.topic_bytes.get(topic, self.max_message_bytes)

    def changed(self, topic: str, partition: SlotPartition) -> None:
        """A partition is served, or not any more, or has grown."""
        self.deliveries.changed(topic, partition)

    def gone(self, topic: str, partition: SlotPartition) -> None:
        """A partition is about to be closed."""
        self.deliveries.gone(topic, partition)


class SlotPort:
    """``RequestPort`` of one slot. ``topics``: those there are, by name; it changes."""

    def __init__(self, slot: int, topics: Mapping[str, ServedTopic], duties: SlotDuties) -> None:
        self._slot = slot
        self._topics = topics
        self._duties = duties
        self._deliveries = duties.deliveries
        self._looking: dict[int, asyncio.Future[None]] = {}  # by connection: done when its last request is

    def submit(self, request: TopicRequest, call: RpcCall, connection: int, answer: Answered) -> None:
        if isinstance(request, RegisterRequestC2B) and request.op_type == OTHERS_END:
            self._others_end(request, answer)
            return
        before, refused = self._looking.get(connection), self._refused(request)
        if before is None and not self._may_be_behind(refused):
            self._decided(request, refused, connection, answer)
            return
        looked = self._looking[connection] = asyncio.get_running_loop().create_future()
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
        delivery = self._delivery(request.topic_name, request.partition_id, request.group_name)
        if not isinstance(delivery, Refusal):
            delivery.end_others(request.client_id)
        answer(RegisterResponseB2C(True, TopicCode.OK, ""))

    async def _look_again(
        self,
        before: asyncio.Future[None] | None,
        looked: asyncio.Future[None],
        request: TopicRequest,
        connection: int,
        answer: Answered,
    ) -> None:
        """What comes over the connection meanwhile waits ``before`` it is looked at: it is not to overtake."""
        try:
            if before is not None:
                await before
            refused = self._refused(request)
            if self._may_be_behind(refused):
                assert self._duties.access_again is not None
                await self._duties.access_again()
                refused = self._refused(request)
            self._decided(request, refused, connection, answer)
        finally:
            looked.set_result(None)
            if self._looking.get(connection) is looked:
                del self._looking[connection]

    def _refused(self, request: TopicRequest) -> Refusal | None:
        """Why the client may not: who sends or registers shows tokens, who pulls has registered (``_withdrawn``)."""
        access, now_ms = self._duties.access(), self._deliveries.now_ms()
        match request:
            case SendMessageRequestP2B(client_id, topic):
                known = known_at_broker(access, request.auth_info, [topic], client_id, now_ms)
                return known if isinstance(known, Refusal) else refused_topics(access, known, [topic])
            case RegisterRequestC2B(_, client_id, group, topic):
                known = known_at_broker(access, request.auth_info, [topic], client_id, now_ms)
                if isinstance(known, Refusal) or request.op_type != BrokerOperation.REGISTER:
                    return known if isinstance(known, Refusal) else None
                filters = [each.strip() for each in request.filter_cond_str if each.strip()]
                return refused_topics(access, known, [topic], group or "?", filters)
            case HeartBeatRequestC2B():
                known = known_at_broker(access, request.auth_info, [], request.client_id, now_ms)
                return known if isinstance(known, Refusal) else None
        return None

    def _withdrawn(self, delivery: GroupDelivery, consumer: str) -> Refusal | None:
        """Why who has registered may not go on: rules hold from the next request on. What was consumed is confirmed
        whatever they are."""
        access, registered = self._duties.access(), delivery.registered
        if registered is None or registered.consumer != consumer:
            return refused_group(access.rules, delivery.group, delivery.topic)
        return refused_topics(access, registered.known, [delivery.topic], delivery.group, registered.filters)

    def _submit(self, request: TopicRequest, connection: int, answer: Answered) -> None:
        match request:
            case SendMessageRequestP2B():
                self._send(request, answer)
            case RegisterRequestC2B():
                self._register(request, connection, answer)
            case HeartBeatRequestC2B():
                self._heartbeat(request, answer)
            case GetMessageRequestC2B():
                self._pull(request, connection, answer)
            case CommitOffsetRequestC2B():
                self._confirm(request, connection, answer)
            case ProgressRequestC2B():
                self._progress(request, answer)
            case _:
                raise AssertionError(f"the port lets no {type(request).__name__} through")

    def _found(self, topic: str, partition_id: int) -> SlotPartition | Refusal:
        """The slot's partition of a topic, which is served."""
        served = self._topics.get(topic)
        if served is None:
            return Refusal(TopicCode.FORBIDDEN, f"there is no topic {topic:.100}: waltz space create makes one")
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
        message = message_of(request, self._deliveries.now_ms())

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

    # ---- consumers

    def _register(self, request: RegisterRequestC2B, connection: int, answer: Answered) -> None:
        def told(reply: t.DeliveryReply) -> None:
            answer(RegisterResponseB2C(*_outcome(reply), reply.offset, reply.end))

        def registered(reply: t.DeliveryReply) -> None:
            if reply.code is TopicCode.OK:
                granting.registered = ConsumerRights(consumer, known, filters)
            told(reply)

        def refused(code: TopicCode, text: str) -> None:
            answer(RegisterResponseB2C(False, code, text))

        try:
            texts.checked_client_id(request.client_id)
            delivery = self._delivery_to_register(request, refused)
        except (BadPayload, InvalidInput) as error:
            refused(TopicCode.BAD_REQUEST, str(error))
            return
        if delivery is None:
            return
        consumer, granting = request.client_id, delivery
        if request.op_type == BrokerOperation.LOGOUT:
            consumed = request.read_status == 0
            delivery.ask(lambda token: t.PartitionGivenBack(token, consumer, consumed), told, connection)
            return
        offset = request.curr_offset if request.curr_offset is not None and request.curr_offset >= 0 else t.NO_OFFSET
        filters = frozenset(each.strip() for each in request.filter_cond_str if each.strip())

        def wanted(token: int) -> t.PartitionWanted:
            return t.PartitionWanted(token, consumer, request.read_status, offset, filters)

        access, now_ms = self._duties.access(), self._deliveries.now_ms()
        found = known_at_broker(access, request.auth_info, [request.topic_name], consumer, now_ms)
        known = KnownClient() if isinstance(found, Refusal) else found
        delivery.ask(wanted, registered, connection)

    def _delivery_to_register(
        self, request: RegisterRequestC2B, refused: Callable[[TopicCode, str], None]
    ) -> GroupDelivery | None:
        """None: it was refused. InvalidInput."""
        group = texts.checked_group(request.group_name)
        partition = self._found(request.topic_name, request.partition_id)
        if isinstance(partition, Refusal):
            refused(partition.code, partition.text)
            return None
        match request.op_type:
            case BrokerOperation.REGISTER:
                if request.read_status not in (0, 1, 2):
                    raise InvalidInput(f"readStatus is 0, 1 or 2, not {request.read_status}")
                if len(request.filter_cond_str) > texts.MAX_FILTERS:
                    raise InvalidInput(f"{len(request.filter_cond_str)} filters: {texts.MAX_FILTERS} are the most")
                return self._deliveries.begun(request.topic_name, partition, group)
            case BrokerOperation.LOGOUT:
                found = self._deliveries.of(request.topic_name, partition, group)
                if found is None:
                    refused(TopicCode.HB_NO_NODE, f"consumer {request.client_id:.200} does not have the partition")
                return found
        raise InvalidInput(f"opType is 31 (register) or 32 (log out), not {request.op_type}")

    def _heartbeat(self, request: HeartBeatRequestC2B, answer: Answered) -> None:
        try:
            places = [texts.parse_place(each) for each in request.partition_info]
        except BadPayload as error:
            answer(HeartBeatResponseB2C(False, TopicCode.BAD_REQUEST, str(error)))
            return
        failures: list[str] = []

        def told(place: texts.PartitionPlace, reply: t.DeliveryReply) -> None:
            if reply.code is not TopicCode.OK:
                failures.append(str(texts.PartitionFailure(reply.code, place)))

        for place in places:
            delivery = self._delivery(place.topic, place.partition_id, request.group_name)
            if isinstance(delivery, Refusal):
                failures.append(str(texts.PartitionFailure(delivery.code, place)))
            else:
                # A lease is renewed at once: the reply comes within this call.
                delivery.ask(lambda token: t.LeaseRenewed(token, request.client_id), partial(told, place))
        known = known_at_broker(
            self._duties.access(), request.auth_info, [], request.client_id, self._deliveries.now_ms()
        )
        renew = not isinstance(known, Refusal) and known.renew
        answer(HeartBeatResponseB2C(True, TopicCode.OK, "", bool(failures), tuple(failures), renew or None))

    def _delivery(self, topic: str, partition_id: int, group: str) -> GroupDelivery | Refusal:
        partition = self._found(topic, partition_id)
        if isinstance(partition, Refusal):
            return partition
        found = self._deliveries.of(topic, partition, group)
        if found is None:
            return Refusal(TopicCode.HB_NO_NODE, f"nobody of group {group:.100} has the partition: register first")
        return found

    def _pull(self, request: GetMessageRequestC2B, connection: int, answer: Answered) -> None:
        def told(reply: t.DeliveryReply) -> None:
            messages = tuple(each for each in reply.messages if isinstance(each, TransferedMessage))
            self._deliveries.delivered += len(messages)
            answer(
                GetMessageResponseB2C(
                    *_outcome(reply),
                    messages,
                    reply.offset,
                    reply.wait_ms,
                    None,
                    max(0, reply.lag_bytes),
                    reply.slow,
                    reply.end,
                )
            )

        delivery = self._delivery(request.topic_name, request.partition_id, request.group_name)
        refused = delivery if isinstance(delivery, Refusal) else self._withdrawn(delivery, request.client_id)
        if isinstance(delivery, Refusal) or refused is not None:
            assert refused is not None
            answer(GetMessageResponseB2C(False, refused.code, refused.text))
            return
        consumed, by_hand = bool(request.last_pack_consumed), bool(request.manual_commit_offset)
        delivery.ask(lambda token: t.PullAsked(token, request.client_id, consumed, by_hand), told, connection)

    def _confirm(self, request: CommitOffsetRequestC2B, connection: int, answer: Answered) -> None:
        def told(reply: t.DeliveryReply) -> None:
            answer(CommitOffsetResponseB2C(*_outcome(reply), reply.offset, reply.end))

        delivery = self._delivery(request.topic_name, request.partition_id, request.group_name)
        if isinstance(delivery, Refusal):
            answer(CommitOffsetResponseB2C(False, delivery.code, delivery.text))
            return
        consumed = bool(request.last_pack_consumed)
        delivery.ask(lambda token: t.ConfirmAsked(token, request.client_id, consumed), told, connection)

    def _progress(self, request: ProgressRequestC2B, answer: Answered) -> None:
        limited = self._deliveries.is_limited(request.group_name)

        def told(reply: t.DeliveryReply) -> None:
            assert isinstance(delivery, GroupDelivery)
            refused = self._withdrawn(delivery, request.client_id)
            if refused is not None and reply.code is TopicCode.OK:  # what it has consumed is stored
                answer(ProgressResponseB2C(False, refused.code, refused.text))
                return
            answer(ProgressResponseB2C(*_outcome(reply), reply.offset, reply.end, reply.wait_ms, limited))

        delivery = self._delivery(request.topic_name, request.partition_id, request.group_name)
        if isinstance(delivery, Refusal):
            answer(ProgressResponseB2C(False, delivery.code, delivery.text))
            return
        offset, read_bytes = max(t.NO_OFFSET, request.offset), max(0, request.read_bytes)
        consumer, filtered = request.client_id, bool(request.filtered)

        def asked(token: int, end: int, lag_bytes: int) -> t.ProgressAsked:
            return t.ProgressAsked(token, consumer, offset, read_bytes, filtered, end, lag_bytes)

        delivery.report(asked, offset, told)


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


def _outcome(reply: t.DeliveryReply) -> tuple[bool, int, str]:
    """success, errCode, errMsg."""
    return reply.code is TopicCode.OK, reply.code, reply.text
