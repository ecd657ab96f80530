"""Orders of a shop, as messages: ``python examples/orders.py --orders 20000 --kill``.

Shops (Ray actors) send orders to a topic. Three departments consume all of them, each a group of two clerks (Ray
actors, too): a clerk enters a batch in the ledger of its department and confirms it after that. So what a clerk that
dies has entered and not confirmed is entered *again* by another one, and nothing is ever left out.

``--kill``: topic actors, servers, replicas and clerks are killed while all that goes on. At the end the table says what
was sent, what is stored, and what each department has in its ledger: three times the same, or the program ends with 1.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import ray
from rich.console import Console
from rich.table import Table

from waltz_ray import init_ray, topics
from waltz_ray.bring_up import bring_up
from waltz_ray.config import ClusterConfig, TopicConfig
from waltz_ray.errors import TopicRefused, TopicUnknownFate, WaltzError
from waltz_ray.interruption import undisturbed
from waltz_ray.readiness import cluster_status, missing
from waltz_ray.spaces import Spaces
from waltz_ray.take_down import take_down_in

TOPIC, PARTITIONS, KINDS = "orders", 4, ("book", "record", "toy")
GROUPS = ("billing", "packing", "statistics")
SHOPS, CLERKS, TOPIC_ACTORS = 2, 2, 2
PATIENCE_S = 120.0

Connect = Callable[[], topics.TopicClient]


class Shop:
    """Sends orders, named by its number and theirs."""

    def __init__(self, connect: Connect, number: int) -> None:
        self._connect, self._number = connect, number

    def sell(self, orders: int, pause_s: float) -> int:
        """So many; how many were sent, for certain. Those of one customer stay in one partition, in their order."""
        with self._connect() as client, client.producer() as producer:
            sent = []
            for n in range(orders):
                name = f"{self._number}/{n}".encode()
                sent.append(producer.send_nowait(TOPIC, name, type=KINDS[n % len(KINDS)], key=n % 50))
                time.sleep(pause_s)
            return sum(future.result() >= 0 for future in sent)


def shares_of(orders: int) -> list[int]:
    """How many of them each shop sends."""
    return [(orders + number) // SHOPS for number in range(SHOPS)]


@dataclass
class Ledger:
    """What a department has entered: how often each order."""

    entries: Counter[str] = field(default_factory=Counter)

    def enter(self, orders: Sequence[str]) -> None:
        self.entries.update(orders)

    def known(self) -> tuple[int, int]:
        """How many orders, and how many of them more than once."""
        return len(self.entries), sum(count > 1 for count in self.entries.values())


class Clerk:
    """A member of a department's group. ``enter``: into the ledger; it returns when that is done."""

    def __init__(self, connect: Connect, group: str, enter: Callable[[list[str]], object]) -> None:
        self._connect, self._group, self._enter = connect, group, enter
        self._over = threading.Event()

    def pid(self) -> int:
        return os.getpid()

    def work(self) -> None:
        """Until ``stop``."""
        with self._connect() as client, client.consumer(self._group, TOPIC) as consumer:
            while not self._over.is_set():
                batch = consumer.pull(200, timeout=0.2)
                if batch is None:
                    continue
                self._enter([message.data.decode() for message in batch])
                try:
                    consumer.confirm(batch)
                except (TopicRefused, TopicUnknownFate):  # another clerk has the partition, and may enter it again
                    continue

    def stop(self) -> None:
        self._over.set()


def stored(connect: Connect) -> Counter[str]:
    """What the topic has, read by nobody's group but ours, from its beginning to its end."""
    found = Counter[str]()
    with connect() as client, client.consumer(f"audit-{os.getpid()}-{time.time_ns()}", TOPIC) as consumer:
        until_s = time.monotonic() + PATIENCE_S
        while len(consumer.partitions) < PARTITIONS or any(consumer.lag().values()):
            if time.monotonic() > until_s:
                raise TimeoutError(f"the topic was not read to its end within {PATIENCE_S:g} s: {consumer.lag()}")
            batch = consumer.pull(timeout=0.5)
            if batch is not None:
                found.update(message.data.decode() for message in batch)
                consumer.confirm(batch)
    return found


def wrong(sent: int, found: Counter[str], ledgers: dict[str, tuple[int, int]]) -> list[str]:
    """What is not as it should be."""
    bad = []
    if len(found) != sent or set(found.values()) - {1}:
        bad.append(f"{sent} orders were sent, {len(found)} are stored, {sum(found.values())} messages in all")
    bad += [f"{group} has {known} of {sent} orders" for group, (known, _) in ledgers.items() if known != sent]
    return bad


def table(sent: int, found: Counter[str], ledgers: dict[str, tuple[int, int]]) -> Table:
    """For people."""
    shown = Table("group", "sent", "stored", "consumed", "of these again")
    for group, (known, again) in ledgers.items():
        shown.add_row(group, *(f"{number:,}" for number in (sent, len(found), known, again)))
    return shown


# ---- the cluster -----------------------------------------------------------------------------------------------------

_OWN = "shop"  # the name of our own cluster


class ShopTrouble:
    """SIGKILLs a topic actor, a server, a replica and a clerk in turns, each time all are well, until it is stopped."""

    def __init__(self, cluster: str, clerks: Callable[[], Sequence[int]], every_s: float = 3.0) -> None:
        self._cluster, self._clerks, self._every_s = cluster, clerks, every_s
        self._stopped = threading.Event()
        self.kills = 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> ShopTrouble:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            status = cluster_status(self._cluster)
            if missing(status, 1, TOPIC_ACTORS):
                continue
            kinds: list[tuple[str, list[int | None]]] = [
                ("topic actor", [each.pid for each in status.topics.values()]),
                ("server", [each.pid for each in status.servers.values()]),
                ("clerk", list(self._clerks())),
                ("replica", [each.pid for each in status.replicas.values()]),
            ]
            kind, pids = kinds[self.kills % len(kinds)]
            pid = random.choice([each for each in pids if each is not None])
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it has just ended by itself
            self.kills += 1
            print(f"killed a {kind} (process {pid})", flush=True)


class Departments:
    """The ledgers and the clerks; a clerk that was killed is started again by Ray, and set to work again by us."""

    def __init__(self, connect: Connect) -> None:
        book: Any = ray.remote(num_cpus=0)(Ledger)
        options: dict[str, Any] = {"num_cpus": 0, "max_restarts": -1, "max_concurrency": 4}
        clerk: Any = ray.remote(**options)(Clerk)
        self.ledgers = {group: book.remote() for group in GROUPS}
        self.clerks = [
            clerk.remote(connect, group, partial(_enter, ledger))
            for group, ledger in self.ledgers.items()
            for _ in range(CLERKS)
        ]
        self._working = {each: each.work.remote() for each in self.clerks}

    def look_after(self) -> None:
        """Whoever has died works again. Raises what a clerk has failed with otherwise."""
        for each, work in list(self._working.items()):
            if ray.wait([work], timeout=0)[0]:
                try:
                    ray.get(work)
                except ray.exceptions.RayActorError:
                    self._working[each] = each.work.remote()

    def pids(self) -> list[int]:
        """Of the clerks that answer."""
        asked = [each.pid.remote() for each in self.clerks]
        found, _ = ray.wait(asked, num_returns=len(asked), timeout=5)
        pids = []
        for each in found:
            try:
                pids.append(int(ray.get(each)))
            except ray.exceptions.RayActorError:
                continue  # it is being started again
        return pids

    def known(self) -> dict[str, tuple[int, int]]:
        return dict(zip(self.ledgers, ray.get([each.known.remote() for each in self.ledgers.values()]), strict=True))

    def wait_for(self, orders: int) -> None:
        """Until all ledgers have so many, or there is no patience left."""
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s and any(known < orders for known, _ in self.known().values()):
            self.look_after()
            time.sleep(0.2)

    def close(self) -> None:
        for each in self.clerks:
            each.stop.remote()
        ray.wait(list(self._working.values()), num_returns=len(self._working), timeout=20)


def _enter(ledger: Any, orders: list[str]) -> None:
    ray.get(ledger.enter.remote(orders))


@contextmanager
def own_cluster() -> Iterator[str]:
    """The directory of one of our own, on a Ray of our own; gone with all its files at the end."""
    with tempfile.TemporaryDirectory(prefix="waltz-orders-") as directory:
        config = ClusterConfig(
            name=_OWN,
            directory=directory,
            partitions=1,
            replicas=3,
            servers=2,
            topics=TopicConfig(actors=TOPIC_ACTORS, client_ms=5_000),
        )
        try:
            print("bringing up a cluster", flush=True)
            bring_up(config)
            yield directory
        finally:
            with undisturbed():  # a second ^C leaves no processes behind
                take_down_in(Path(directory))


def main(arguments: argparse.Namespace) -> int:
    with ExitStack() as stack:
        name, directory = arguments.cluster, ""
        if not name:
            directory = stack.enter_context(own_cluster())
        init_ray(name, directory=directory)
        with Spaces(name, directory=directory) as spaces:
            spaces.create(TOPIC, PARTITIONS, "topic")
        connect = partial(topics.connect, name, directory=directory)
        departments = Departments(connect)
        shop: Any = ray.remote(num_cpus=0)(Shop)
        shops = [shop.remote(connect, number) for number in range(SHOPS)]
        killer = ShopTrouble(_OWN, departments.pids) if arguments.kill else None
        with killer or ExitStack():
            shares = shares_of(arguments.orders)
            selling = [each.sell.remote(share, arguments.pause) for each, share in zip(shops, shares, strict=True)]
            while len(ray.wait(selling, num_returns=SHOPS, timeout=0.5)[0]) < SHOPS:
                departments.look_after()
        sent = sum(ray.get(selling))
        departments.wait_for(sent)
        ledgers = departments.known()
        departments.close()
        found = stored(connect)
        Console().print(table(sent, found, ledgers))
        bad = wrong(sent, found, ledgers)
        print(f"{killer.kills if killer else 0} kills;", "sent = stored = consumed" if not bad else "NOT:")
        print(*bad, sep="\n", end="\n" if bad else "")
        return bool(bad)


def _arguments_of_command() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Orders of a shop, consumed by three departments.")
    parser.add_argument("--orders", type=int, default=4000)
    parser.add_argument("--pause", type=float, default=0.002, help="seconds between two orders of a shop")
    parser.add_argument("--kill", action="store_true", help="kill actors of its own cluster, and clerks")
    parser.add_argument("--cluster", help="use this one, which has no topic orders yet; default: one of its own")
    arguments = parser.parse_args()
    if arguments.kill and arguments.cluster:
        parser.error("--kill is for its own cluster; leave --cluster out")
    if arguments.orders < 1 or not arguments.pause >= 0:
        parser.error("there is one order at least, and no pause below 0")
    return arguments


if __name__ == "__main__":
    try:
        sys.exit(main(_arguments_of_command()))
    except KeyboardInterrupt:
        sys.exit(130)
    except WaltzError as error:
        sys.exit(f"orders: {error}")
