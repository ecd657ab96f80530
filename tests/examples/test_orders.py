"""The shop's orders: what its parts do in one process; with Ray and kills it is run by hand and by the docs."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from functools import partial

import pytest

from examples.orders import Clerk, Ledger, Shop, _arguments_of_command, shares_of, stored, table, wrong
from tests.examples.refused import refused
from tests.topics.client.world import FAST, TopicWorld, topic_world
from waltz_ray.topics import TopicClient


def test_departments_consume_what_shops_have_sent() -> None:
    async def scene() -> None:
        async with topic_world(actors=2, partitions=4) as world:
            await asyncio.to_thread(a_day, world)

    asyncio.run(scene())


def a_day(world: TopicWorld) -> None:
    connect = partial(TopicClient, world.place, FAST)
    ledgers = {group: Ledger() for group in ("billing", "packing")}
    clerks = [Clerk(connect, group, ledger.enter) for group, ledger in ledgers.items() for _ in range(2)]
    working = [threading.Thread(target=each.work) for each in clerks]
    for thread in working:
        thread.start()
    sent = Shop(connect, 1).sell(300, 0.0)
    found = stored(connect)
    until = threading.Event()
    for _ in range(400):
        if all(ledger.known()[0] == sent for ledger in ledgers.values()):
            break
        until.wait(0.05)
    for each in clerks:
        each.stop()
    for thread in working:
        thread.join()
    known = {group: ledger.known() for group, ledger in ledgers.items()}
    assert wrong(sent, found, known) == []
    assert table(sent, found, known).row_count == 2


def test_every_order_is_some_shops() -> None:
    assert [sum(shares_of(orders)) for orders in (1, 2, 3, 101)] == [1, 2, 3, 101]


@pytest.mark.parametrize("given", ["--orders 0", "--pause -1", "--pause nan", "--kill --cluster x"])
def test_options_that_sell_nothing(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing sent, stored and consumed would be "the same"."""
    refused(_arguments_of_command, given, monkeypatch)


def test_the_comparison_has_teeth() -> None:
    assert wrong(2, Counter({"1/0": 1, "1/1": 1}), {"billing": (2, 0)}) == []
    assert wrong(2, Counter({"1/0": 1}), {"billing": (2, 0)})
    assert wrong(2, Counter({"1/0": 2, "1/1": 1}), {"billing": (2, 1)}), "a message twice in the log"
    assert wrong(2, Counter({"1/0": 1, "1/1": 1}), {"billing": (1, 0)})
