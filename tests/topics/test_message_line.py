"""Messages of one producer get into a partition in the order in which it sent them, whatever the log refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import cast

from tests.topics.actors import actors
from waltz_ray.client.append_fates import AppendFates
from waltz_ray.errors import InvalidInput, LockConflict
from waltz_ray.topics.records import TopicMessage, decode_topic_record, is_message
from waltz_ray.topics.serving.fates import AppendedMessage, MessageFate, MessageLost, MessageRefused, NotServed
from waltz_ray.topics.serving.message_line import MessageLine
from waltz_ray.topics.serving.partition_fold import PartitionFold


class FakeLog:
    """A log whose server moves: ``locks`` is as new as it says, and is asked when the test says so."""

    def __init__(self) -> None:
        self.mark = 10
        self.locks = 5
        self.serving = True
        self.sent: list[tuple[TopicMessage, int, AppendFates]] = []
        self.log: list[bytes] = []
        self.fates: dict[bytes, MessageFate] = {}
        self._after: list[tuple[int, Callable[[], None]]] = []
        self.line = MessageLine(self.append, cast(PartitionFold, self), lambda: self.serving)

    def append(self, message: TopicMessage, mark: int, fates: AppendFates) -> None:
        if message.payload == b"too large":
            raise InvalidInput("too large")
        self.sent.append((message, mark, fates))

    def after(self, transaction_id: int, call: Callable[[], None]) -> None:
        self._after.append((transaction_id, call))

    def put(self, *payloads: bytes) -> None:
        for payload in payloads:
            self.line.put(TopicMessage(payload, 0, 0, 0, 0, "", ""), partial(self._told, payload))

    def _told(self, payload: bytes, fate: MessageFate) -> None:
        assert payload not in self.fates, "it is told once"
        self.fates[payload] = fate

    def decide(self, count: int = 1) -> None:
        """The next so many of what was sent are in the log, or refused."""
        for message, mark, fates in self.sent[:count]:
            if self.locks > mark:
                fates.set_exception(LockConflict(0, self.locks))
            else:
                self.log.append(message.payload)
                fates.set_result(100 + len(self.log))
        del self.sent[:count]

    def fold(self, mark: int) -> None:
        self.mark = mark
        due, self._after = [c for m, c in self._after if m <= mark], [x for x in self._after if x[0] > mark]
        for call in due:
            call()


def test_what_is_refused_keeps_its_place() -> None:
    log = FakeLog()
    log.put(b"1", b"2")
    log.fold(15)
    log.put(b"3")
    log.decide()
    log.locks = 12  # its server has moved: what was under way is older than its locks, what comes now is not
    log.decide(2)
    log.put(b"4", b"5")
    assert log.sent == [], "nobody overtakes"
    log.fold(16)
    log.put(b"6")
    log.decide(99)
    assert log.log == [b"1", b"2", b"3", b"4", b"5", b"6"]
    assert [log.fates[name] for name in log.log] == [AppendedMessage(101 + index) for index in range(6)]


def test_a_refusal_waits_for_the_fate_of_what_is_behind_it_and_for_the_fold() -> None:
    log = FakeLog()
    log.put(b"1", b"2")
    log.locks = 30
    log.decide()
    log.fold(20)
    assert [message.payload for message, _, _ in log.sent] == [b"2"], "its fate is not known yet"
    log.decide()
    assert log.sent == [], "the fold has not come to what was in the way"
    log.fold(30)
    assert [(message.payload, mark) for message, mark, _ in log.sent] == [(b"1", 30), (b"2", 30)]
    log.locks = 31  # it moves once more
    log.decide(2)
    log.fold(31)
    log.decide(2)
    assert log.log == [b"1", b"2"]


def test_what_stands_in_line_is_told_when_the_partition_is_no_longer_ours() -> None:
    log = FakeLog()
    log.put(b"1")
    log.locks = 12
    log.decide()
    log.put(b"2")
    log.serving = False
    log.fold(12)
    assert log.fates == {b"1": NotServed(), b"2": NotServed()}
    log.serving = True
    log.put(b"3")
    log.locks = 13
    log.decide()
    log.line.close()
    log.fold(13)
    assert log.fates[b"3"] == NotServed()
    assert log.log == []
    assert log.sent == []


def test_what_is_refused_after_the_end_is_told_so() -> None:
    """The partition's feed has ended, so the fold never comes to what was in the way; the log goes on."""
    log = FakeLog()
    log.put(b"1", b"2")
    log.line.close()
    log.decide()
    log.locks = 12
    log.decide()
    assert log.fates == {b"1": AppendedMessage(101), b"2": NotServed()}


def test_what_no_server_would_take_and_what_is_lost_hold_nobody_up() -> None:
    log = FakeLog()
    log.put(b"1", b"too large", b"2")
    assert log.fates == {b"too large": MessageRefused("too large")}
    log.sent.pop(0)[2].set_exception(OSError("gone"))
    assert log.fates[b"1"] == MessageLost("gone")
    log.decide()
    assert log.log == [b"2"]


def test_one_producers_order_survives_moves_of_the_logs_server() -> None:
    """Foreign messages, many under way, while the partition goes from server to server."""

    async def run() -> None:
        async with actors(1) as found:
            await found.create("orders", 1)
            found.arrange(lambda slot: 0, 1)
            await found.until_served(1)
            broker = await found.broker(1)
            number = found.cluster._store.spaces.get("orders").first
            sends: list[asyncio.Future[object]] = []
            for moves in range(12):
                for _ in range(60):
                    payload = b"%d" % len(sends)
                    sends.append(asyncio.ensure_future(broker.produce("orders", payload)))
                    if len(sends) % 20 == 0:
                        await asyncio.sleep(0)
                if moves % 3 == 2:
                    await asyncio.to_thread(found.cluster.drop_connections)
                else:
                    await asyncio.to_thread(found.cluster.move, number)
            codes = {reply.code for reply in await asyncio.gather(*sends)}  # type: ignore[attr-defined]
            assert codes == {200}
            there = [record for _, _, record in await asyncio.to_thread(found.log_of, "orders", 0)]
            messages = [decode_topic_record(record) for record in there if is_message(record)]
            got = [int(each.payload) for each in messages if isinstance(each, TopicMessage)]
            assert got == list(range(len(sends)))

    asyncio.run(run())
