"""What a slot's owner does for one group that consumes one partition: ``step(event, now_ms) -> effects``. Pure.

One consumer of the group has the partition at a time, by a lease that its heartbeats and pulls renew; another is told
that it is occupied. A pull says whether what came before has been consumed: then the offset moves on, else the same
batches come again, exactly. Who pulls ahead (``manual``) says it for all of them with one confirm. A batch that nobody
has confirmed comes again, whoever has the partition next; only with another owner of the slot, who does not know how
the batches were cut, it may be cut otherwise.

The offset is stored elsewhere, under an epoch that every new consumer raises (``TakeOffset``). An answer that says that
something was confirmed waits until it is stored. If the epoch is another by then, this machine is not the one that
delivers any more: its consumer is told so (301), and nothing has moved. If nobody knows whether it was stored, the
answer is 503, what the consumer has said still counts here, and is stored with the next request.

Requests are worked off one after the other; each ends in one reply. Whoever wants to wait for data holds the pull back
until there is some: a pull here looks once.

``now_ms`` is of a clock that nobody sets: leases end by it, and waits. ``unix_ms`` says what time of the day it is, for
the rules of flow (None: ``now_ms`` does).
"""

from __future__ import annotations

from collections import deque

from waltz_ray.errors import InvariantBroken
from waltz_ray.topics import delivery_rules as rules
from waltz_ray.topics import delivery_types as t
from waltz_ray.topics.codes import TopicCode
from waltz_ray.topics.delivery_lease import DeliveryLease
from waltz_ray.topics.delivery_place import DeliveryPlace
from waltz_ray.topics.delivery_work import DeliveryOrders, DeliveryWork
from waltz_ray.topics.flow_control import FlowMeter, is_little
from waltz_ray.topics.flow_rules import NO_RULES, FlowRules

__all__ = ["Delivery"]

_MOVED = "another broker serves the partition now: ask the master"
_LATER = "nothing is lost: ask again"


class Delivery:
    """Of one (group, topic, partition). See the module's docstring."""

    def __init__(self, limits: t.DeliveryLimits, flow: FlowRules = NO_RULES) -> None:
        self._limits = limits
        self._flow = flow
        self._meter = FlowMeter()
        self._place = DeliveryPlace()
        self._lease = DeliveryLease(limits.lease_ms)
        self._filters: frozenset[str] = frozenset()
        self._epoch: int | None = None  # the offset was taken with; None: what is remembered may be wrong
        self._delivered = 0  # the term of the lease under which there was a batch that is not confirmed; 0 = none
        self._end = t.NO_OFFSET
        self._lag_bytes = 0
        self._now_ms = self._unix_ms = 0
        self._waiting: deque[t.DeliveryRequest] = deque()
        self._work: DeliveryWork | None = None
        self._orders = DeliveryOrders(limits)

    def step(self, event: t.DeliveryEvent, now_ms: int, unix_ms: int | None = None) -> list[t.DeliveryEffect]:
        """Take in one fact; the orders that follow from it."""
        self._now_ms = max(self._now_ms, now_ms)
        self._unix_ms = now_ms if unix_ms is None else unix_ms
        if self._lease.is_over(self._now_ms):
            self._lose(f"no sign of life for {self._limits.lease_ms} ms")
        match event:
            case t.LeaseRenewed(token, consumer):
                code = self._lease.renew(consumer, self._now_ms)
                self._reply(token, code, self._lease.text(code))
            case t.OffsetTaken() | t.OffsetKept() | t.OffsetFenced() | t.OffsetUnknown():
                self._on_store(event)
            case t.BatchRead() | t.BatchTrimmed() | t.BatchNotRead():
                self._on_log(event)
            case t.FlowChanged(flow):
                self._flow = flow
                self._meter.forget_waits()
            case t.DeliveryStops():
                self._stop()
            case t.LeasesDue():
                pass
            case _:
                self._take_in(event)
        while self._work is None and self._waiting:
            self._begin(self._waiting.popleft())
        return self._orders.taken()

    @property
    def idle(self) -> bool:
        """Nobody has the partition and nothing is under way: it may be forgotten. What was not confirmed comes again
        all the same, cut into other batches perhaps."""
        return self._lease.holder is None and self._work is None and not self._waiting

    def status(self) -> t.DeliveryStatus:
        """How it stands, for whoever looks."""
        place = self._place
        epoch = t.NO_OFFSET if self._epoch is None else self._epoch
        waiting = len(self._waiting) + (self._work is not None)
        where = place.position, place.confirmed, place.stored, self._end, self._lag_bytes
        return t.DeliveryStatus(self._lease.holder or "", epoch, *where, place.lost, waiting, self._lease.term)

    # ---- requests

    def _take_in(self, request: t.DeliveryRequest) -> None:
        if isinstance(request, t.PullAsked | t.ConfirmAsked | t.ProgressAsked):
            self._lease.renew(request.consumer, self._now_ms)
        if len(self._waiting) >= self._limits.waiting:
            text = f"{len(self._waiting)} requests of this partition wait already: send one at a time"
            self._reply(request.token, TopicCode.RECEIVE_OVERFLOW, text)
        else:
            self._waiting.append(request)

    def _begin(self, request: t.DeliveryRequest) -> None:
        self._work = work = DeliveryWork(request, self._lease.term)
        match request:
            case t.PartitionWanted(_, consumer, _, asked):
                if self._lease.holder not in (None, consumer):
                    text = f"consumer {self._lease.holder} has the partition: try again once it has let go"
                    self._finish(TopicCode.PARTITION_OCCUPIED, text)
                    return
                self._let_go()  # of its own: it begins anew
                self._orders.take(work, asked)
            case t.ResetAsked(_, asked):
                self._orders.take(work, asked)
            case t.ProgressAsked():
                self._go_on_reading(work, request)
            case _:
                if refused := self._lease.refusal(request.consumer):
                    self._finish(*refused)
                    return
                consumed = rules.says_consumed(request)
                by_hand = isinstance(request, t.ConfirmAsked) and consumed
                if by_hand and not rules.may_confirm(self._delivered, work.term):
                    text = "what was delivered came before the consumer registered, and comes again"
                    self._finish(TopicCode.NOT_FOUND, text)
                    return
                if consumed:
                    self._place.confirm()
                    self._delivered = 0
                elif consumed is not None:
                    self._place.rewind()
                if self._place.has_to_store(self._limits.skipped):
                    self._store(work, self._place.confirmed)
                if isinstance(request, t.PullAsked):
                    work.wait_ms = self._meter.wait_ms(self._flow, self._lag_bytes, self._now_ms, self._unix_ms)
                    if not work.wait_ms:
                        self._orders.read(work, self._place, self._filters)
                self._go_on(work)

    def _go_on_reading(self, work: DeliveryWork, asked: t.ProgressAsked) -> None:
        """A consumer that reads by itself says how far it is, and asks whether it may go on."""
        if refused := self._lease.refusal(asked.consumer):
            self._finish(*refused)
            return
        if not rules.is_of_this_lease(asked.term, work.term):
            self._finish(TopicCode.HB_NO_NODE, "what was read came before the consumer registered, and may come again")
            return
        if not rules.is_in_the_log(asked.offset, asked.end) and asked.offset != t.NO_OFFSET:
            text = f"offset {asked.offset} is not in the log, which ends at {asked.end}"
            self._finish(TopicCode.BAD_REQUEST, text)
            return
        self._end, self._lag_bytes = asked.end, asked.lag_bytes
        self._place.confirm_to(asked.offset)
        if asked.read_bytes:
            self._meter.pulled(self._flow, asked.read_bytes, asked.filtered, self._now_ms)
        work.wait_ms = self._meter.wait_ms(self._flow, self._lag_bytes, self._now_ms, self._unix_ms)
        if self._place.has_to_store(self._limits.skipped):
            self._store(work, self._place.confirmed)
        self._go_on(work)

    def _go_on(self, work: DeliveryWork) -> None:
        """Answer, once nothing is waited for any more."""
        if work.waits:
            return
        request = work.request
        if isinstance(request, t.PartitionGivenBack) and self._lease.term == work.term:
            self._let_go()
        if work.failed is not None:
            self._finish(*work.failed)
        elif isinstance(request, t.PullAsked):
            self._answer_pull(work, request)
        elif isinstance(request, t.ProgressAsked):
            self._finish(TopicCode.OK, wait_ms=work.wait_ms)
        else:
            self._finish(TopicCode.OK)

    def _answer_pull(self, work: DeliveryWork, pull: t.PullAsked) -> None:
        batch = work.batch
        if self._lease.term != work.term:
            self._finish(TopicCode.HB_NO_NODE, self._lease.text(TopicCode.HB_NO_NODE))
        elif work.wait_ms:
            text = f"too fast for the rules of this group: ask again in {work.wait_ms} ms"
            self._finish(TopicCode.SPEED_LIMIT, text, work.wait_ms)
        elif batch is None:
            if not work.more:
                self._meter.pulled(self._flow, 0, bool(self._filters), self._now_ms)
            self._finish(TopicCode.NOT_FOUND, "nothing so far: go on" if work.more else "there is nothing new")
        elif rules.is_given_up(pull, self._waiting):
            self._finish(TopicCode.NOT_FOUND, "its consumer has asked for something else since: this brings nothing")
        else:
            self._deliver(batch)

    def _finish(self, code: TopicCode, text: str = "", wait_ms: int = 0) -> None:
        """The reply to the request in work, without messages: where the group is."""
        reply = t.DeliveryReply(self._done(), code, text, (), self._place.confirmed, end=self._end, wait_ms=wait_ms)
        self._orders.effects.append(reply)

    def _deliver(self, batch: t.BatchRead) -> None:
        """The reply with messages."""
        filtered, offset, after = bool(self._filters), self._place.position, batch.next_offset
        self._place.read(batch.messages, after)
        self._delivered = self._lease.term
        self._meter.pulled(self._flow, max(1, batch.read_bytes), filtered, self._now_ms)
        where = offset, after, self._end, batch.lag_bytes
        slow = filtered and is_little(batch.read_bytes)
        self._orders.effects.append(t.DeliveryReply(self._done(), TopicCode.OK, "", batch.messages, *where, slow=slow))

    def _done(self) -> int:
        assert self._work is not None
        token, self._work = self._work.request.token, None
        return token

    def _reply(self, token: int, code: TopicCode, text: str) -> None:
        """To a request that was not begun."""
        self._orders.effects.append(t.DeliveryReply(token, code, text))

    def _store(self, work: DeliveryWork, offset: int) -> None:
        if self._epoch is None:
            raise InvariantBroken("an offset is to be stored that was not taken")
        self._orders.store(work, offset, self._epoch)

    # ---- facts of the store

    def _on_store(self, event: t.OffsetTaken | t.OffsetKept | t.OffsetFenced | t.OffsetUnknown) -> None:
        work = self._work
        if work is None or event.number not in (work.taking, work.storing):
            return  # of a request that was answered when the slot went away
        taking = event.number == work.taking
        work.taking = work.storing = 0
        match event:
            case t.OffsetTaken():
                self._taken(work, event)
            case t.OffsetKept():
                self._kept(work)
            case t.OffsetFenced():
                self._forget(_MOVED)
                work.failed = TopicCode.MOVED, _MOVED
            case t.OffsetUnknown(_, reason):
                if taking or isinstance(work.request, t.PartitionWanted | t.ResetAsked):
                    self._forget("nobody knows where the group is: register again")
                work.failed = TopicCode.UNAVAILABLE, f"the offset could not be stored: {reason}; {_LATER}"
        self._go_on(work)

    def _taken(self, work: DeliveryWork, taken: t.OffsetTaken) -> None:
        known = rules.memory_counts(self._epoch, taken.epoch)
        if not known:
            self._forget("somebody else has had the partition meanwhile: register again")
        self._epoch, self._end = taken.epoch, taken.end
        request = work.request
        wanted = isinstance(request, t.PartitionWanted)
        asked = request.offset if isinstance(request, t.PartitionWanted | t.ResetAsked) else t.NO_OFFSET
        if not rules.is_in_the_log(asked, taken.end) and not (wanted and asked == t.NO_OFFSET):
            self._epoch = taken.epoch if known else None
            text = f"offset {asked} is not in the log, which has {taken.first} to {taken.end}"
            work.failed = TopicCode.BAD_REQUEST, text
            return
        if isinstance(request, t.PartitionWanted):
            self._place.take_up(request, taken, known, request.filters == self._filters)
            self._filters = request.filters
            if self._place.confirmed != self._place.stored:
                self._store(work, self._place.confirmed)
            else:
                self._grant(request)
        elif isinstance(request, t.ResetAsked):
            self._store(work, rules.after_trim(request.offset, taken.first))

    def _kept(self, work: DeliveryWork) -> None:
        place, request = self._place, work.request
        if isinstance(request, t.ResetAsked):
            self._lose("the group has been set elsewhere")  # who reads the log itself would confirm where it is
            place.begin(work.stored_offset, work.stored_offset, False)
        place.stored = work.stored_offset
        if isinstance(request, t.PartitionWanted):
            self._grant(request)

    def _grant(self, wanted: t.PartitionWanted) -> None:
        self._lease.grant(wanted.consumer, self._now_ms)
        self._meter.forget_waits()

    # ---- facts of the log

    def _on_log(self, event: t.BatchRead | t.BatchTrimmed | t.BatchNotRead) -> None:
        work = self._work
        if work is None or event.number != work.reading:
            return
        work.reading = 0
        if self._lease.term == work.term:
            match event:
                case t.BatchNotRead(_, reason):
                    work.failed = work.failed or (TopicCode.UNAVAILABLE, f"the log is not there: {reason}; {_LATER}")
                case t.BatchTrimmed(_, first):
                    if first <= self._place.position:
                        raise InvariantBroken(f"the log begins with {first}, and {self._place.position} is not in it")
                    self._place.trimmed(first)
                    self._read_more(work)
                case t.BatchRead(_, messages, next_offset, end):
                    self._end, self._lag_bytes = end, event.lag_bytes
                    if messages:
                        work.batch = event
                    else:
                        self._place.read((), next_offset)
                        if next_offset < end:
                            self._read_more(work)
        self._go_on(work)

    def _read_more(self, work: DeliveryWork) -> None:
        """Filters have left nothing of what was read, or it is gone: what comes next?"""
        work.more = work.reads >= self._limits.reads
        if not work.more and work.failed is None:
            self._orders.read(work, self._place, self._filters)

    # ---- who has it

    def _let_go(self) -> None:
        """What was not confirmed comes again, to whoever is next."""
        self._lease.end()
        self._place.rewind()

    def _lose(self, reason: str) -> None:
        if self._lease.holder is not None:
            self._orders.effects.append(t.PartitionLost(self._lease.holder, reason))
        self._let_go()

    def _forget(self, reason: str) -> None:
        """What is remembered of the offset may be wrong: the store is asked by the next who registers."""
        self._lose(reason)
        self._epoch = None

    def _stop(self) -> None:
        self._forget(_MOVED)
        if self._work is not None:
            self._finish(TopicCode.MOVED, _MOVED)
        while self._waiting:
            self._reply(self._waiting.popleft().token, TopicCode.MOVED, _MOVED)
