"""What consumers say to one slot: register, log out, heartbeat, pull, confirm; and, of those that read the log by
themselves, how far they are. In one event loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from waltz_ray.errors import BadPayload, InvalidInput
from waltz_ray.topics import delivery_types as t
from waltz_ray.topics import texts
from waltz_ray.topics.access import KnownClient, known_at_broker, refused_topics
from waltz_ray.topics.authorization import refused_group
from waltz_ray.topics.codes import BrokerOperation, TopicCode
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
from waltz_ray.topics.refusals import Refusal
from waltz_ray.topics.rpc import RpcFault
from waltz_ray.topics.serving.client_owners import belongs_to_another
from waltz_ray.topics.serving.connection_proofs import ConnectionProofs
from waltz_ray.topics.serving.deliveries import ConsumerRights, GroupDelivery, unix_ms
from waltz_ray.topics.serving.slot_duties import SlotDuties
from waltz_ray.topics.serving.slot_partition import SlotPartition
from waltz_ray.topics.wire import TopicResponse

__all__ = ["SlotConsumers"]

Answered = Callable[["TopicResponse | RpcFault"], None]


class SlotConsumers:
    """``found(topic, partition ID)``: the slot's partition, if it is served."""

    def __init__(
        self, found: Callable[[str, int], SlotPartition | Refusal], duties: SlotDuties, proofs: ConnectionProofs
    ) -> None:
        self._found = found
        self._proofs = proofs
        self._duties = duties
        self._deliveries = duties.deliveries

    def register(self, request: RegisterRequestC2B, connection: int, answer: Answered) -> None:
        """m15: take the partition, or log out."""

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
        access, now_ms = self._duties.access(), unix_ms()
        found = known_at_broker(access, request.auth_info, [request.topic_name], consumer, now_ms)
        known = KnownClient() if isinstance(found, Refusal) else found
        if self._is_anothers(delivery, consumer, known):
            not_his = belongs_to_another(consumer)
            refused(not_his.code, not_his.text)
            return
        if request.op_type == BrokerOperation.LOGOUT:
            consumed = request.read_status == 0
            delivery.ask(lambda token: t.PartitionGivenBack(token, consumer, consumed), told, connection)
            return
        offset = request.curr_offset if request.curr_offset is not None and request.curr_offset >= 0 else t.NO_OFFSET
        filters = frozenset(each.strip() for each in request.filter_cond_str if each.strip())

        def wanted(token: int) -> t.PartitionWanted:
            return t.PartitionWanted(token, consumer, request.read_status, offset, filters)

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

    def heartbeat(self, request: HeartBeatRequestC2B, answer: Answered) -> None:
        """m16."""
        try:
            if len(request.partition_info) > texts.MAX_PLACES:
                raise BadPayload(f"{len(request.partition_info)} partitions, {texts.MAX_PLACES} are the most here")
            places = [texts.parse_place(each) for each in request.partition_info]
        except BadPayload as error:
            answer(HeartBeatResponseB2C(False, TopicCode.BAD_REQUEST, str(error)))
            return
        failures: list[str] = []

        def told(place: texts.PartitionPlace, reply: t.DeliveryReply) -> None:
            if reply.code is not TopicCode.OK:
                failures.append(str(texts.PartitionFailure(reply.code, place)))

        known = known_at_broker(self._duties.access(), request.auth_info, [], request.client_id, unix_ms())
        for place in places:
            delivery = self.delivery(place.topic, place.partition_id, request.group_name)
            if isinstance(delivery, Refusal):
                failures.append(str(texts.PartitionFailure(delivery.code, place)))
            elif self._is_anothers(delivery, request.client_id, known):
                failures.append(str(texts.PartitionFailure(belongs_to_another(request.client_id).code, place)))
            else:
                # A lease is renewed at once: the reply comes within this call.
                delivery.ask(lambda token: t.LeaseRenewed(token, request.client_id), partial(told, place))
        renew = not isinstance(known, Refusal) and known.renew
        answer(HeartBeatResponseB2C(True, TopicCode.OK, "", bool(failures), tuple(failures), renew or None))

    def _is_anothers(self, delivery: GroupDelivery, consumer: str, known: KnownClient | Refusal) -> bool:
        """Whether that consumer was registered by another user than who speaks for it now."""
        registered = delivery.registered
        if registered is None or registered.consumer != consumer or not self._duties.access().rules.authenticate:
            return False
        return registered.known.user not in ("", "" if isinstance(known, Refusal) else known.user)

    def delivery(self, topic: str, partition_id: int, group: str) -> GroupDelivery | Refusal:
        """What there is of a group that has registered."""
        partition = self._found(topic, partition_id)
        if isinstance(partition, Refusal):
            return partition
        found = self._deliveries.of(topic, partition, group)
        if found is None:
            return Refusal(TopicCode.HB_NO_NODE, f"nobody of group {group:.100} has the partition: register first")
        return found

    def _delivery_over(
        self, connection: int, consumer: str, topic: str, partition_id: int, group: str
    ) -> GroupDelivery | Refusal:
        """``delivery``, of a request without a proof: who registered has shown who he is over that connection, too."""
        found = self.delivery(topic, partition_id, group)
        registered = None if isinstance(found, Refusal) else found.registered
        rules = self._duties.access().rules
        if registered is None or registered.consumer != consumer or not rules.authenticate:
            return found
        if self._proofs.has(connection, registered.known.user, rules.users.get(registered.known.user)):
            return found
        text = f"consumer {consumer:.200} has not shown over this connection who it is: register again"
        return Refusal(TopicCode.HB_NO_NODE, text)

    def pull(self, request: GetMessageRequestC2B, connection: int, answer: Answered) -> None:
        """m17."""

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

        delivery = self._delivery_over(connection, *_whose(request))
        refused = delivery if isinstance(delivery, Refusal) else self._withdrawn(delivery, request.client_id)
        if isinstance(delivery, Refusal) or refused is not None:
            assert refused is not None
            answer(GetMessageResponseB2C(False, refused.code, refused.text))
            return
        consumed, by_hand = bool(request.last_pack_consumed), bool(request.manual_commit_offset)
        delivery.ask(lambda token: t.PullAsked(token, request.client_id, consumed, by_hand), told, connection)

    def confirm(self, request: CommitOffsetRequestC2B, connection: int, answer: Answered) -> None:
        """m18."""

        def told(reply: t.DeliveryReply) -> None:
            answer(CommitOffsetResponseB2C(*_outcome(reply), reply.offset, reply.end))

        delivery = self._delivery_over(connection, *_whose(request))
        if isinstance(delivery, Refusal):
            answer(CommitOffsetResponseB2C(False, delivery.code, delivery.text))
            return
        consumed = bool(request.last_pack_consumed)
        delivery.ask(lambda token: t.ConfirmAsked(token, request.client_id, consumed), told, connection)

    def progress(self, request: ProgressRequestC2B, connection: int, answer: Answered) -> None:
        """m101."""
        limited = self._deliveries.is_limited(request.group_name)

        def told(reply: t.DeliveryReply) -> None:
            assert isinstance(delivery, GroupDelivery)
            refused = self._withdrawn(delivery, request.client_id)
            if refused is not None and reply.code is TopicCode.OK:  # what it has consumed is stored
                answer(ProgressResponseB2C(False, refused.code, refused.text, reply.offset, reply.end))
                return
            answer(ProgressResponseB2C(*_outcome(reply), reply.offset, reply.end, reply.wait_ms, limited))

        delivery = self._delivery_over(connection, *_whose(request))
        if isinstance(delivery, Refusal):
            answer(ProgressResponseB2C(False, delivery.code, delivery.text))
            return
        offset, read_bytes = max(t.NO_OFFSET, request.offset), max(0, request.read_bytes)
        said = t.ProgressAsked(0, request.client_id, offset, read_bytes, bool(request.filtered), 0, 0, 0)
        delivery.report(said, told, connection)

    def _withdrawn(self, delivery: GroupDelivery, consumer: str) -> Refusal | None:
        """Why who has registered may not go on: rules hold from the next request on. What was consumed is confirmed
        whatever they are."""
        access, registered = self._duties.access(), delivery.registered
        if registered is None or registered.consumer != consumer:
            return refused_group(access.rules, delivery.group, delivery.topic)
        return refused_topics(access, registered.known, [delivery.topic], delivery.group, registered.filters)


def _whose(request: GetMessageRequestC2B | CommitOffsetRequestC2B | ProgressRequestC2B) -> tuple[str, str, int, str]:
    """Consumer, topic, partition ID, group."""
    return request.client_id, request.topic_name, request.partition_id, request.group_name


def _outcome(reply: t.DeliveryReply) -> tuple[bool, int, str]:
    """success, errCode, errMsg."""
    return reply.code is TopicCode.OK, reply.code, reply.text
