"""What clients say to a master, as its machine is told; and what the machine answers, as they are told. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from waltz_ray.errors import BadPayload
from waltz_ray.topics import texts
from waltz_ray.topics.codes import TopicCode
from waltz_ray.topics.groups.effects import ConsumerAnswer, GroupRefusal, ProducerAnswer, RebalanceOrder
from waltz_ray.topics.groups.events import (
    BoundTerms,
    ConsumerBeats,
    ConsumerCloses,
    ConsumerRegisters,
    GroupTerms,
    OrderReport,
    OrderStatus,
    ProducerBeats,
    ProducerCloses,
    ProducerRegisters,
)
from waltz_ray.topics.groups.table import SlotPlace, TopicPartition, TopicShape
from waltz_ray.topics.messages import EventProto
from waltz_ray.topics.messages_consumer import (
    CloseRequestC2M,
    CloseResponseM2C,
    HeartRequestC2M,
    HeartResponseM2C,
    RegisterRequestC2M,
    RegisterResponseM2C,
)
from waltz_ray.topics.messages_producer import (
    CloseRequestP2M,
    CloseResponseM2P,
    HeartRequestP2M,
    HeartResponseM2P,
    RegisterRequestP2M,
    RegisterResponseM2P,
)

__all__ = [
    "MasterRequest",
    "MasterResponse",
    "brokers_text",
    "closed",
    "code_of",
    "consumer_answered",
    "event_of",
    "order_text",
    "producer_answered",
    "refused_with",
    "topics_text",
]

MasterRequest = (
    RegisterRequestP2M | HeartRequestP2M | CloseRequestP2M | RegisterRequestC2M | HeartRequestC2M | CloseRequestC2M
)
MasterResponse = (
    RegisterResponseM2P
    | HeartResponseM2P
    | CloseResponseM2P
    | RegisterResponseM2C
    | HeartResponseM2C
    | CloseResponseM2C
)

_CODES = {
    GroupRefusal.NO_NODE: TopicCode.HB_NO_NODE,
    GroupRefusal.TOO_MANY: TopicCode.RECEIVE_OVERFLOW,
}


def code_of(reason: GroupRefusal) -> TopicCode:
    """What a client is told; 400 where it has to change what it asks for."""
    return _CODES.get(reason, TopicCode.BAD_REQUEST)


# ---- what is asked


def event_of(
    request: MasterRequest, call: int
) -> ProducerRegisters | ProducerBeats | ProducerCloses | ConsumerRegisters | ConsumerBeats | ConsumerCloses:
    """BadPayload if a text in it cannot be read."""
    match request:
        case RegisterRequestP2M(client_id, topics, checksum, host):
            return ProducerRegisters(call, client_id, host, frozenset(topics), checksum)
        case HeartRequestP2M(client_id, checksum, _, topics):
            return ProducerBeats(call, client_id, frozenset(topics), checksum)
        case CloseRequestP2M(client_id):
            return ProducerCloses(call, client_id)
        case RegisterRequestC2M():
            reported = _reported(request.subscribe_info)
            group, host = texts.checked_group(request.group_name), request.host_name
            terms = _terms(request)
            return ConsumerRegisters(call, request.client_id, group, host, terms, reported, request.not_allocated)
        case HeartRequestC2M():
            reported_now = _reported(request.subscribe_info) if request.report_subscribe_info else None
            return ConsumerBeats(call, request.client_id, request.group_name, reported_now, _word(request.event))
        case CloseRequestC2M(client_id, group):
            return ConsumerCloses(call, client_id, group)


def _terms(request: RegisterRequestC2M) -> GroupTerms:
    conditions = texts.parse_conditions(request.topic_condition)
    filters = {topic: frozenset(types) for topic, types in conditions.items() if types}
    return GroupTerms(frozenset(request.topic_list), filters, _bound(request) if request.require_bound else None)


def _bound(request: RegisterRequestC2M) -> BoundTerms:
    required = texts.parse_required_partitions(request.required_partition or "")
    offsets = {TopicPartition(topic, slot, number): offset for (slot, topic, number), offset in required.items()}
    return BoundTerms(
        request.session_key or "",
        request.session_time or 0,
        request.total_count or 0,
        bool(request.select_big),
        offsets,
    )


def _reported(subscriptions: Sequence[str]) -> dict[TopicPartition, SlotPlace]:
    if len(subscriptions) > texts.MAX_REQUIRED:
        raise BadPayload(f"{len(subscriptions)} partitions, {texts.MAX_REQUIRED} are the most")
    found: dict[TopicPartition, SlotPlace] = {}
    for each in subscriptions:
        place = texts.parse_subscription(each).place
        partition = TopicPartition(place.topic, place.broker.broker_id, place.partition_id)
        found[partition] = SlotPlace(place.broker.host, place.broker.port)
    return found


def _word(event: EventProto | None) -> OrderReport | None:
    if event is None or event.rebalance_id is None:
        return None
    try:
        status = OrderStatus(event.status if event.status is not None else OrderStatus.UNKNOWN)
    except ValueError:
        raise BadPayload(f"an event of status {event.status}: there is no such status") from None
    return OrderReport(event.rebalance_id, status)


# ---- what is answered


def brokers_text(slots: Mapping[int, SlotPlace]) -> tuple[str, ...]:
    """``brokerInfos``."""
    return tuple(str(texts.BrokerAddress(slot, *place)) for slot, place in sorted(slots.items()))


def topics_text(
    topics: Mapping[str, TopicShape], slots: Mapping[int, SlotPlace], most_bytes: int | None = None
) -> tuple[str, ...]:
    """``topicInfos``: of each topic the slots that can be reached. ``most_bytes``: of a message, where a topic says
    nothing else."""
    found = []
    for topic, shape in sorted(topics.items()):
        there = [slot for slot in range(1, shape.partitions + 1) if slot in slots]
        stores = tuple(texts.BrokerStores(slot, 1, 1) for slot in there)
        found.append(str(texts.TopicPlacement(topic, stores, shape.max_message_bytes or most_bytes)))
    return tuple(found)


def order_text(order: RebalanceOrder, client_id: str, group: str) -> EventProto:
    """An order to a consumer."""
    subscriptions = []
    for partition, place in order.partitions:
        broker = texts.BrokerAddress(partition.slot, *place)
        at = texts.PartitionPlace(broker, partition.topic, partition.number)
        subscriptions.append(str(texts.SubscribedPartition(client_id, group, at)))
    return EventProto(order.rebalance_id, order.op, order.status, tuple(subscriptions))


def producer_answered(
    request: RegisterRequestP2M | HeartRequestP2M, answer: ProducerAnswer, topics: tuple[str, ...]
) -> RegisterResponseM2P | HeartResponseM2P:
    brokers = () if answer.slots is None else brokers_text(answer.slots)
    if isinstance(request, RegisterRequestP2M):
        return RegisterResponseM2P(True, TopicCode.OK, "", answer.checksum, brokers)
    return HeartResponseM2P(True, TopicCode.OK, "", answer.checksum, topics, brokers)


def consumer_answered(
    request: RegisterRequestC2M | HeartRequestC2M, answer: ConsumerAnswer, topics: tuple[str, ...]
) -> RegisterResponseM2C | HeartResponseM2C:
    if isinstance(request, RegisterRequestC2M):
        return RegisterResponseM2C(True, TopicCode.OK, "", topics, answer.not_allocated)
    order = None if answer.order is None else order_text(answer.order, request.client_id, request.group_name)
    return HeartResponseM2C(True, TopicCode.OK, "", order, answer.not_allocated)


def closed(request: MasterRequest) -> CloseResponseM2P | CloseResponseM2C:
    kind = CloseResponseM2P if isinstance(request, CloseRequestP2M) else CloseResponseM2C
    return kind(True, TopicCode.OK, "")


def refused_with(request: MasterRequest, code: TopicCode, text: str) -> MasterResponse:
    """The answer to a request that is not done."""
    match request:
        case RegisterRequestP2M():
            return RegisterResponseM2P(False, code, text, -1)
        case HeartRequestP2M():
            return HeartResponseM2P(False, code, text, -1)
        case CloseRequestP2M():
            return CloseResponseM2P(False, code, text)
        case RegisterRequestC2M():
            return RegisterResponseM2C(False, code, text)
        case HeartRequestC2M():
            return HeartResponseM2C(False, code, text)
        case CloseRequestC2M():
            return CloseResponseM2C(False, code, text)
