"""The checker: histories known to be linearizable or not, a brute-force twin, and its speed."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable
from random import Random

import pytest

from tests.kv.linearizability import (
    MISSING,
    Asked,
    Denied,
    Erase,
    Erased,
    Extend,
    Granted,
    KvCall,
    Obtain,
    Peek,
    Result,
    Retime,
    Shown,
    Store,
    Stored,
    Unlatch,
    Unmet,
    item_model,
    lock_model,
)
from tests.linearizability.search import Model, NotLinearizable, Undecided, check

ITEMS, LOCKS = item_model(), lock_model()


def calls(*rows: tuple[float, float, Asked, Result | None], key: str = "x") -> list[KvCall]:
    """(invoked, returned, asked, result) of one key."""
    return [KvCall(key, asked, result, begin, end) for begin, end, asked, result in rows]


def put(begin: float, end: float, value: str, version: int | None = None) -> tuple[float, float, Asked, Result | None]:
    return begin, end, Store(value), Stored(version)


def got(begin: float, end: float, value: str | None) -> tuple[float, float, Asked, Result | None]:
    return begin, end, Peek(), Shown(value)


def unknown(begin: float, asked: Asked) -> tuple[float, float, Asked, Result | None]:
    return begin, math.inf, asked, None


LINEARIZABLE: dict[str, tuple[Model, list[KvCall]]] = {
    "nothing": (ITEMS, []),
    "one after the other": (ITEMS, calls(got(0, 1, None), put(2, 3, "a"), got(4, 5, "a"))),
    # Herlihy and Wing, figure of overlapping writes: the reads decide which came first.
    "two writes at once, the second's value is read": (ITEMS, calls(put(0, 3, "a"), put(1, 4, "b"), got(5, 6, "b"))),
    "two writes at once, the first's value is read": (ITEMS, calls(put(0, 3, "a"), put(1, 4, "b"), got(5, 6, "a"))),
    "a read during a write sees the old one, then the new one": (
        ITEMS,
        calls(put(0, 1, "a"), put(2, 9, "b"), got(3, 4, "a"), got(5, 6, "b"), got(7, 8, "b")),
    ),
    "a write without an answer happens late": (
        ITEMS,
        calls(put(0, 1, "a"), unknown(2, Store("b")), got(3, 4, "a"), put(5, 6, "c"), got(7, 8, "b")),
    ),
    "a write without an answer never happens": (ITEMS, calls(put(0, 1, "a"), unknown(2, Store("b")), got(3, 4, "a"))),
    "a delete without an answer": (ITEMS, calls(put(0, 1, "a"), unknown(2, Erase()), got(3, 4, None))),
    "versions in the order of the writes": (ITEMS, calls(put(0, 9, "a", 8), put(0, 9, "b", 7), got(10, 11, "a"))),
    "compare and set": (
        ITEMS,
        calls(
            (0, 1, Store("a", expected=MISSING), Stored(3)),
            (2, 5, Store("b", expected=3), Stored(4)),
            (2, 5, Store("c", expected=3), Unmet(4)),
            got(6, 7, "b"),
        ),
    ),
    "the version of a write without an answer is learned": (
        ITEMS,
        calls(
            put(0, 1, "a", 3),
            unknown(2, Store("b")),
            (3, 4, Store("c", expected=3), Unmet(5)),
            (6, 7, Peek(), Shown("b", 5)),
        ),
    ),
    "expired": (ITEMS, calls((0, 1, Store("a", life_s=5), Stored()), got(4, 5.5, None), got(6, 7, None))),
    "not expired yet": (ITEMS, calls((0, 1, Store("a", life_s=5), Stored()), got(5.5, 5.9, "a"), got(5.8, 6.5, None))),
    "a touch lets it live": (
        ITEMS,
        calls(
            (0, 1, Store("a", life_s=5), Stored(1)), (4, 4.5, Retime(10), Stored(2)), (9, 9.5, Peek(), Shown("a", 2))
        ),
    ),
    "a new one after the old one expired": (
        ITEMS,
        calls((0, 1, Store("a", life_s=5), Stored(1)), (6, 7, Store("b", expected=MISSING), Stored(2))),
    ),
    "a lock": (
        LOCKS,
        calls(
            (0, 1, Obtain(10), Granted(7)),
            (2, 3, Obtain(10), Denied()),
            (2, 5, Obtain(10), Granted(9)),
            (4, 4.5, Unlatch(7), Granted(7)),
            (6, 7, Unlatch(7), Denied()),
        ),
    ),
    "a lock whose lease ended": (
        LOCKS,
        calls((0, 1, Obtain(3), Granted(7)), (3.5, 4, Obtain(3), Granted(8)), (5, 6, Extend(7, 3), Denied())),
    ),
    "a lock renewed": (
        LOCKS,
        calls((0, 1, Obtain(3), Granted(7)), (2, 2.5, Extend(7, 3), Granted(7)), (4.5, 4.9, Obtain(3), Denied())),
    ),
    "a lock given to nobody we know": (LOCKS, calls(unknown(0, Obtain(3)), (1, 2, Obtain(3), Denied()))),
}

NOT_LINEARIZABLE: dict[str, tuple[Model, list[KvCall]]] = {
    "a stale read": (ITEMS, calls(put(0, 1, "a"), put(2, 3, "b"), got(4, 5, "a"))),
    "never written": (ITEMS, calls(put(0, 1, "a"), got(2, 3, "b"))),
    "lost": (ITEMS, calls(put(0, 1, "a"), got(2, 3, None))),
    # Herlihy and Wing: a read that has seen the new value, then one that sees the old one.
    "new, then old": (ITEMS, calls(put(0, 1, "a"), put(2, 9, "b"), got(3, 4, "b"), got(5, 6, "a"))),
    "two readers do not agree on the order of two writes": (
        ITEMS,
        calls(put(0, 9, "a"), put(0, 9, "b"), got(10, 11, "a"), got(12, 13, "b")),
    ),
    "seen before it was asked for": (ITEMS, calls(got(0, 1, "a"), put(2, 3, "a"))),
    "a write without an answer happens twice": (
        ITEMS,
        calls(unknown(0, Store("a")), got(1, 2, "a"), put(3, 4, "b"), got(5, 6, "a")),
    ),
    "versions against the order of the writes": (ITEMS, calls(put(0, 1, "a", 8), put(2, 3, "b", 7))),
    "both compare and sets succeed": (
        ITEMS,
        calls(put(0, 1, "a", 3), (2, 5, Store("b", expected=3), Stored(4)), (2, 5, Store("c", expected=3), Stored(5))),
    ),
    "a conditional write decided on what was not there": (
        ITEMS,
        calls(put(0, 1, "a", 3), (2, 3, Store("b", expected=MISSING), Stored(4))),
    ),
    "refused though it had the version": (ITEMS, calls(put(0, 1, "a", 3), (2, 3, Store("b", expected=3), Unmet(-1)))),
    "expired, and still there": (ITEMS, calls((0, 1, Store("a", life_s=5), Stored()), got(6.5, 7, "a"))),
    "missing before its deadline": (ITEMS, calls((0, 1, Store("a", life_s=5), Stored()), got(3, 4, None))),
    "back from the dead": (
        ITEMS,
        calls((0, 1, Store("a", life_s=5), Stored()), got(5.1, 5.2, None), got(5.3, 5.4, "a")),
    ),
    "erased and there": (ITEMS, calls(put(0, 1, "a"), (2, 3, Erase(), Erased(True)), got(4, 5, "a"))),
    "erased twice": (ITEMS, calls(put(0, 1, "a"), (2, 3, Erase(), Erased(True)), (4, 5, Erase(), Erased(True)))),
    "two holders": (LOCKS, calls((0, 1, Obtain(10), Granted(7)), (2, 3, Obtain(10), Granted(8)))),
    "a code that does not rise": (LOCKS, calls((0, 1, Obtain(3), Granted(7)), (5, 6, Obtain(3), Granted(7)))),
    "released with another's code": (LOCKS, calls((0, 1, Obtain(9), Granted(7)), (2, 3, Unlatch(6), Granted(6)))),
    "not released by its holder": (LOCKS, calls((0, 1, Obtain(9), Granted(7)), (2, 3, Unlatch(7), Denied()))),
    "denied though free": (LOCKS, calls((0, 1, Obtain(2), Granted(7)), (4, 5, Obtain(2), Denied()))),
    "taken in spite of a renewal": (
        LOCKS,
        calls((0, 1, Obtain(3), Granted(7)), (2, 2.5, Extend(7, 3), Granted(7)), (3.5, 4, Obtain(3), Granted(8))),
    ),
}


@pytest.mark.parametrize("name", LINEARIZABLE)
def test_known_to_be_linearizable(name: str) -> None:
    model, history = LINEARIZABLE[name]
    check(history, model)


@pytest.mark.parametrize("name", NOT_LINEARIZABLE)
def test_known_not_to_be_linearizable(name: str) -> None:
    model, history = NOT_LINEARIZABLE[name]
    with pytest.raises(NotLinearizable, match="not linearizable"):
        check(history, model)


def test_slack_is_of_the_clocks() -> None:
    early = calls((0, 1, Store("a", life_s=5), Stored()), got(4, 4.8, None))
    late = calls((0, 1, Store("a", life_s=5), Stored()), got(6.2, 7, "a"))
    for history in (early, late):
        check(history, item_model(slack_s=0.3))
        with pytest.raises(NotLinearizable):
            check(history, item_model(slack_s=0.1))


def test_each_key_alone_and_the_bad_one_is_named() -> None:
    good = calls(put(0, 1, "a"), got(2, 3, "a"), key="good")
    bad = calls(put(0, 1, "a"), got(2, 3, "b"), key="bad")
    with pytest.raises(NotLinearizable, match=r"'bad': not linearizable; 1 of 2 calls") as refused:
        check(good + bad, ITEMS)
    assert refused.value.key == "bad"


# ---- against brute force


def brute_force(history: list[KvCall], model: Model) -> bool:
    """Every order of all calls with a result and of every choice of those without."""
    certain = [call for call in history if call.result is not None]
    perhaps = [call for call in history if call.result is None]
    for count in range(len(perhaps) + 1):
        for chosen in itertools.combinations(perhaps, count):
            if any(_possible(order, model) for order in itertools.permutations([*certain, *chosen])):
                return True
    return False


def _possible(order: Iterable[KvCall], model: Model) -> bool:
    state, latest = model.begin, -math.inf
    for call in order:
        if call.end < latest:  # one before it was invoked after it had returned
            return False
        latest = max(latest, call.invoked)
        state = model.step(state, call)
        if state is None:
            return False
    return True


def random_item_history(random: Random) -> list[KvCall]:
    """A few calls with results that are plausible, half of them impossible."""
    history = []
    for _ in range(random.randint(2, 6)):
        begin = random.randint(0, 10)
        end = begin + random.choice([0.5, 3, 8])
        value, version = random.choice("ab"), random.choice([None, None, 1, 2, 3])
        life_s = random.choice([math.inf, math.inf, 3])
        expected = random.choice([-2, -2, -2, MISSING, 1, 2])
        choice = random.random()
        asked: Asked
        result: Result | None
        if choice < 0.45:
            asked, result = Peek(), Shown(random.choice([None, "a", "b"]), None)
        elif choice < 0.8:
            asked = Store(value, life_s, expected)
            result = random.choice([None, Stored(version), Stored(version), Unmet(random.choice([None, -1, 1, 3]))])
        elif choice < 0.9:
            asked, result = Retime(life_s, expected), random.choice([None, Stored(version), Shown(None)])
        else:
            asked, result = Erase(expected), random.choice([None, Erased(), Erased(True), Erased(False)])
        history.append(KvCall("x", asked, result, begin, end))
    return history


def random_lock_history(random: Random) -> list[KvCall]:
    history = []
    for _ in range(random.randint(2, 6)):
        begin = random.randint(0, 10)
        end = begin + random.choice([0.5, 3, 8])
        code, lease_s = random.choice([1, 2, 3]), random.choice([2, 20])
        kinds: list[Asked] = [Obtain(lease_s), Obtain(lease_s), Unlatch(code), Extend(code, lease_s)]
        asked = random.choice(kinds)
        result: Result | None = random.choice([None, Denied(), Granted(code), Granted(code)])
        history.append(KvCall("x", asked, result, begin, end))
    return history


@pytest.mark.parametrize("make", [random_item_history, random_lock_history])
def test_as_brute_force_says(make: object) -> None:
    model = ITEMS if make is random_item_history else LOCKS
    verdicts = []
    for seed in range(400):
        history = (random_item_history if model is ITEMS else random_lock_history)(Random(seed))
        try:
            check(history, model)
            found = True
        except NotLinearizable:
            found = False
        unheard = [call.asked for call in history if call.result is None]
        if len(set(unheard)) == len(unheard):
            assert found == brute_force(history, model), f"seed {seed}: {history}"
        else:  # of these the first stands for the others, whose leases may count from later
            assert found <= brute_force(history, model), f"seed {seed}: {history}"
        verdicts.append(found)
    assert 40 < sum(verdicts) < 360  # both happen


# ---- speed


def served(random: Random, count: int, keys: int, callers: int) -> list[KvCall]:
    """The history of callers, several at a time, of a map that is linearizable; some never hear."""
    moments: list[tuple[float, float, float]] = []
    free = [0.0] * callers
    for _ in range(count):
        who = min(range(callers), key=lambda n: free[n])
        begin = free[who]
        moment = begin + random.uniform(0.0, 1.0)
        free[who] = moment + random.uniform(0.0, 1.0)
        moments.append((moment, begin, free[who]))
    values: dict[int, tuple[str | None, int]] = dict.fromkeys(range(keys), (None, -1))
    history: list[KvCall] = []
    for version, (_, begin, end) in enumerate(sorted(moments)):
        key, value, chance = random.randrange(keys), f"v{version}", random.random()
        old, old_version = values[key]
        asked: Asked = Peek()
        result: Result | None = Shown(old, old_version)
        if chance < 0.5:
            asked, result = Store(value), None if chance < 0.02 else Stored(version)
            values[key] = value, version
        elif chance < 0.6:
            expected = random.choice([MISSING if old is None else old_version, 1])
            asked, result = Store(value, expected=expected), Unmet(old_version)
            if expected in (old_version, MISSING):
                result, values[key] = Stored(version), (value, version)
        history.append(KvCall(key, asked, result, begin, end))
    return history


def test_ten_thousand_calls_within_seconds() -> None:
    history = served(Random(5), 10_000, 100, 20)
    assert sum(call.result is None for call in history) > 50
    begin = time.process_time()
    steps = check(history, ITEMS)
    assert time.process_time() - begin < 10.0
    assert 10_000 <= steps < 100_000
    stale = max((call for call in history if isinstance(call.result, Shown)), key=lambda call: call.invoked)
    with pytest.raises(NotLinearizable):
        check([*history, KvCall(stale.key, Peek(), Shown("never"), 0.0, 1e9)], ITEMS)


def test_writes_of_which_nobody_has_seen_anything_do_not_make_a_search_long() -> None:
    """Found by the simulation: one write that took long, and sixteen by somebody who never heard of theirs."""
    lost = [KvCall("x", Store(f"v{n}"), None, 1.0 + n, math.inf) for n in range(16)]
    slow = KvCall("x", Store("slow"), Stored(9), 0.0, 30.0)
    history = [
        slow,
        *lost,
        KvCall("x", Peek(), Shown("v5", 7), 0.5, 28.0),
        KvCall("x", Peek(), Shown("slow", 9), 40, 41),
    ]
    assert check(history, ITEMS, steps=1_000) < 50
    with pytest.raises((NotLinearizable, Undecided)):
        check([*history, KvCall("x", Peek(), Shown("v5", 7), 42.0, 43.0)], ITEMS, steps=100_000)


def test_a_search_that_takes_too_long_is_given_up() -> None:
    """Writes at once, of which none can have been read: every order of them would have to be tried."""
    history = [KvCall("x", Store(f"v{n}"), Stored(), 0.0, 10.0) for n in range(30)]
    history.append(KvCall("x", Peek(), Shown("none of them"), 11.0, 12.0))
    with pytest.raises(Undecided, match="31 calls, given up after"):
        check(history, ITEMS, steps=5_000)
