"""Web sessions in a key/value space: ``python examples/sessions.py --workers 4 --seconds 60 --kill``.

It brings up a cluster of its own (or uses ``--cluster NAME``, which has key/value actors). Workers, Ray actors each,
share the sessions of some users: any of them reads a session, adds its visit to it, and writes it back if nobody else
has done so meanwhile (``update``). Each also keeps sessions that only it writes. One of them is the leader at a time,
by a lock; what the leader does carries the lock's code, so that a leader who was replaced and does not know is refused.

``--kill``: key/value actors, servers and replicas of its own cluster are killed in turns while all that goes on. At the
end every session that was acknowledged must be there as it was written last, and every visit be counted once. Where a
worker was told that nobody knows whether a write has happened, both are right. Exit code 1 if something is not.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import ray

from waltz_ray import JsonCodec, init_ray, kv
from waltz_ray.bring_up import bring_up
from waltz_ray.config import ClusterConfig, KvConfig
from waltz_ray.errors import KvConflict, KvLockLost, KvLockTaken, KvNotReady, KvUnknownFate, WaltzError
from waltz_ray.interruption import undisturbed
from waltz_ray.readiness import cluster_status, missing
from waltz_ray.take_down import take_down_in

USERS = 50  # whose sessions all workers share
OWN_SESSIONS = 200  # of each worker
KV_ACTORS = 3


@dataclass
class Report:
    """What a worker was told."""

    worker: int
    visits: int = 0
    """That are in a shared session: acknowledged."""
    open_visits: int = 0
    """That may be."""
    own: dict[str, list[int]] = field(default_factory=dict)
    """Of each own session, the values that it may have now: one, unless the last write has no known fate."""
    writes: int = 0
    terms: list[int] = field(default_factory=list)
    """Codes of the lock under which it has led."""
    refused: int = 0
    """Times that it was told to try again."""
    slowest_s: float = 0.0


class Worker:
    """One of those who share the sessions, until its time is over."""

    def __init__(self, connect: Callable[[], kv.KvClient], worker: int) -> None:
        self._client = connect()
        self._shared = self._client.map("sessions")
        self._own = self._client.map(f"sessions of worker {worker}")
        self._chance = random.Random(worker)
        self.report = Report(worker)

    def run(self, seconds: float) -> Report:
        """Work for so long; what it was told."""
        end_s = time.monotonic() + seconds
        with self._client:
            leader = threading.Thread(target=self._lead, args=(end_s,))
            leader.start()
            while time.monotonic() < end_s:
                for step in (self._visit, self._write):
                    begun_s = time.monotonic()
                    try:
                        step()
                    except KvNotReady:
                        self.report.refused += 1
                    self.report.slowest_s = max(self.report.slowest_s, time.monotonic() - begun_s)
            leader.join()
        return self.report

    def _visit(self) -> None:
        """One more visit in somebody's session."""
        who = str(self.report.worker)

        def visited(session: dict[str, int]) -> dict[str, int]:
            return {**session, who: session.get(who, 0) + 1}

        try:
            self._shared.update(f"user-{self._chance.randrange(USERS)}", visited, {})
            self.report.visits += 1
        except KvUnknownFate:
            self.report.open_visits += 1

    def _write(self) -> None:
        """A session that nobody else writes has a new value."""
        name, known = f"session-{self._chance.randrange(OWN_SESSIONS)}", self.report.own
        value = self.report.writes = self.report.writes + 1
        try:
            self._own.set(name, value)
            known[name] = [value]
        except KvUnknownFate:
            known[name] = [*known.get(name, [0]), value]

    def _lead(self, end_s: float) -> None:
        """Be the leader now and then."""
        while time.monotonic() < end_s:
            try:
                with self._client.lock("leader", lease=3, wait=1) as lock:
                    self.report.terms.append(lock.code)
                    while time.monotonic() < end_s and not lock.lost and self._acted(lock.code):
                        if self._chance.random() < 0.1:
                            break  # somebody else's turn
                        time.sleep(0.05)
            except (KvLockTaken, KvLockLost, KvNotReady, KvUnknownFate):
                continue

    def _acted(self, code: int) -> bool:
        """Something only the leader may do: False if a later one has done it already."""
        term = self._client.get_item("term")
        if term is not None and term.value > code:
            return False
        try:
            self._client.set("term", code, expected=kv.ABSENT if term is None else term.version)
        except KvConflict:
            return False
        return True


def wrong(client: kv.KvClient, reports: Sequence[Report]) -> list[str]:
    """What is not as the workers were told."""
    found = []
    sessions = {entry.name: entry.value for entry in client.map("sessions").scan()}
    for report in reports:
        there = sum(session.get(str(report.worker), 0) for session in sessions.values())
        if not report.visits <= there <= report.visits + report.open_visits:
            found.append(f"worker {report.worker}: {there} visits, {report.visits} were acknowledged")
        own = {entry.name: entry.value for entry in client.map(f"sessions of worker {report.worker}").scan()}
        for name, values in report.own.items():
            if own.get(name, 0) not in values:
                found.append(f"worker {report.worker}: {name} is {own.get(name)}, it was set to {values}")
    terms = [code for report in reports for code in report.terms]
    if len(set(terms)) < len(terms):
        found.append("a code was given twice")
    if any(report.terms != sorted(report.terms) for report in reports):
        found.append("a code was lower than one before it")
    return found


def told(reports: Sequence[Report]) -> Iterator[str]:
    """A short table."""
    yield f"{'worker':>6} {'visits':>8} {'writes':>8} {'led':>5} {'refused':>8} {'open':>5} {'slowest':>9}"
    for each in reports:
        opened = each.open_visits + sum(len(values) > 1 for values in each.own.values())
        yield (
            f"{each.worker:>6} {each.visits:>8} {each.writes:>8} {len(each.terms):>5} {each.refused:>8} {opened:>5} "
            f"{each.slowest_s:>7.2f} s"
        )


# ---- the cluster -----------------------------------------------------------------------------------------------------

_OWN = "sessions"  # the name of our own cluster


class Trouble:
    """SIGKILLs a key/value actor, a server and a replica in turns, each time all are well, until it is stopped."""

    def __init__(self, cluster: str, every_s: float = 5.0) -> None:
        self._cluster, self._every_s = cluster, every_s
        self._stopped = threading.Event()
        self.kills: list[str] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Trouble:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            status = cluster_status(self._cluster)
            if missing(status, KV_ACTORS):
                continue
            kinds: list[tuple[str, Any]] = [
                ("kv actor", status.kv),
                ("server", status.servers),
                ("replica", status.replicas),
            ]
            kind, running = kinds[len(self.kills) % 3]
            who, pid = random.choice([(who, each.pid) for who, each in running.items()])
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it has just ended by itself
            self.kills.append(f"{kind} {who}")
            print(f"killed {kind} {who} (process {pid})", flush=True)


@contextmanager
def own_cluster() -> Iterator[str]:
    """The directory of one of our own, on a Ray of our own; gone with all its files at the end."""
    with tempfile.TemporaryDirectory(prefix="waltz-sessions-") as directory:
        config = ClusterConfig(
            name=_OWN, directory=directory, partitions=1, replicas=3, servers=2, kv=KvConfig(actors=KV_ACTORS)
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
        connect = partial(kv.connect, name, codec=JsonCodec(), directory=directory)
        actor: Any = ray.remote(num_cpus=0)(Worker)
        workers = [actor.remote(connect, number) for number in range(arguments.workers)]
        killer = Trouble(_OWN) if arguments.kill else None
        with killer or ExitStack():
            reports: list[Report] = ray.get([worker.run.remote(arguments.seconds) for worker in workers])
        with connect() as client:
            bad = wrong(client, reports)
        print(*told(reports), sep="\n")
        print(
            f"{len(killer.kills) if killer else 0} kills;", "every acknowledged session is there" if not bad else "NOT:"
        )
        print(*bad, sep="\n", end="\n" if bad else "")
        return bool(bad)


def _arguments_of_command() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Web sessions in a key/value space.")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--kill", action="store_true", help="kill actors of its own cluster")
    parser.add_argument(
        "--cluster", help="use this one, whose space kv has nothing else in it; default: one of its own"
    )
    arguments = parser.parse_args()
    if arguments.kill and arguments.cluster:
        parser.error("--kill is for its own cluster; leave --cluster out")
    if arguments.workers < 1 or not arguments.seconds > 0:
        parser.error("there is one worker at least, and some seconds to work")
    return arguments


if __name__ == "__main__":
    try:
        sys.exit(main(_arguments_of_command()))
    except KeyboardInterrupt:
        sys.exit(130)
    except WaltzError as error:
        sys.exit(f"sessions: {error}")
