"""Messages that producers send twice."""

from __future__ import annotations

import random

import pytest

from tests.simulation.break_rule import break_rule
from waltz_ray.topics import sequences
from waltz_ray.topics.sequences import SequenceFate, Sequences

NOW = 1_700_000_000_000
MINUTE = 60_000
NEW, UNDER_WAY, TOO_OLD = SequenceFate.NEW, SequenceFate.UNDER_WAY, SequenceFate.TOO_OLD


def test_t48_a_message_sent_again_gets_the_former_id() -> None:
    seen = Sequences()
    assert seen.ask(7, 1) == NEW
    assert seen.ask(7, 1) == UNDER_WAY
    seen.appended(7, 1, 100, NOW)
    assert seen.ask(7, 1) == 100
    assert seen.ask(8, 1) == NEW
    assert seen.ask(7, 2) == NEW
    seen.not_appended(7, 2)
    assert seen.ask(7, 2) == NEW
    seen.appended(7, 2, 101, NOW)
    seen.appended(7, 2, 101, NOW)
    assert len(seen) == 2


def test_t48_foreign_producers_have_no_numbers() -> None:
    seen = Sequences()
    for _ in range(3):
        assert seen.ask(0, 0) == NEW
        seen.appended(0, 0, 5, NOW)
    assert len(seen) == 0


def test_t48_a_new_owner_knows_what_the_former_one_did_from_the_log() -> None:
    log = [(1, 1, 0, NOW), (2, 1, 1, NOW), (0, 0, 2, NOW), (1, 2, 3, NOW + 5), (1, 4, 4, NOW + 6), (1, 4, 9, NOW + 7)]
    seen = Sequences()
    seen.fold(log)
    assert [seen.ask(1, sequence) for sequence in (1, 2, 3, 4)] == [0, 3, NEW, 4]
    assert seen.ask(2, 1) == 1


def test_t48_what_has_left_the_window_is_refused_and_not_appended() -> None:
    seen = Sequences(window=4)
    for sequence in range(1, 11):
        seen.appended(3, sequence, 100 + sequence, NOW)
    assert len(seen) == 4
    assert [seen.ask(3, sequence) for sequence in (6, 7, 10, 11)] == [TOO_OLD, 107, 110, NEW]
    assert seen.ask(3, 0) == TOO_OLD
    seen.appended(3, 1 << 60, 500, NOW)
    assert len(seen) == 1


def test_t48_who_is_quiet_is_forgotten_after_ten_minutes() -> None:
    seen = Sequences()
    seen.appended(1, 5, 100, NOW)
    seen.forget_idle(NOW + 10 * MINUTE)
    assert seen.ask(1, 5) == 100
    seen.appended(2, 1, 101, NOW + 11 * MINUTE)
    assert seen.ask(1, 5) == NEW
    assert (len(seen), seen.forgotten_early) == (1, 0)


def test_t48_memory_is_bounded_and_it_is_counted_who_is_forgotten_for_that() -> None:
    seen = Sequences(window=10, most=100)
    for producer in range(1, 51):
        for sequence in range(1, 21):
            seen.appended(producer, sequence, sequence, NOW)
    assert len(seen) <= 100
    assert seen.forgotten_early == 40
    assert seen.ask(50, 20) == 20
    assert seen.ask(1, 20) == NEW


def walk(seed: int) -> None:
    """Producers whose answers are lost send again; owners change. No message is in the log twice."""
    chance = random.Random(seed)
    log: list[tuple[int, int, int, int]] = []
    seen, now = Sequences(window=8), NOW
    unanswered: dict[int, list[int]] = {producer: [] for producer in (1, 2, 3)}
    last = dict.fromkeys(unanswered, 0)
    for _ in range(400):
        now += chance.choice((0, 1000, 30_000))
        if chance.random() < 0.03:
            seen = Sequences(window=8)
            seen.fold(log)
        producer = chance.choice((1, 2, 3))
        waiting = unanswered[producer]
        if len(waiting) < 7 and chance.random() < 0.6:
            last[producer] += 1
            waiting.append(last[producer])
        if not waiting:
            continue
        sequence = chance.choice(waiting)
        if last[producer] - sequence >= 8:
            sequence = waiting[0]
        fate = seen.ask(producer, sequence)
        if fate == NEW:
            if chance.random() < 0.2:
                seen.not_appended(producer, sequence)
                continue
            log.append((producer, sequence, len(log), now))
            seen.appended(*log[-1])
            fate = len(log) - 1
        assert fate != UNDER_WAY, seed
        if fate == TOO_OLD or chance.random() < 0.5:
            if isinstance(fate, int):
                assert log[fate][:2] == (producer, sequence), seed
            waiting.remove(sequence)
    numbers = [entry[:2] for entry in log]
    assert len(numbers) == len(set(numbers)), f"seed {seed}: a message is in the log twice"


def test_t48_walks() -> None:
    for seed in range(100):
        walk(seed)


def all_of_it() -> None:
    test_t48_what_has_left_the_window_is_refused_and_not_appended()
    test_t48_who_is_quiet_is_forgotten_after_ten_minutes()


@pytest.mark.parametrize(
    ("rule", "broken"),
    [
        ("is_too_old", lambda sequence, highest, window: sequence <= highest - 1),
        ("is_too_old", lambda sequence, highest, window: False),
        ("is_past_minutes", lambda minute, now_minute: minute < now_minute),
        ("is_past_minutes", lambda minute, now_minute: False),
    ],
)
def test_a_broken_rule_of_sequences_is_noticed(monkeypatch: pytest.MonkeyPatch, rule: str, broken: object) -> None:
    break_rule(monkeypatch, sequences, rule, broken)
    with pytest.raises(AssertionError):
        all_of_it()
