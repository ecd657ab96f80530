"""Who leads? ``python examples/leader_election.py [cluster] [name]``; start several, end one.

A claim is a transaction under a lock, so of several at a time one is committed. Its ID is the *term*: it only rises.
What the leader does it appends under the same lock, as a reader, and so the log itself refuses a leader that has been
replaced and does not know yet, however long its process has slept. Time only decides when others begin to claim: a
candidate does when it has not seen the leader claim again for ``LEASE_S`` seconds by its own clock. No two clocks have
to agree; a clock that is too quick costs an election, never a second leader whose acts count.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable

from waltz_ray import Callbacks, Transaction, TransactionBuilder, TransactionContext, WaltzClient, connect
from waltz_ray.errors import WaltzError

PARTITION = 0
HEADER = 1002  # by which our transactions are known, whatever else is in the partition
LEASE_S = 3.0


class Office(Callbacks):
    """What the log says: who leads since which term, and what leaders have done."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.me = uuid.uuid4().hex  # two with one name (`process 1` of two containers) are two
        self.leader = ""
        self.leads = ""  # whose claim it was: the leader's ``me``
        self.term = -1
        self.seen_s = time.monotonic()  # when the leader has claimed last, as this process saw it
        self.acts: list[tuple[str, str]] = []
        self._mark = -1

    def client_high_water_mark(self, partition_id: int) -> int:
        return self._mark

    def apply_transaction(self, transaction: Transaction) -> None:
        entry = json.loads(transaction.data) if transaction.header == HEADER else {}
        with self.changed:
            if "act" in entry:
                self.acts.append((entry["by"], entry["act"]))
            elif entry:
                if entry["me"] != self.leads:
                    self.leader, self.leads, self.term = entry["by"], entry["me"], transaction.transaction_id
                self.seen_s = time.monotonic()
            self._mark = transaction.transaction_id
            self.changed.notify_all()

    def uncaught_exception(self, partition_id: int, transaction_id: int, error: BaseException) -> None:
        print(f"transaction {partition_id}/{transaction_id} could not be applied: {error!r}", file=sys.stderr)


class Claim(TransactionContext):
    """I lead, or lead on; given up if somebody else does and is alive."""

    def __init__(self, office: Office, name: str, lease_s: float) -> None:
        self.office, self.name, self.lease_s = office, name, lease_s

    def partition_id(self, partitions: int) -> int:
        return PARTITION

    def execute(self, builder: TransactionBuilder) -> bool:
        with self.office.changed:
            fresh = time.monotonic() - self.office.seen_s < self.lease_s
            if fresh and self.office.leads not in ("", self.office.me):
                return False
        builder.write_lock("leader", 0)
        builder.header, builder.data = HEADER, json.dumps({"by": self.name, "me": self.office.me}).encode()
        return True


class Act(TransactionContext):
    """Something only the leader of ``term`` may do; given up when there is another one."""

    def __init__(self, office: Office, term: int, what: str) -> None:
        self.office, self.term, self.what = office, term, what

    def partition_id(self, partitions: int) -> int:
        return PARTITION

    def execute(self, builder: TransactionBuilder) -> bool:
        with self.office.changed:
            if self.office.term != self.term:
                return False
            by = self.office.leader
        builder.read_lock("leader", 0)  # refused if anybody has claimed since
        builder.header, builder.data = HEADER, json.dumps({"by": by, "act": self.what}).encode()
        return True


class Candidate:
    """One that would lead. ``client`` has ``office`` as its callbacks; ``lead(term)`` is called at each renewal."""

    def __init__(self, client: WaltzClient, office: Office, name: str, lease_s: float = LEASE_S) -> None:
        self.client, self.office, self.name, self.lease_s = client, office, name, lease_s
        self._stopped = False

    def run(self, lead: Callable[[int], None]) -> None:
        """Until ``stop``."""
        while not self._stopped:
            if self.client.submit(Claim(self.office, self.name, self.lease_s)).result():
                with self.office.changed:  # committed comes before applied
                    self.office.changed.wait_for(lambda: self.office.leads == self.office.me, self.lease_s)
                    term = self.office.term if self.office.leads == self.office.me else None
                if term is not None:
                    lead(term)
            with self.office.changed:
                self.office.changed.wait_for(lambda: self._stopped, self.lease_s / 3)

    def stop(self) -> None:
        """It claims no more; others notice when its lease is over."""
        with self.office.changed:
            self._stopped = True
            self.office.changed.notify_all()


def main(cluster: str | None = None, name: str = f"process {os.getpid()}") -> None:
    office = Office()
    with connect(cluster, callbacks=office, partitions=[PARTITION]) as client:
        client.wait_ready(30)

        def lead(term: int) -> None:
            done = client.submit(Act(office, term, f"a beat of term {term}")).result()
            print(f"{name} leads in term {term}" if done else f"{name} has been replaced")

        Candidate(client, office, name).run(lead)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        print()
    except WaltzError as error:
        sys.exit(f"error: {error}")
