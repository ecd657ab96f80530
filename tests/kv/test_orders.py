"""What is written in one step shares a transaction for each partition, and its fate."""

from __future__ import annotations

from waltz_ray.kv.keeper_types import AppendRecord, Effect, UnitDrained
from waltz_ray.kv.model import BARRIER, Delete, ItemKey, Set, Several
from waltz_ray.kv.orders import Orders
from waltz_ray.kv.routing import Unit


class Told:
    """``Sent`` that remembers what it was told."""

    def __init__(self) -> None:
        self.ends: list[object] = []

    def committed(self, version: int) -> None:
        self.ends.append(version)

    def refused(self, partition: int, conflict: int) -> None:
        self.ends.append((partition, conflict))

    def lost(self, reason: str) -> None:
        self.ends.append(reason)


def a_set(number: int, size: int = 1) -> Set:
    return Set(ItemKey(0, number, b"%d" % number), 4, bytes(size))


def unit(number: int) -> Unit:
    return Unit(0xF, number & 0xF)


def ordered(partitions: int, *numbers: int, size: int = 1) -> tuple[Orders, list[Told], list[Effect]]:
    orders, told = Orders(partitions), [Told() for _ in numbers]
    for number, each in zip(numbers, told, strict=True):
        orders.append(each, unit(number), a_set(number, size))
    return orders, told, orders.taken()


def appends(effects: list[Effect]) -> list[AppendRecord]:
    found = [effect for effect in effects if isinstance(effect, AppendRecord)]
    assert len(found) == len(effects)
    return found


def test_one_write_is_a_record_of_its_own() -> None:
    (effect,) = appends(ordered(4, 5)[2])
    assert (effect.partition, effect.units, effect.record) == (1, (unit(5),), a_set(5))


def test_those_of_a_partition_are_one_transaction_under_the_locks_of_all_their_units() -> None:
    first, second = appends(ordered(4, 1, 2, 5, 17)[2])
    assert (first.partition, first.units) == (1, (unit(1), unit(5)))
    assert first.record == Several((a_set(1), a_set(5), a_set(17)))
    assert (second.partition, second.record) == (2, a_set(2))


def test_each_is_told_its_fate() -> None:
    for fate, wanted in (("committed", 9), ("refused", (1, 9)), ("lost", "away")):
        orders, told, effects = ordered(4, 1, 5)
        (effect,) = appends(effects)
        getattr(orders, fate)(effect.number, "away" if fate == "lost" else 9)
        assert [each.ends for each in told] == [[wanted], [wanted]]


def test_other_records_and_other_steps_stay_apart() -> None:
    orders, told = Orders(1), Told()
    orders.append(told, unit(1), a_set(1))
    orders.append(told, unit(1), BARRIER)
    orders.append(told, unit(1), Delete(ItemKey(0, 2, b"2")))
    barrier, several = appends(orders.taken())
    assert barrier.record == BARRIER
    assert several.record == Several((a_set(1), Delete(ItemKey(0, 2, b"2"))))
    orders.append(told, unit(1), a_set(3))
    assert [each.record for each in appends(orders.taken())] == [a_set(3)]


def test_no_transaction_grows_without_end() -> None:
    by_size = appends(ordered(1, *range(16), size=10_000)[2])
    assert [len(each.record.writes) for each in by_size if isinstance(each.record, Several)] == [7, 7, 2]
    orders = Orders(1)
    for bucket in range(100):
        orders.append(Told(), Unit(0xFF, bucket), a_set(bucket))
    assert [len(each.units) for each in appends(orders.taken())] == [64, 36]


def test_a_unit_has_drained_once_all_that_was_written_together_has_its_fate() -> None:
    orders, _, effects = ordered(1, 1, 17, 2)
    (effect,) = appends(effects)
    orders.drain(unit(1))
    assert orders.taken() == []
    orders.committed(effect.number, 0)
    assert orders.taken() == [UnitDrained(unit(1))]
