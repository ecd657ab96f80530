"""A small world for ``TopicMaster``: consumers of one group, a network, the slots, masters that come and go.

Messages are lost, doubled and late, replies too; consumers die, stop and go on, are stuck, fail at orders, come back
under other IDs; topics and addresses change; leaders change. A slot admits one consumer at a time, as long as that one
beats. What is promised is checked as it happens (``BrokenPromise``). Times in milliseconds.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from tests.topics.groups.consumers import FakeConsumer
from tests.topics.groups.desk import table
from tests.topics.groups.grant_log import BrokenPromise, GrantLog
from waltz_ray.topics.groups.effects import (
    ConsumerAnswer,
    Freeing,
    GroupRefusal,
    MasterEffect,
    PartitionFreed,
    PartitionGranted,
    RefuseClient,
    TellClosed,
)
from waltz_ray.topics.groups.events import (
    BalanceDue,
    ConsumerBeats,
    ConsumerCloses,
    ConsumerRegisters,
    GroupTerms,
    MasterEvent,
    OrderStatus,
    RebalanceOp,
    SteppedDown,
    TableKnown,
    TookOver,
)
from waltz_ray.topics.groups.limits import GroupTimes
from waltz_ray.topics.groups.machine import TopicMaster
from waltz_ray.topics.groups.status import GroupStatus
from waltz_ray.topics.groups.table import SlotPlace, TopicPartition, TopicTable

CLIENT_MS, ORDER_MS = 30_000, 60_000
BEAT_MS, CALL_MS, BALANCE_MS = 3_000, 6_000, 20_000
LITTLE = 0.05  # so often a message is lost, and nobody should suffer from it
SOON_MS, LATEST_MS = 800, 8_000  # a message is under way for so long at the most
TERMS = GroupTerms(frozenset("tu"), {})


@dataclass
class Client:
    """A process of a consumer. ``since``: (epoch, when) of each partition that it has connected. ``odd_ms``: when it
    was last in any way at fault."""

    fake: FakeConsumer
    alive: bool = True
    paused: bool = False
    stuck: bool = False
    registered: bool = False
    asking: int | None = None
    asked_ms: int = -CALL_MS
    odd_ms: int = 0
    since: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.fake.client_id

    @property
    def runs(self) -> bool:
        return self.alive and not self.paused


@dataclass
class Lease:
    """What a slot knows: who may read a partition, as long as he beats."""

    client: Client
    beaten_ms: int


class GroupsWorld:
    """One walk. ``trace``: told what happens."""

    def __init__(self, seed: int, clients: int = 4, partitions: int = 7, trace: list[str] | None = None) -> None:
        self.random, self.trace = random.Random(seed), trace
        self.now_ms, self.calls, self.epoch, self.names = 0, 0, 0, 0
        self.partitions, self.most = partitions, clients
        self.log, self.seen = GrantLog(), Counter[str]()
        self.clients: dict[str, Client] = {}
        self.leases: dict[TopicPartition, Lease] = {}
        self.letters: list[tuple[int, MasterEvent | tuple[str, MasterEffect]]] = []
        self.accepted: dict[str, int] = {}  # when this leader last heard of a member
        self.taken: set[tuple[str, TopicPartition]] = set()  # by this leader, without a word of the client
        self.loss, self.doubling = self.random.choice([0.0, LITTLE, 0.3]), self.random.choice([0.0, 0.1, 0.4])
        self.latest_ms = self.random.choice([SOON_MS, LATEST_MS, LATEST_MS])
        # Whether the network is one in which nobody is to suffer.
        self.good = self.loss <= LITTLE and not self.doubling and self.latest_ms == SOON_MS
        self.ports, self.more = 8000, 0
        self.master = TopicMaster()
        self.next_balance_ms = self.took_over_ms = 0
        self.lead()
        for _ in range(clients):
            self.comes()

    def tell(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now_ms} {text}")

    # ---- the master

    def table(self) -> TopicTable:
        found = table({"t": self.partitions, "u": self.more}, slots=self.partitions, port=self.ports)
        return found if self.more else TopicTable(found.slots, {"t": found.topics["t"]})

    def lead(self) -> None:
        self.epoch += 1
        self.tell(f"leader {self.epoch}")
        self.step(SteppedDown())
        self.master = TopicMaster(GroupTimes(client_ms=CLIENT_MS, order_ms=ORDER_MS))
        self.log.leader_changes()
        self.accepted.clear()
        self.taken.clear()
        self.took_over_ms = self.now_ms
        self.step(TookOver(self.epoch, 0 if self.epoch == 1 else CLIENT_MS))
        self.step(TableKnown(self.table()))

    def step(self, event: MasterEvent, client_id: str | None = None) -> list[MasterEffect]:
        before = self.status()
        effects = self.master.step(event, self.now_ms)
        self.tell(f"{event} -> {effects}")
        wrong = self.master.broken()
        if wrong is not None:
            raise BrokenPromise(wrong)
        self.log.takes(effects, client_id)
        for effect in effects:
            if isinstance(effect, PartitionGranted):
                self.taken.discard((effect.client_id, effect.partition))
            if isinstance(effect, PartitionGranted) and not effect.reported:
                self.look_at_grant(effect)
                self.ends_lease(effect)
            if isinstance(effect, PartitionFreed):
                self.look_at_free(effect)
        if isinstance(event, BalanceDue):
            self.look_at_balance(before, effects)
        return effects

    def status(self) -> GroupStatus | None:
        return self.master.group_status("g")

    # ---- what is promised

    def lease(self, partition: TopicPartition) -> Client | None:
        """Who reads a partition, by its slot."""
        found = self.leases.get(partition)
        if found is None or self.now_ms - found.beaten_ms >= CLIENT_MS:
            return None
        return found.client

    def look_at_grant(self, grant: PartitionGranted) -> None:
        """Nobody reads it; or somebody of whom the master can know nothing, or whom he has heard nothing of."""
        client = self.lease(grant.partition)
        if client is None or client.name == grant.client_id or (client.name, grant.partition) in self.taken:
            return
        status = self.status()
        members = [] if status is None else [member.client_id for member in status.members]
        if client.name in self.accepted and client.name not in members:
            return  # sent away
        epoch, since_ms = client.since.get(grant.partition, (self.epoch, 0))
        silent = self.now_ms - self.accepted.get(client.name, self.took_over_ms) >= CLIENT_MS
        by_the_old_one = epoch < self.epoch and since_ms >= self.took_over_ms
        if not silent and not by_the_old_one:
            raise BrokenPromise(f"{grant} while {client.name} reads it, since {since_ms} by leader {epoch}")

    def ends_lease(self, grant: PartitionGranted) -> None:
        """The slot of a grant ends that of anybody else."""
        client = self.lease(grant.partition)
        if client is not None and client.name != grant.client_id:
            del self.leases[grant.partition]
            self.seen["ended"] += 1

    def look_at_free(self, freed: PartitionFreed) -> None:
        """Freed by the client's word: it has it no more. By its silence: it was silent."""
        client = self.clients[freed.client_id]
        if freed.how in (Freeing.REPORTED, Freeing.WITHDRAWN):
            if client.alive and freed.partition in client.fake.held and self.lease(freed.partition) is client:
                raise BrokenPromise(f"{freed}, and it reads it")
            return
        self.taken.add((client.name, freed.partition))
        if freed.how is Freeing.GONE and self.now_ms - self.accepted[client.name] < CLIENT_MS:
            raise BrokenPromise(f"{freed}, heard of at {self.accepted[client.name]}")
        well = self.now_ms - client.odd_ms >= ORDER_MS + CLIENT_MS
        if freed.how is Freeing.OVERDUE and client.alive and well and self.good:
            raise BrokenPromise(f"{freed}, who was at no fault since {client.odd_ms}")

    def look_at_balance(self, before: GroupStatus | None, effects: list[MasterEffect]) -> None:
        """As few as possible let go; nobody is left with an order he does not do."""
        after = self.status()
        if before is None or after is None:
            return
        for member in after.members:
            if member.order is not None and member.order.age_ms >= ORDER_MS:
                raise BrokenPromise(f"{member} has not done its order")
        there = set(self.table().partitions("tu"))
        had = {m.client_id: set(m.owned) & there for m in before.members}
        stay = {m.client_id: set(m.owned) for m in after.members if m.proven}
        lost = sum(len(had[name] - owned) for name, owned in stay.items())
        least, more = divmod(len(there), max(1, len(stay)))
        ranked = sorted((len(had[name]) for name in stay), reverse=True)
        needed = sum(max(0, has - least - (rank < more)) for rank, has in enumerate(ranked))
        if lost > needed:
            raise BrokenPromise(f"{lost} let go, of which {needed} were too many")

    # ---- consumers

    def comes(self) -> None:
        self.names += 1
        name = f"c{self.names}"
        skips, lists = self.random.random() < 0.5, self.random.random() < 0.5
        self.clients[name] = Client(FakeConsumer(name, TERMS, skips=skips, lists=lists), odd_ms=self.now_ms)

    def there(self) -> list[Client]:
        return [each for each in self.clients.values() if each.alive]

    def send(self, event: ConsumerRegisters | ConsumerBeats | ConsumerCloses) -> None:
        for _ in range(1 + (self.random.random() < self.doubling)):
            if self.random.random() >= self.loss:
                self.letters.append((self.now_ms + self.delay(), event))

    def delay(self) -> int:
        return 0 if self.random.random() < 0.7 else self.random.randrange(SOON_MS if self.calm_now else self.latest_ms)

    def asks(self, client: Client) -> None:
        """A heartbeat is due, unless one is under way."""
        if client.asking is not None and self.now_ms - client.asked_ms < CALL_MS:
            return
        if self.now_ms - client.asked_ms < BEAT_MS:
            return
        self.calls += 1
        client.asking, client.asked_ms = self.calls, self.now_ms
        self.send(client.fake.beat(self.calls) if client.registered else client.fake.registers(self.calls))

    def works(self, client: Client) -> None:
        """Its first order, at the slots."""
        order = client.fake.inbox[0]
        admits: set[TopicPartition] = set()
        places = self.table().slots
        epoch = order.rebalance_id >> 32
        for partition, place in order.partitions if order.op is RebalanceOp.CONNECT else ():
            reads = self.lease(partition)
            self.seen["410"] += reads not in (None, client)
            if reads in (None, client) and places[partition.slot] == place:
                admits.add(partition)
        status = OrderStatus.DONE
        if self.random.random() < 0.05 and not self.calm_now:
            status = self.random.choice([OrderStatus.FAILED, OrderStatus.TODO, OrderStatus.PROCESSING])
            client.odd_ms = self.now_ms
        before = set(client.fake.held)
        client.fake.works(admits, status)
        for partition in set(client.fake.held) - before:
            self.leases[partition] = Lease(client, self.now_ms)
            client.since[partition] = epoch, self.now_ms
        for partition in before - set(client.fake.held):
            if self.lease(partition) is client:
                del self.leases[partition]

    def beats_at_slots(self, client: Client) -> None:
        """What its slots refuse is taken from it. Where a slot has no answer, it goes on trying."""
        places = self.table().slots
        for partition, place in list(client.fake.held.items()):
            if places[partition.slot] != place:
                continue
            if self.lease(partition) is client:
                self.leases[partition].beaten_ms = self.now_ms
            else:
                del client.fake.held[partition]
                self.seen["taken"] += 1

    # ---- time

    calm_now = False

    def turn(self) -> None:
        """A second or so goes by."""
        self.now_ms += self.random.randrange(200, 2_000)
        if self.now_ms >= self.next_balance_ms:
            self.next_balance_ms = self.now_ms + BALANCE_MS
            self.step(BalanceDue())
        for client in self.there():
            if client.paused or client.stuck:
                client.odd_ms = self.now_ms
            if client.runs:
                self.beats_at_slots(client)
                while client.fake.inbox and not client.stuck and (self.calm_now or self.random.random() < 0.5):
                    self.works(client)
                self.asks(client)
        due = [each for each in self.letters if each[0] <= self.now_ms]
        self.letters = [each for each in self.letters if each[0] > self.now_ms]
        for _, letter in due:
            self.arrives(letter)

    def arrives(self, letter: MasterEvent | tuple[str, MasterEffect]) -> None:
        if isinstance(letter, tuple):
            self.answered(self.clients[letter[0]], letter[1])
            return
        assert isinstance(letter, ConsumerRegisters | ConsumerBeats | ConsumerCloses)
        last = self.accepted.get(letter.client_id)
        effects = self.step(letter, letter.client_id)
        answers = [each for each in effects if isinstance(each, ConsumerAnswer | RefuseClient | TellClosed)]
        if [each.call for each in answers] != [letter.call]:
            raise BrokenPromise(f"{letter} is answered by {answers}")
        if isinstance(answers[0], ConsumerAnswer):
            silent = last is None or self.now_ms - last >= CLIENT_MS
            if isinstance(letter, ConsumerBeats) and silent:
                raise BrokenPromise(f"{letter} is taken, after {last}")
            self.accepted[letter.client_id] = self.now_ms
        if self.random.random() >= self.loss:
            self.letters.append((self.now_ms + self.delay(), (letter.client_id, answers[0])))

    def answered(self, client: Client, answer: MasterEffect) -> None:
        assert isinstance(answer, ConsumerAnswer | RefuseClient | TellClosed)
        late = answer.call != client.asking or self.now_ms - client.asked_ms >= CALL_MS
        if late or not client.runs:  # a reply to a process that stands still has timed out when it goes on
            return
        client.asking = None
        if isinstance(answer, RefuseClient):
            self.seen[answer.reason.name] += 1
            if answer.reason is GroupRefusal.NO_NODE:
                client.registered, client.asked_ms = False, -BEAT_MS
        elif isinstance(answer, ConsumerAnswer):
            client.registered = True
            if answer.order is not None:
                client.fake.told(answer.order)

    # ---- what happens

    def something(self) -> None:
        chance = self.random.random()
        if chance < 0.02:
            self.lead()
        elif chance < 0.04:
            self.changes_table()
        elif chance < 0.10 and len(self.there()) < self.most:
            self.comes()
        elif chance < 0.20 and self.there():
            client = self.random.choice(self.there())
            self.tell(f"{client.name} ...")
            match self.random.randrange(5):
                case 0:
                    client.alive = False
                case 1:
                    client.alive = False
                    self.calls += 1
                    self.leases = {p: lease for p, lease in self.leases.items() if lease.client is not client}
                    self.send(ConsumerCloses(self.calls, client.name, "g"))
                case 2:
                    client.paused = not client.paused
                case 3:
                    client.stuck = not client.stuck
                case 4:
                    client.registered = False  # its connection is lost

    def changes_table(self) -> None:
        if self.random.random() < 0.5:
            self.more = 0 if self.more else self.random.randrange(1, self.partitions)
        else:
            self.ports += 100
            self.leases.clear()
        self.step(TableKnown(self.table()))

    def walk(self, turns: int) -> None:
        for _ in range(turns):
            self.turn()
            if self.random.random() < 0.3:
                self.something()
        self.seen.update({how.name: many for how, many in self.log.frees.items()}, grants=self.log.grants)

    def calm(self) -> None:
        """Nothing goes wrong any more: after what was silent is over, two balances settle everything."""
        self.loss = self.doubling = 0.0
        self.calm_now = True
        for client in self.clients.values():
            client.paused = client.stuck = False
        if not self.there():
            self.comes()
        until = self.now_ms + ORDER_MS + CLIENT_MS + BALANCE_MS
        while self.now_ms < until:
            self.turn()
        until = self.next_balance_ms + 2 * BALANCE_MS
        while self.now_ms < until:
            self.turn()
        self.look_at_all()

    def look_at_all(self) -> None:
        """Every partition is owned by exactly one, who reads it where it is, and the shares are fair."""
        there, clients = self.table().partitions("tu"), self.there()
        held = Counter(p for each in clients for p in each.fake.held)
        if held != Counter(there):
            raise BrokenPromise(f"held are {sorted(held.items())}")
        for client in clients:
            for partition, place in client.fake.held.items():
                if self.log.holder.get(partition) != client.name or self.lease(partition) is not client:
                    raise BrokenPromise(f"{client.name} has {partition} of {self.log.holder.get(partition)}")
                if place != SlotPlace("127.0.0.1", self.ports + partition.slot):
                    raise BrokenPromise(f"{client.name} has {partition} at {place}")
        least = len(there) // len(clients)
        if not {len(each.fake.held) for each in clients} <= {least, least + bool(len(there) % len(clients))}:
            raise BrokenPromise(f"shares of {[len(each.fake.held) for each in clients]}")
