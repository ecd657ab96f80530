"""A partition's log, the store of a group's offset, brokers that may be deposed without knowing it, and consumers that
die, are silent, lose answers, and ask the wrong broker. ``Broken``: something happened that must not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from waltz_ray.topics import delivery_types as t
from waltz_ray.topics.codes import TopicCode
from waltz_ray.topics.delivery import Delivery

__all__ = ["LIMITS", "Broken", "DeliveryWorld"]

LIMITS = t.DeliveryLimits(lease_ms=30_000, waiting=6, batch_messages=3, reads=2, skipped=12)
START_MS = 1_700_000_000_000


class Broken(AssertionError):
    """A promise was."""


class Broker:
    """A machine, what it was last promised, and the orders it waits for."""

    def __init__(self) -> None:
        self.machine = Delivery(LIMITS)
        self.orders: list[t.TakeOffset | t.StoreOffset | t.ReadBatch] = []
        self.holder = ""
        self.sign_ms = 0
        self.epoch = 0
        self.batches: dict[int, tuple[int, ...]] = {}  # delivered and not confirmed: offset -> messages

    @property
    def work(self) -> Any:
        return self.machine._work


class Consumer:
    """Sends one request at a time, or another one behind a pull, and says consumed only of what it has been given.
    ``reader``: it reads the log itself, and says how far it is."""

    def __init__(self, name: str, manual: bool, broker: Broker, reader: bool = False) -> None:
        self.name = name
        self.manual = manual
        self.reader = reader
        self.position = 0  # of a reader
        self.has_it = False
        self.held: list[int] = []
        self.confused = (
            True  # what was delivered may be more than it knows of: it has not registered, an answer was lost
        )
        self.token = 0  # of the request that it waits for
        self.said: list[int] = []  # what that request says it has consumed
        self.keeps: list[int] = []  # of ``held``, what it had before it registered again: it comes again
        self.broker: Broker = broker

    def forget(self) -> None:
        self.has_it, self.held, self.confused, self.token, self.said, self.keeps = False, [], True, 0, [], []


class DeliveryWorld:
    """``seed`` decides about everything."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.now = START_MS
        self.log: list[str] = []
        self.first = 0
        self.offset: int | None = None
        self.epoch = 0
        self.brokers = [Broker()]
        self.consumers = [self.new_consumer(f"c{n}") for n in range(3)]
        self.filters = frozenset({"a"}) if self.chance.random() < 0.4 else frozenset()
        self.jumps = self.chance.random() < 0.3  # whether somebody resets offsets, or asks for some
        self.requests: dict[int, tuple[Consumer | None, t.DeliveryRequest | t.LeaseRenewed]] = {}
        self.tokens = 0
        self.late: list[tuple[Broker, t.ProgressAsked]] = []  # words of readers that their broker waits with
        self.said: set[int] = set()
        self.excused: set[int] = set()
        self.safe: set[int] = set()
        kinds = (
            "delivered",
            "again",
            "fenced",
            "unknown",
            "lost",
            "occupied",
            "trimmed",
            "read",
            "hurried",
            "late",
            "kept",
        )
        self.seen = dict.fromkeys(kinds, 0)

    def new_consumer(self, name: str) -> Consumer:
        kind = self.chance.random()
        return Consumer(name, kind < 0.4, self.brokers[-1], kind > 0.8)

    # ---- walking

    def walk(self, steps: int) -> None:
        for _ in range(steps):
            self.now += self.chance.choice((0, 1, 50, 1000, 4000))
            chosen = self.chance.random()
            if chosen < 0.15:
                self.log += self.chance.choices("ab", k=self.chance.randint(1, 4))
            elif chosen < 0.17:
                self.first = self.chance.randint(self.first, min(len(self.log), self.first + 8))
            elif chosen < 0.19:
                self.brokers = [*self.brokers[-1:], Broker()]
            elif chosen < 0.20:
                self.now += LIMITS.lease_ms
            elif chosen < 0.21 and self.jumps:
                self.reset()
            elif chosen < 0.24:
                self.tell(self.chance.choice(self.brokers), t.LeasesDue())
            elif chosen < 0.26 and self.late:
                self.tell(*self.late.pop(self.chance.randrange(len(self.late))))
            elif chosen < 0.6 and (busy := [broker for broker in self.brokers if broker.orders]):
                self.carry_out(self.chance.choice(busy), self.chance.random() < 0.1)
            else:
                self.act(self.chance.choice(self.consumers))

    def calm(self) -> None:
        """No fault any more: one consumer comes, and has everything within a few rounds."""
        broker = self.brokers[-1]
        for each in self.consumers:
            each.forget()
        self.drain(broker)
        self.now += LIMITS.lease_ms
        self.tell(broker, t.LeasesDue())
        last = Consumer("last", False, broker)
        for _ in range(2):  # another broker may have had it meanwhile: then the first try is told so
            self.ask(last, broker, t.PartitionWanted(self.token(), last.name, 0, t.NO_OFFSET, self.filters))
            self.drain(broker)
        if not last.has_it:
            raise self.broken("nobody can have the partition")
        for _ in range(2 * len(self.log) + 2):
            self.pull(last, broker)
            self.drain(broker)
        wanted = {at for at in range(self.first, len(self.log)) if self.wants(at)}
        if missing := wanted - self.said - self.excused:
            raise self.broken(f"never consumed: {sorted(missing)}")
        if broker.machine.status().waiting:
            raise self.broken("requests without answers")

    def drain(self, broker: Broker) -> None:
        while broker.orders:
            self.carry_out(broker, False)

    # ---- consumers

    def act(self, consumer: Consumer) -> None:
        chance = self.chance.random()
        if consumer.token:
            if chance < 0.1:  # it waits no longer
                consumer.token, consumer.confused, consumer.said = 0, True, []
            elif chance < 0.3:
                self.hurry(consumer)
            return
        if chance < 0.02:
            self.consumers.remove(consumer)  # killed, and started again: it has another name then
            self.consumers.append(self.new_consumer(f"again{self.token()}"))
            return
        if consumer.broker not in self.brokers or chance < 0.05:
            broker = self.brokers[self.chance.choice((0, -1, -1, -1))]
            if broker is not consumer.broker:  # what it had from another it does not confirm here
                consumer.forget()
                consumer.broker = broker
        broker = consumer.broker
        if not consumer.has_it and chance < 0.9:
            status, offset = 0, t.NO_OFFSET
            if self.jumps and chance < 0.3:
                status, offset = self.chance.choice(((1, -1), (2, -1), (0, self.chance.randint(0, len(self.log) + 1))))
            self.ask(consumer, broker, t.PartitionWanted(self.token(), consumer.name, status, offset, self.filters))
        elif chance < 0.2:
            self.ask(consumer, broker, t.LeaseRenewed(self.token(), consumer.name))
        elif chance < 0.24:
            # Who reads has said how far, or has not; what comes again is not to be had by letting go.
            consumed = not consumer.confused and not consumer.reader and not consumer.keeps
            self.say(consumer, consumed)
            self.ask(consumer, broker, t.PartitionGivenBack(self.token(), consumer.name, consumed))
        elif consumer.manual and consumer.held and chance < 0.3:  # its master has told it so once more
            consumer.keeps = consumer.held
            self.seen["kept"] += 1
            self.ask(consumer, broker, t.PartitionWanted(self.token(), consumer.name, 0, t.NO_OFFSET, self.filters))
        elif consumer.reader:
            self.read_on(consumer, broker)
        elif consumer.manual and (consumer.confused or chance < 0.5):
            consumed = not consumer.confused and chance < 0.45
            self.say(consumer, consumed)
            consumer.confused = False
            self.ask(consumer, broker, t.ConfirmAsked(self.token(), consumer.name, consumed))
        else:
            self.pull(consumer, broker)

    def pull(self, consumer: Consumer, broker: Broker) -> None:
        consumed = not consumer.confused and self.chance.random() < 0.8
        if not consumer.manual:
            self.say(consumer, consumed)
            consumer.confused = False
        self.ask(consumer, broker, t.PullAsked(self.token(), consumer.name, consumed, consumer.manual))

    def hurry(self, consumer: Consumer) -> None:
        """While it waits for a pull it asks for something else, and says consumed of what it had before."""
        if consumer.confused or not isinstance(self.requests[consumer.token][1], t.PullAsked):
            return
        self.seen["hurried"] += 1
        said = [*consumer.said, *consumer.held]
        self.say(consumer, True)
        consumer.said = said
        if self.chance.random() < 0.2:
            self.ask(consumer, consumer.broker, t.PartitionGivenBack(self.token(), consumer.name, True))
        elif consumer.manual:
            self.ask(consumer, consumer.broker, t.ConfirmAsked(self.token(), consumer.name, True))
        else:
            self.ask(consumer, consumer.broker, t.PullAsked(self.token(), consumer.name, True, False))

    def read_on(self, consumer: Consumer, broker: Broker) -> None:
        """Some of the log, or a word on what was read so far."""
        consumer.position = max(consumer.position, self.first)
        if consumer.has_it and self.chance.random() < 0.6:
            end = min(len(self.log), consumer.position + self.chance.randint(1, 5))
            consumer.held += [at for at in range(consumer.position, end) if self.wants(at)]
            consumer.position = end
            return
        offset = consumer.position if consumer.has_it else t.NO_OFFSET
        lag = len(self.log) - consumer.position
        self.say(consumer, consumer.has_it)
        self.seen["read"] += 1
        filtered, term = bool(self.filters), broker.machine.status().term
        request = t.ProgressAsked(self.token(), consumer.name, offset, 0, filtered, len(self.log), lag, term)
        if self.chance.random() < 0.1:  # it has come, and who has sent it goes on without an answer
            self.seen["late"] += 1
            consumer.said = []
            self.requests[request.token] = None, request
            self.late.append((broker, request))
        else:
            self.ask(consumer, broker, request)

    def say(self, consumer: Consumer, consumed: bool) -> None:
        if consumed:
            self.said.update(consumer.held)
            consumer.said = consumer.held
        consumer.held, consumer.keeps = [], []

    def token(self) -> int:
        self.tokens += 1
        return self.tokens

    def ask(self, consumer: Consumer, broker: Broker, request: t.DeliveryRequest | t.LeaseRenewed) -> None:
        consumer.token = request.token
        self.requests[request.token] = consumer, request
        sign = not isinstance(request, t.PartitionWanted | t.PartitionGivenBack) and broker.holder == consumer.name
        self.tell(broker, request)
        if sign:
            broker.sign_ms = self.now

    def reset(self) -> None:
        request = t.ResetAsked(self.token(), self.chance.randint(0, len(self.log) + 1))
        self.requests[request.token] = None, request
        self.tell(self.brokers[-1], request)

    # ---- brokers

    def tell(self, broker: Broker, event: t.DeliveryEvent) -> None:
        for effect in broker.machine.step(event, self.now):
            match effect:
                case t.PartitionLost(consumer, reason):
                    self.lost(broker, consumer, reason)
                case t.DeliveryReply():
                    self.answered(broker, effect)
                case _:
                    broker.orders.append(effect)

    def carry_out(self, broker: Broker, fails: bool) -> None:
        order = broker.orders.pop(self.chance.randrange(len(broker.orders)))
        match order:
            case t.ReadBatch():
                self.tell(broker, t.BatchNotRead(order.number, "it fails") if fails else self.read(order))
            case t.TakeOffset(number):
                if not fails or self.chance.random() < 0.5:
                    if broker.epoch != self.epoch:
                        broker.batches.clear()  # another has had it, and cut as it liked
                    self.epoch += 1
                    if not fails:
                        broker.epoch = self.epoch
                        self.tell(broker, t.OffsetTaken(number, self.offset, self.epoch, self.first, len(self.log)))
                        return
                self.unknown(broker, number)
            case t.StoreOffset(number, offset, epoch):
                if epoch != self.epoch and not (fails and self.chance.random() < 0.5):
                    self.seen["fenced"] += 1
                    broker.batches.clear()
                    self.tell(broker, t.OffsetFenced(number))
                    return
                if epoch == self.epoch and (not fails or self.chance.random() < 0.5):
                    self.store(broker, offset)
                    if not fails:
                        self.tell(broker, t.OffsetKept(number))
                        return
                self.unknown(broker, number)

    def unknown(self, broker: Broker, number: int) -> None:
        self.seen["unknown"] += 1
        if isinstance(broker.work.request, t.PartitionWanted | t.ResetAsked):
            broker.batches.clear()
        self.tell(broker, t.OffsetUnknown(number, "it fails"))

    def store(self, broker: Broker, offset: int) -> None:
        request = broker.work.request
        before, self.offset = self.offset, offset
        asked = isinstance(request, t.ResetAsked)
        if isinstance(request, t.PartitionWanted):
            asked = (
                request.offset != t.NO_OFFSET
                or (request.read_status > 0 and before is None)
                or request.read_status == 2
            )
        if asked:
            self.excused = set(range(offset))
            self.said &= self.excused  # all others come again
            self.safe.clear()
            broker.batches.clear()
            return
        if before is not None and offset < before:
            raise self.broken(f"the stored offset goes back from {before} to {offset}")
        skipped = {at for at in range(self.first, offset) if self.wants(at)} - self.said - self.excused
        if skipped:
            raise self.broken(f"stored {offset}, but nobody has consumed {sorted(skipped)}")

    def wants(self, at: int) -> bool:
        return not self.filters or self.log[at] in self.filters

    def read(self, order: t.ReadBatch) -> t.BatchRead | t.BatchTrimmed:
        if order.offset < self.first:
            self.seen["trimmed"] += 1
            return t.BatchTrimmed(order.number, self.first)
        end = len(self.log) if order.end is None else min(order.end, len(self.log))
        at = order.offset
        found: list[int] = []
        while at < min(end, order.offset + 6) and len(found) < order.max_messages:
            if self.wants(at):
                found.append(at)
            at += 1
        return t.BatchRead(order.number, found, at, len(self.log), len(found), len(self.log) - at)

    # ---- what is promised

    def lost(self, broker: Broker, consumer: str, reason: str) -> None:
        self.seen["lost"] += 1
        if consumer != broker.holder:
            raise self.broken(f"{consumer} loses what {broker.holder} has")
        if "sign of life" in reason and self.now - broker.sign_ms < LIMITS.lease_ms:
            raise self.broken(f"{consumer} loses it {self.now - broker.sign_ms} ms after a sign of life")
        broker.holder = ""

    def answered(self, broker: Broker, reply: t.DeliveryReply) -> None:
        consumer, request = self.requests.pop(reply.token)
        if consumer is None:
            return
        waits = consumer.token == reply.token
        said, had_it = (consumer.said, consumer.has_it) if waits else ([], False)
        if waits:
            consumer.token, consumer.said = 0, []
        if reply.code == TopicCode.PARTITION_OCCUPIED:
            self.seen["occupied"] += 1
        if isinstance(request, t.PartitionWanted):
            self.registered(broker, consumer, reply, waits)
            return
        if reply.code in (TopicCode.HB_NO_NODE, TopicCode.DUPLICATE_PARTITION, TopicCode.MOVED):
            if waits:
                consumer.forget()
            return
        if reply.code in (TopicCode.UNAVAILABLE, TopicCode.RECEIVE_OVERFLOW):
            consumer.confused = True
            if isinstance(request, t.PartitionGivenBack) and reply.code == TopicCode.UNAVAILABLE:
                self.let_go(broker, consumer)
            return
        confirms = isinstance(request, t.ConfirmAsked | t.ProgressAsked | t.PartitionGivenBack)
        if broker.holder != consumer.name and not confirms:
            raise self.broken(f"{consumer.name} is answered {reply.code}, but {broker.holder or 'nobody'} has it")
        nothing_new = reply.code == TopicCode.NOT_FOUND and isinstance(request, t.PullAsked)
        if (reply.code == TopicCode.OK or nothing_new) and said and had_it:
            self.promised(broker, said)
        if isinstance(request, t.PartitionGivenBack):
            self.let_go(broker, consumer)
            if waits:
                consumer.forget()
        elif isinstance(request, t.PullAsked) and reply.code == TopicCode.OK:
            self.delivered(broker, reply)
            if waits:
                consumer.held = [*([] if consumer.keeps else consumer.held), *self.ids(reply.messages)]
                consumer.keeps = []
            else:
                consumer.confused = True

    def registered(self, broker: Broker, consumer: Consumer, reply: t.DeliveryReply, waits: bool) -> None:
        if reply.code not in (TopicCode.OK, TopicCode.RECEIVE_OVERFLOW):
            self.let_go(broker, consumer)  # what it had before ended when it asked to begin anew
        if reply.code != TopicCode.OK:
            return
        if broker.holder not in ("", consumer.name):
            raise self.broken(f"{consumer.name} gets what {broker.holder} has")
        broker.holder, broker.sign_ms = consumer.name, self.now
        if waits:
            keeps = consumer.keeps
            consumer.forget()
            consumer.has_it, consumer.confused, consumer.position = True, False, reply.offset
            consumer.held = consumer.keeps = keeps

    @staticmethod
    def let_go(broker: Broker, consumer: Consumer) -> None:
        if broker.holder == consumer.name:
            broker.holder = ""

    def promised(self, broker: Broker, said: Sequence[int]) -> None:
        """It was answered that these are confirmed."""
        if (self.offset is None or max(said) >= self.offset) and broker.epoch == self.epoch and not self.jumps:
            raise self.broken(f"{max(said)} was said to be confirmed, and {self.offset} is stored")
        if self.offset is not None and not self.jumps:
            self.safe.update(at for at in said if at < self.offset)
        for offset, batch in list(broker.batches.items()):
            if set(batch) <= set(said):
                del broker.batches[offset]

    def delivered(self, broker: Broker, reply: t.DeliveryReply) -> None:
        self.seen["delivered"] += 1
        if broker.epoch != self.epoch:
            return  # it is deposed, and does not know it: nothing of this can be confirmed
        ids = self.ids(reply.messages)
        if twice := self.safe & set(ids):
            raise self.broken(f"delivered again, though confirmed: {sorted(twice)}")
        former = broker.batches.get(reply.offset)
        if former is not None and reply.offset >= self.first:
            self.seen["again"] += 1
            if former != ids:
                raise self.broken(f"{former} was delivered from {reply.offset}, and comes again as {ids}")
        broker.batches[reply.offset] = ids

    @staticmethod
    def ids(messages: Sequence[object]) -> tuple[int, ...]:
        return tuple(each for each in messages if isinstance(each, int))

    def broken(self, what: str) -> Broken:
        return Broken(f"seed {self.seed}: {what}")
