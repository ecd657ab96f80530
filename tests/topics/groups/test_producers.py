"""What a master knows of producers, and tells them: T11 to T14."""

from __future__ import annotations

from tests.topics.groups.desk import CALL, table
from waltz_ray.topics.groups.effects import GroupRefusal, MasterEffect, ProducerAnswer, RefuseClient, TellClosed
from waltz_ray.topics.groups.events import (
    BalanceDue,
    ProducerBeats,
    ProducerCloses,
    ProducerRegisters,
    TableKnown,
    TookOver,
)
from waltz_ray.topics.groups.limits import GroupLimits
from waltz_ray.topics.groups.machine import TopicMaster
from waltz_ray.topics.groups.table import SlotPlace, slots_checksum


def master(limits: GroupLimits | None = None) -> TopicMaster:
    found = TopicMaster(limits=limits)
    found.step(TookOver(1, 0), 0)
    found.step(TableKnown(table({"t": 3, "u": 2}, slots=3)), 0)
    return found


def registers(client_id: str = "p", topics: str = "t", checksum: int = -1) -> ProducerRegisters:
    return ProducerRegisters(CALL, client_id, "127.0.0.1", frozenset(topics), checksum)


def only(effects: list[MasterEffect]) -> ProducerAnswer:
    (answer,) = effects
    assert isinstance(answer, ProducerAnswer)
    return answer


def refusal(effects: list[MasterEffect]) -> RefuseClient:
    (answer,) = effects
    assert isinstance(answer, RefuseClient)
    return answer


def test_t11_t12_slots_are_told_when_the_checksum_differs() -> None:
    desk = master()
    first = only(desk.step(registers(), 0))
    assert first.slots == table({}, slots=3).slots
    assert first.checksum == slots_checksum(table({}, slots=3).slots) >= 0
    assert dict(first.topics) == {"t": (3, None)}
    again = only(desk.step(ProducerBeats(CALL, "p", frozenset("t"), first.checksum), 1))
    assert again.slots is None
    assert dict(again.topics) == {"t": (3, None)}
    desk.step(TableKnown(table({"t": 3}, slots=3, port=9000)), 2)
    moved = only(desk.step(ProducerBeats(CALL, "p", frozenset("t"), first.checksum), 3))
    assert moved.checksum != first.checksum
    assert moved.slots == table({}, slots=3, port=9000).slots


def test_t12_the_checksum_is_of_what_is_there_and_of_nothing_else() -> None:
    places = table({}, slots=3).slots
    assert slots_checksum(places) == slots_checksum(dict(sorted(places.items(), reverse=True)))
    found = {slots_checksum({**places, slot: SlotPlace(host, 1)}) for slot in (1, 2) for host in ("a", "b")}
    assert len(found) == 4
    assert slots_checksum({}) >= 0


def test_t13_topics_are_added_and_not_removed() -> None:
    desk = master()
    desk.step(registers(), 0)
    assert set(only(desk.step(ProducerBeats(CALL, "p", frozenset("u"), -1), 1)).topics) == {"t", "u"}
    assert set(only(desk.step(ProducerBeats(CALL, "p", frozenset(), -1), 2)).topics) == {"t", "u"}
    assert [each.topics for each in desk.producer_status()] == [("t", "u")]
    assert set(only(desk.step(registers(topics="v"), 3)).topics) == {"t", "u"}, "v is not there yet"


def test_t14_closed_and_silent_ones_are_forgotten() -> None:
    desk = master()
    desk.step(registers(), 0)
    assert desk.step(ProducerCloses(CALL, "p"), 1) == [TellClosed(CALL)]
    assert desk.step(ProducerCloses(CALL, "p"), 2) == [TellClosed(CALL)]
    assert refusal(desk.step(ProducerBeats(CALL, "p", frozenset(), -1), 3)).reason is GroupRefusal.NO_NODE
    desk.step(registers(), 4)
    assert refusal(desk.step(ProducerBeats(CALL, "p", frozenset(), -1), 30_004)).reason is GroupRefusal.NO_NODE
    assert len(desk.producer_status()) == 1
    desk.step(BalanceDue(), 30_005)
    assert desk.producer_status() == []


def test_bad_producers_and_too_many() -> None:
    desk = master(GroupLimits(producers=1, topics=2))
    assert refusal(desk.step(registers("p q"), 0)).reason is GroupRefusal.BAD_REQUEST
    assert refusal(desk.step(registers(topics="tuv"), 0)).reason is GroupRefusal.BAD_REQUEST
    assert desk.producer_status() == []
    desk.step(registers(topics="tu"), 0)
    assert refusal(desk.step(ProducerBeats(CALL, "p", frozenset("v"), -1), 1)).reason is GroupRefusal.BAD_REQUEST
    assert refusal(desk.step(registers("q"), 2)).reason is GroupRefusal.TOO_MANY
    only(desk.step(registers(), 3))


def test_a_standby_knows_no_producers() -> None:
    assert refusal(TopicMaster().step(registers(), 0)).reason is GroupRefusal.STANDBY
