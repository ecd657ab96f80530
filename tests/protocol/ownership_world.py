"""A small world for ``OwnershipMachine``: processes of a few actors, one log with its locks, ZooKeeper, a manager.

Nothing is in time here by itself: every message waits until the walk has it arrive, late or never; clocks run at
different speeds, processes stop and go on, die, and are replaced while they still run. What is promised is checked as
it happens (``Broken``).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.protocol.units import Halving, Slice
from waltz_ray.protocol import ownership_types as t
from waltz_ray.protocol.arrangement import arrange, first_table, split
from waltz_ray.protocol.ownership import OwnershipMachine
from waltz_ray.protocol.ownership_rules import chain

KEYS = 8
SPLITTING = Halving(2, KEYS)
SESSION_S, MARGIN_S = 10.0, 2.1
SLOWEST, FASTEST = 0.8, 1.2  # clocks, of which the margin has to take care

CHANNELS = ("log", "answers", "fold", "zookeeper", "contacts", "session", "views")
PACES = (0.05, 0.3, 0.8, 0.95)  # how probable it is that something that is on its way arrives in a turn


class Broken(AssertionError):
    """What was promised does not hold."""


class Claimed(NamedTuple):
    """What the fold keeps of a unit."""

    actor: int
    incarnation: str
    epoch: int
    released: bool = False


@dataclass
class Record:
    """One transaction. ``claim``: of OWN and RELEASE. ``base``: the version of the key that a SET was decided by."""

    kind: str
    writer: Process
    unit: Slice | None = None
    claim: Claimed | None = None
    key: int = -1
    base: int = -1


@dataclass
class Append:
    """On its way: to the log, then back. ``answer``: its ID; or, if it was refused, -2 - the ID of the other."""

    record: Record
    mark: int
    checks: list[Slice]
    updates: list[Slice]
    answer: int | None = None


@dataclass
class Contact:
    """A write to the own node, on its way to ZooKeeper, then back."""

    incarnation: str
    session: int
    sent_at_s: float
    arrived: bool = False


def covers(unit: Slice, key: int) -> bool:
    return key % unit.level == unit.rest


class Process:
    """One process of an actor: the machine, and what a keeper does."""

    def __init__(self, world: World, actor: int, number: int) -> None:
        self.world, self.actor, self.number = world, actor, number
        self.pace = dict.fromkeys(CHANNELS, 0.8)
        self.rate = world.random.choice([SLOWEST, 1.0, FASTEST])
        self.machine: OwnershipMachine[Slice] = OwnershipMachine(actor, SPLITTING, SESSION_S, MARGIN_S)
        self.alive, self.paused, self.cut = True, False, False
        self.session: int | None = None
        self.mark = -1
        self.caught_up_at = len(world.log) - 1
        self.versions: dict[int, int] = {}
        self.appends: list[Append] = []
        self.waiting: list[tuple[Append, int]] = []  # answered, and the fold has to come to an ID
        self.stopping: list[Slice] = []
        self.contacts: list[Contact] = []
        self.asking: dict[int, str] | None = None  # ConfirmMembers: what was read
        self.asked = False
        self.table_seen, self.members_seen = -1, -1
        if self.caught_up_at < 0:
            self.step(t.FoldCaughtUp())

    def __repr__(self) -> str:
        return f"{self.actor}.{self.number}"

    def clock(self) -> float:
        return 1000.0 * self.number + self.world.now * self.rate

    # ---- the machine

    def step(self, event: t.OwnershipEvent[Slice]) -> None:
        effects = self.machine.step(event)
        self.world.tell(self, event, effects)
        wrong = self.machine.broken()
        if wrong:
            raise Broken(wrong)
        for effect in effects:
            match effect:
                case t.Take(unit, incarnation, epoch, coarser):
                    claim = Claimed(self.actor, incarnation, epoch)
                    locks = [unit, *coarser]
                    self.send(Record("own", self, unit, claim), locks, [unit, *chain(SPLITTING, unit)[1:]])
                case t.ReleaseUnit(unit, incarnation, epoch, held):
                    claim = Claimed(self.actor, incarnation, epoch, True)
                    self.send(Record("release", self, unit, claim), [held], [])
                case t.StopServing(unit, _):
                    self.stopping.append(unit)
                case t.ConfirmMembers():
                    self.asked = True
        self.look_for_drained()

    def send(self, record: Record, checks: list[Slice], updates: list[Slice]) -> None:
        self.appends.append(Append(record, mark_of(self), checks, updates))

    def under_way(self, unit: Slice) -> bool:
        return any(
            each.record.kind in ("set", "barrier") and covers(unit, each.record.key)
            for each in [*self.appends, *(waiting for waiting, _ in self.waiting)]
        )

    def look_for_drained(self) -> None:
        done = [unit for unit in self.stopping if drained(self, unit)]
        self.stopping = [unit for unit in self.stopping if unit not in done]
        for unit in done:
            self.step(t.Drained(unit))

    # ---- the fold

    def fold(self, many: int) -> None:
        """So many transactions in one step of the fold."""
        claims: dict[Slice, Claimed] = {}
        until = min(self.mark + many, len(self.world.log) - 1)
        caught_up = self.mark < self.caught_up_at <= until
        for at in range(self.mark + 1, until + 1):
            record = self.world.log[at]
            if record.kind == "set":
                self.versions[record.key] = at
            elif record.unit is not None and record.claim is not None:
                claims[record.unit] = record.claim
        self.mark = max(self.mark, until)
        tell_claims(self, claims)
        if caught_up:
            self.step(t.FoldCaughtUp())
        ready = [each for each in self.waiting if each[1] <= self.mark]
        self.waiting = [each for each in self.waiting if each[1] > self.mark]
        for append, _ in ready:
            self.settled(append)

    def answered(self, append: Append) -> None:
        """Its fate is known; what follows waits for the fold."""
        self.appends.remove(append)
        assert append.answer is not None
        if append.answer >= 0 and append.record.kind in ("own", "release"):
            unit = append.record.unit
            assert unit is not None
            self.step(t.TakeDone(unit, append.answer) if append.record.kind == "own" else t.ReleaseDone(unit))
            return
        needed = append.answer if append.answer >= 0 else -2 - append.answer
        if needed <= self.mark:
            self.settled(append)
        else:
            self.waiting.append((append, needed))

    def settled(self, append: Append) -> None:
        record, done = append.record, append.answer is not None and append.answer >= 0
        if record.unit is not None:
            self.step(t.TakeRefused(record.unit) if record.kind == "own" else t.ReleaseRefused(record.unit))
        elif record.kind == "set":
            if done:
                assert append.answer is not None
                self.world.acknowledge(record.key, append.answer)
            elif self.held(record.key) is not None:
                self.write(record.key)
        elif done and still_holds(self, record.key):
            found = self.versions.get(record.key, -1)
            assert append.answer is not None
            if found > append.answer and self.world.log[found].writer.actor != self.actor:
                raise Broken(f"{self} tells of version {found}, of a successor that may not have folded it yet")
            self.world.answer_read(self, record.key, record.base)
        self.look_for_drained()

    def lose(self, append: Append) -> None:
        """Nobody can say whether it is in the log, or will be."""
        self.appends.remove(append)
        self.world.lost.append(append)
        unit = append.record.unit
        assert unit is not None
        self.step(t.TakeRefused(unit) if append.record.kind == "own" else after_a_lost_release(unit))

    # ---- commands

    def held(self, key: int) -> Slice | None:
        return self.machine.held(Slice(self.machine.level, key % self.machine.level))

    def write(self, key: int) -> None:
        held = self.held(key)
        busy = any(each.record.kind == "set" and each.record.key == key for each in self.appends)
        if held is None or busy or any(a.record.key == key and a.record.kind == "set" for a, _ in self.waiting):
            return
        record = Record("set", self, key=key, base=self.versions.get(key, -1))
        self.send(record, locks_of_a_write(held), [])

    def read(self, key: int) -> None:
        held = self.held(key)
        if held is None:
            return
        if self.machine.may_read(Slice(self.machine.level, key % self.machine.level), self.clock()):
            self.world.check_lease(self, self.machine.claims[held].incarnation)
            self.world.answer_read(self, key, self.world.newest.get(key, -1))
        else:
            self.send(Record("barrier", self, key=key, base=self.world.newest.get(key, -1)), locks_of_a_write(held), [])

    # ---- ZooKeeper

    def look_at_zookeeper(self) -> None:
        """What its client does by itself: keep the session, or begin anew and register again."""
        world = self.world
        if self.session is not None and self.session not in world.sessions:
            self.session = None
            self.step(t.Unregistered())
        if self.session is None:
            self.session = world.new_session()
        world.sessions[self.session] = world.now
        node = world.members.get(self.actor)
        if node is not None and node.session == self.session:
            return
        if self.machine.incarnation is not None:
            self.step(t.Unregistered())
        if node is None or may_register_over(self):
            incarnation = f"i{world.count()}"
            world.register(self.actor, Node(incarnation, self.session))
            self.step(t.RegisteredAs(incarnation))

    def contact(self) -> None:
        if self.machine.incarnation is not None and self.session is not None:
            self.contacts.append(Contact(self.machine.incarnation, self.session, self.clock()))

    def contact_answered(self, contact: Contact) -> None:
        self.contacts.remove(contact)
        self.step(t.LeaseConfirmed(contact.incarnation, counted_from(self, contact)))

    def see(self, table: int, members: int) -> None:
        """Watches: the states with these numbers, those in between are skipped."""
        if table > self.table_seen:
            self.table_seen = table
            self.step(t.TableSeen(self.world.tables[table]))
        if members > self.members_seen:
            self.members_seen = members
            self.step(t.MembersSeen(self.world.history[members]))


# ---- what a keeper has to see to, each by its name (the mutations break them)


def tell_claims(process: Process, claims: dict[Slice, Claimed]) -> None:
    """All at once."""
    if claims:
        process.step(t.OwnersFolded(tuple(claims.items())))


def after_a_lost_release(unit: Slice) -> t.OwnershipEvent[Slice]:
    return t.ReleaseLost(unit)


def mark_of(process: Process) -> int:
    """The client mark of an append: up to where the machine has been told what is folded."""
    return process.mark


def locks_of_a_write(held: Slice) -> list[Slice]:
    """Read locks."""
    return [held]


def still_holds(process: Process, key: int) -> bool:
    """After a barrier was folded: whether the answer may still be given."""
    return process.held(key) is not None


def drained(process: Process, unit: Slice) -> bool:
    return not process.under_way(unit)


def counted_from(process: Process, contact: Contact) -> float:
    """The moment that a lease is counted from."""
    return contact.sent_at_s


def may_register_over(process: Process) -> bool:
    """Whether a process may take the place of a node that is there, its predecessor's."""
    return False


@dataclass
class Node:
    """A registration."""

    incarnation: str
    session: int


@dataclass
class World:
    """``walk`` does random things; ``calm`` lets everything settle and looks whether everything is served."""

    seed: int
    actors: int = 3
    trace: list[str] | None = None
    now: float = 0.0
    log: list[Record] = field(default_factory=list)
    locks: dict[Slice, int] = field(default_factory=dict)
    claims: dict[Slice, Claimed] = field(default_factory=dict)
    owned_at: dict[Slice, int] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    newest: dict[int, int] = field(default_factory=dict)  # version of a key that somebody has been told of
    sessions: dict[int, float] = field(default_factory=dict)  # -> when last heard of
    members: dict[int, Node] = field(default_factory=dict)
    history: list[dict[int, str]] = field(default_factory=lambda: [{}])
    tables: list[t.UnitTable[Slice]] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    lost: list[Append] = field(default_factory=list)
    counted: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.hot = self.random.sample(range(KEYS), 2)
        self.tables.append(first_table(SPLITTING, 1))
        for actor in range(self.actors):
            self.start(actor)

    def tell(self, who: object, *what: object) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now:8.2f} {who}: {' '.join(map(str, what))}")

    def count(self) -> int:
        self.counted += 1
        return self.counted

    # ---- the log

    def arrive(self, append: Append) -> None:
        last = max([-1, *(self.locks.get(lock, -1) for lock in append.checks)])
        if last > append.mark:
            append.answer = -2 - last
            return
        append.answer = len(self.log)
        self.tell("log", append.answer, append.record.kind, append.record.writer, append.record.unit, append.record.key)
        self.check(append.record, append.mark)
        self.log.append(append.record)
        if append.record.kind == "set":
            self.versions[append.record.key] = append.answer
        if append.record.unit is not None and append.record.claim is not None:
            self.claims[append.record.unit] = append.record.claim
            if append.record.kind == "own":
                self.owned_at[append.record.unit] = append.answer
        for lock in append.updates:
            self.locks[lock] = append.answer

    def check(self, record: Record, mark: int) -> None:
        """What the log promises of what is in it."""
        if record.kind == "own":
            before = self.owner_of(record.unit)
            assert record.claim is not None
            assert record.unit is not None
            for other, at in self.owned_at.items():
                if at > mark and (other in chain(SPLITTING, record.unit) or record.unit in chain(SPLITTING, other)):
                    raise Broken(f"{record.writer} takes {record.unit} and does not know of {other}")
            if before is not None and (before.epoch, before.actor) > (record.claim.epoch, record.claim.actor):
                same = before.epoch == record.claim.epoch
                raise Broken(f"epoch {record.claim.epoch} after {before.epoch}" + (" of another" if same else ""))
        elif record.kind in ("set", "barrier"):
            owner = self.owner_of(Slice(KEYS, record.key))
            if owner is None or owner.actor != record.writer.actor or owner.released:
                raise Broken(f"{record.writer} writes what {owner} has")
            if record.kind == "set" and record.base != self.version(record.key):
                raise Broken(f"{record.writer} decided by version {record.base} of {self.version(record.key)}")

    def owner_of(self, unit: Slice | None) -> Claimed | None:
        """What the log says: of the unit itself, or else of the next coarser one."""
        assert unit is not None
        above = chain(SPLITTING, unit)
        return next((self.claims[each] for each in above if each in self.claims), None)

    def version(self, key: int) -> int:
        return self.versions.get(key, -1)

    def acknowledge(self, key: int, version: int) -> None:
        self.newest[key] = max(version, self.newest.get(key, -1))

    def check_lease(self, process: Process, incarnation: str) -> None:
        """Whoever reads without asking the log is still registered as what he took the unit as."""
        node = self.members.get(process.actor)
        if node is None or node.incarnation != incarnation:
            raise Broken(f"{process} reads under a lease of {incarnation}, which is gone")

    def answer_read(self, process: Process, key: int, floor: int) -> None:
        found = process.versions.get(key, -1)
        self.tell(process, "reads", key, "as", found)
        if found < floor:
            raise Broken(f"{process} reads version {found} of {key}, {floor} was known")
        self.acknowledge(key, found)

    # ---- ZooKeeper and the manager

    def new_session(self) -> int:
        session = self.count()
        self.sessions[session] = self.now
        return session

    def register(self, actor: int, node: Node) -> None:
        self.members[actor] = node
        self.changed()

    def changed(self) -> None:
        self.history.append({actor: node.incarnation for actor, node in self.members.items()})

    def expire(self) -> None:
        """Sessions that were not heard of for too long."""
        for session, heard in list(self.sessions.items()):
            if self.now >= heard + SESSION_S:
                del self.sessions[session]
                gone = [actor for actor, node in self.members.items() if node.session == session]
                for actor in gone:
                    self.tell("zookeeper", actor, self.members.pop(actor).incarnation, "is gone")
                    self.changed()

    def contact_arrives(self, process: Process, contact: Contact) -> None:
        node = self.members.get(process.actor)
        if contact.session not in self.sessions or node is None or node.incarnation != contact.incarnation:
            process.contacts.remove(contact)
            return
        self.sessions[contact.session] = self.now
        contact.arrived = True

    def manage(self, leaving: frozenset[int] = frozenset()) -> None:
        """The manager: who is proven dead is removed, and the table is written."""
        for actor, node in list(self.members.items()):
            running = [p for p in self.processes if p.actor == actor and p.alive]
            if not running:
                self.tell("manager", "removes", actor, node.incarnation)
                del self.members[actor]
                self.changed()
        self.write(arrange(SPLITTING, self.tables[-1], self.members.keys() - leaving, 1))

    def split(self) -> None:
        if self.tables[-1].level < KEYS:
            self.write(split(SPLITTING, self.tables[-1]))

    def write(self, table: t.UnitTable[Slice]) -> None:
        if table != self.tables[-1]:
            self.tell("manager", table)
            self.tables.append(table)

    # ---- processes

    def start(self, actor: int) -> None:
        process = Process(self, actor, self.count())
        self.processes.append(process)

    def kill(self, process: Process) -> None:
        """What it has sent may still arrive."""
        process.alive = False

    def running(self) -> list[Process]:
        return [p for p in self.processes if p.alive and not p.paused]

    # ---- the walk

    def walk(self, steps: int) -> None:
        for _ in range(steps):
            self.now += self.random.expovariate(8.0)
            self.expire()
            self.happen()
            for process in list(self.processes):
                if self.chance(0.5):
                    self.move(process)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def happen(self) -> None:
        """What is seldom: the manager, and faults."""
        if self.chance(0.2):
            self.manage(frozenset([self.random.randrange(self.actors)] if self.chance(0.3) else []))
        if self.chance(0.01):
            self.split()
        for append in [a for a in self.lost if a.answer is None]:
            if self.chance(0.05):
                self.arrive(append)
        process = self.random.choice(self.processes)
        if not process.alive:
            return
        process.paused ^= self.chance(0.15 if process.paused else 0.04)
        process.cut ^= self.chance(0.05)
        if self.chance(0.05):
            process.pace = {channel: self.random.choice(PACES) for channel in CHANNELS}
        if process.number == max(p.number for p in self.processes if p.actor == process.actor):
            if self.chance(0.01):
                self.kill(process)
                self.start(process.actor)
            elif process.paused and self.chance(0.03):  # taken for dead, and replaced, while it lives
                self.start(process.actor)

    def move(self, process: Process) -> None:
        """A little of everything goes on, each at the pace that it has just now."""
        pace = process.pace
        for append in [a for a in process.appends if a.answer is None]:
            if self.chance(pace["log"]):
                self.arrive(append)
        if not process.cut and process.alive:
            for contact in [c for c in process.contacts if not c.arrived]:
                if self.chance(pace["zookeeper"]):
                    self.contact_arrives(process, contact)
            if process.asked and process.asking is None and self.chance(pace["zookeeper"]):
                self.confirm(process)
        if process.alive and not process.paused:
            self.work(process)

    def work(self, process: Process) -> None:
        pace = process.pace
        for append in [a for a in process.appends if a.record.unit is not None]:
            if self.chance(0.02):
                process.lose(append)
        for append in [a for a in process.appends if a.answer is not None]:
            if self.chance(pace["answers"]):
                process.answered(append)
        if self.chance(pace["fold"]):
            process.fold(self.random.choice([1, 2, 8]))
        for contact in [c for c in process.contacts if c.arrived]:
            if self.chance(pace["contacts"]):
                process.contact_answered(contact)
        if not process.cut:
            if self.chance(pace["session"]):
                process.look_at_zookeeper()
            if self.chance(0.5):
                process.contact()
            if self.chance(pace["views"]):
                self.show(process)
            if process.asking is not None:
                self.confirmed(process)
        process.write(self.key())
        process.read(self.key())
        process.read(self.key())

    def key(self) -> int:
        return self.random.choice(self.hot) if self.chance(0.8) else self.random.randrange(KEYS)

    def confirm(self, process: Process) -> None:
        process.asking = {actor: node.incarnation for actor, node in self.members.items()}

    def confirmed(self, process: Process) -> None:
        members, process.asking, process.asked = process.asking or {}, None, False
        process.step(t.MembersConfirmed(members))

    def show(self, process: Process) -> None:
        """Its watches, which may be behind and skip states."""
        table = self.random.randint(max(0, process.table_seen), len(self.tables) - 1)
        members = self.random.randint(max(0, process.members_seen), len(self.history) - 1)
        process.see(table, members)

    # ---- the end

    def calm(self) -> None:
        """No faults any more: soon everything is served once, by whom the table names, and can be read."""
        for process in self.processes:
            process.paused = process.cut = False
        newest = {p.actor: p for p in self.processes}
        for process in self.processes:
            if process is not newest[process.actor]:
                self.kill(process)
        for _ in range(60):
            self.now += 1.0
            self.expire()
            self.manage()
            self.turn()
        for key in range(KEYS):
            self.everything_is_served(key)

    def turn(self) -> None:
        for process in self.processes:
            for append in [a for a in process.appends if a.answer is None]:
                self.arrive(append)
        for process in self.running():
            process.look_at_zookeeper()
            process.contact()
            for contact in list(process.contacts):
                if not contact.arrived:
                    self.contact_arrives(process, contact)
            for contact in list(process.contacts):
                process.contact_answered(contact)
            process.see(len(self.tables) - 1, len(self.history) - 1)
            if process.asked:
                self.confirm(process)
                self.confirmed(process)
            for append in [a for a in process.appends if a.answer is not None]:
                process.answered(append)
            process.fold(10_000)

    def everything_is_served(self, key: int) -> None:
        level = self.tables[-1].level
        unit = Slice(level, key % level)
        primary = self.tables[-1].places[unit].primary
        serving = [p.actor for p in self.running() if p.machine.serving(unit)]
        if serving != [primary]:
            raise Broken(f"{unit} is served by {serving}, the table names {primary}")
        (owner,) = [p for p in self.running() if p.actor == primary]
        if not owner.machine.may_read(unit, owner.clock()) or owner.machine.held(unit) != unit:
            raise Broken(f"{unit} cannot be read, or is held as {owner.machine.held(unit)}")
        for other in self.running():
            if other is not owner and other.machine.holder(unit) != primary:
                raise Broken(f"{other} sends those who ask for {unit} to {other.machine.holder(unit)}, not {primary}")
        owner.read(key)
