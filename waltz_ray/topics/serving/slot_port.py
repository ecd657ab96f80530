"""The port of one slot: what clients say to a broker. In one event loop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from waltz_ray.errors import InvalidInput
from waltz_ray.topics.codes import TopicCode
from waltz_ray.topics.messages_producer import SendMessageRequestP2B, SendMessageResponseB2P
from waltz_ray.topics.produce_rules import message_of, why_no_message
from waltz_ray.topics.refusals import Refusal
from waltz_ray.topics.rpc import RpcCall, RpcFault
from waltz_ray.topics.serving.served_topic import ServedTopic
from waltz_ray.topics.serving.slot_partition import AppendedMessage, MessageFate, NotServed, SlotPartition
from waltz_ray.topics.wire import TopicRequest, TopicResponse

__all__ = ["SlotDuties", "SlotPort"]

log = logging.getLogger(__name__)

Answered = Callable[["TopicResponse | RpcFault"], None]


def unix_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class SlotDuties:
    """What all slots of an actor do alike."""

    max_message_bytes: int
    now_ms: Callable[[], int] = unix_ms
    produced: int = 0
    """Messages that were appended."""
    refused: int = 0
    """Messages that were not."""

    def changed(self, topic: str, partition: SlotPartition) -> None:
        """A partition is served, or not any more, or has grown."""

    def gone(self, topic: str, partition: SlotPartition) -> None:
        """A partition is about to be closed."""

    def forget(self, topic: str) -> None:
        """A topic was deleted."""


class SlotPort:
    """``RequestPort`` of one slot. ``topics``: those there are, by name; it changes."""

    def __init__(self, slot: int, topics: Mapping[str, ServedTopic], duties: SlotDuties) -> None:
        self._slot = slot
        self._topics = topics
        self._duties = duties

    def submit(self, request: TopicRequest, call: RpcCall, answer: Answered) -> None:
        match request:
            case SendMessageRequestP2B():
                self._send(request, answer)
            case _:
                raise AssertionError(f"the port lets no {type(request).__name__} through")

    def found(self, topic: str, partition_id: int) -> SlotPartition | Refusal:
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
        partition = self.found(request.topic_name, request.partition_id)
        refused = partition if isinstance(partition, Refusal) else why_no_message(request, duties.max_message_bytes)
        if refused is not None:
            duties.refused += 1
            answer(_not_sent(refused))
            return
        assert isinstance(partition, SlotPartition)
        message = message_of(request, duties.now_ms())

        def told(fate: MessageFate) -> None:
            if isinstance(fate, AppendedMessage):
                duties.produced += 1
                number = fate.transaction_id
                answer(SendMessageResponseB2P(True, TopicCode.OK, "", None, number, message.append_ms, number))
                return
            duties.refused += 1
            if isinstance(fate, NotServed):
                refusal = Refusal(TopicCode.NOT_READY, f"slot {self._slot} has moved: ask the master where it is")
            else:
                text = f"nobody can say whether the message is in the log: {fate.reason}"
                refusal = Refusal(TopicCode.INTERNAL_ERROR, text)
            answer(_not_sent(refusal))

        try:
            partition.append(message, told)
        except InvalidInput as error:
            duties.refused += 1
            answer(_not_sent(Refusal(TopicCode.BAD_REQUEST, str(error))))


def _not_sent(refusal: Refusal) -> SendMessageResponseB2P:
    return SendMessageResponseB2P(False, refusal.code, refusal.text)
