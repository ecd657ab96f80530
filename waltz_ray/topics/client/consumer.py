"""A member of a group of consumers: what the master gives it, and what the application takes of that.

What is delivered is at least once: a batch is confirmed when the application says so (``confirm``, or by going on with
the iteration), and what was not comes again, to whoever has the partition then. docs/topics.md has the whole of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import secrets
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from datetime import datetime, timezone
from types import TracebackType
from typing import NamedTuple

from waltz_ray import compat
from waltz_ray.client.address import StaysHere
from waltz_ray.client.application import checked_int
from waltz_ray.client.ending import Ending
from waltz_ray.client.own_loop import check_loop, check_loop_of_end
from waltz_ray.client.time_limits import checked_wait
from waltz_ray.errors import (
    ClientClosed,
    InvalidInput,
    PartitionNotReady,
    TopicRefused,
    TopicUnknownFate,
    WaltzError,
    WireError,
)
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.topics.client.arguments import SeekTo, checked_most, checked_seek, checked_text
from waltz_ray.topics.client.held_partition import ConsumerSelf, HeldPartition
from waltz_ray.topics.client.iteration import MessageIteration
from waltz_ray.topics.client.links import TopicLinks
from waltz_ray.topics.client.masters import Masters
from waltz_ray.topics.client.membership import GroupMembership, GroupStart, TopicSubscription
from waltz_ray.topics.client.messages import MessageBatch
from waltz_ray.topics.client.settings import TopicClientConfig
from waltz_ray.topics.client.topic_logs import TopicLogs
from waltz_ray.topics.codes import TopicCode
from waltz_ray.topics.groups.events import RebalanceOp
from waltz_ray.topics.messages import EventProto
from waltz_ray.topics.rpc import RpcFault
from waltz_ray.topics.texts import consumer_id, parse_subscription
from waltz_ray.topics.wire import TopicRequest, TopicResponse

__all__ = ["AsyncTopicConsumer"]

log = logging.getLogger(__name__)

_HOST = "127.0.0.1"
_CLOSED = "the consumer is closed; make another one"
_COUNTS = itertools.count(1)
_LOOK_S = 2.0  # between two looks whether there is still a topic, of a consumer that has no partition
_LEAVE_S = 2.0  # for the application to confirm what it has, of a partition that goes to another member
_CONNECTS = (RebalanceOp.CONNECT, RebalanceOp.ONLY_CONNECT)
_DISCONNECTS = (RebalanceOp.DISCONNECT, RebalanceOp.ONLY_DISCONNECT)

_READ_STATUS: dict[GroupStart, int] = {"earliest": 0, "latest": 1, "end": 2}


class _Hand(NamedTuple):
    """That of a thread, held out."""

    future: Future[MessageBatch | None]
    most: int


class AsyncTopicConsumer(StaysHere):
    """``AsyncTopicClient.consumer`` makes one; ``async with`` joins the group and leaves it."""

    def __init__(
        self, links: TopicLinks, masters: Masters, logs: TopicLogs, config: TopicClientConfig, wanted: TopicSubscription
    ) -> None:
        version = f"waltz.{secrets.token_hex(4)}"  # by chance: in containers there are many processes of one number
        self.client_id = consumer_id(
            wanted.group, _HOST, os.getpid(), time.time_ns() // 1_000_000, next(_COUNTS), "Pull", version
        )
        """As the master and the slots know us."""
        self._links, self._logs, self._config, self._wanted = links, logs, config, wanted
        self._membership = GroupMembership(self.client_id, masters, config, wanted, self._reported)
        self._held: dict[str, HeldPartition] = {}
        self._turn: deque[str] = deque()  # whose turn it is to be taken from
        self._given_up: deque[MessageBatch] = deque()  # and not taken back yet
        self._paused: set[tuple[str, int]] = set()
        self._had: set[tuple[str, int]] = set()  # partitions that it has had: it has begun there
        self._skipped = 0  # of those that it has not any more
        self._moving: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # one at a time gets or gives it back
        self._something = asyncio.Event()
        self._hands: deque[_Hand] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: WaltzError | None = None
        self._joining = False  # or it has joined
        self._closed = False
        self._ending = Ending(self._end)
        self._loop = asyncio.get_running_loop()

    # ---- life

    @property
    def closed(self) -> bool:
        """It has left its group, or is about to."""
        return self._closed

    async def start(self) -> None:
        """Join the group. TopicRefused: the master says why not; PartitionNotReady: there is none in time;
        SpaceNotFound, SpaceGone, InvalidInput: one of the topics is none, or it has joined already; ClientClosed;
        ZooKeeperUnreachable."""
        check_loop(self._loop)
        if self._closed:
            raise ClientClosed(_CLOSED)
        if self._joining:
            raise InvalidInput("the consumer has joined its group already")
        self._joining = True
        try:
            await self._logs.check(self._wanted.topics)
            await self._membership.register()
            if self._closed:  # meanwhile
                raise ClientClosed(_CLOSED)
            self._spawn(self._keep_beating())
        except BaseException as error:
            self._joining = False
            self._changed()
            if isinstance(error, Exception | asyncio.CancelledError):  # else nothing can be waited for any more
                await self._membership.leave()  # it may have been registered before it was cancelled, or closed
            raise

    async def close(self) -> None:
        """Leave the group: what was given out and is not confirmed comes again, to somebody else. Idempotent."""
        check_loop_of_end(self._loop)
        self._closed = True
        await self._ending.come()  # whole, or leases would go on being renewed for nobody

    async def _end(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(self._give_back(subscription, finish=False) for subscription in list(self._held)))
        self._changed()
        await self._membership.leave()

    async def __aenter__(self) -> AsyncTopicConsumer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ---- messages

    async def pull(self, most: int = 1000, timeout: float | None = None) -> MessageBatch | None:
        """The next messages of some partition, about ``most`` of them; None: there were none within ``timeout`` seconds
        (None: wait for ever). Those of a partition come in their order. ``confirm`` follows.

        TopicRefused: the master does not want us any more; SpaceGone: all topics have been deleted; ClientClosed;
        InvalidInput: ``most`` is less than one, or it has not joined its group.
        """
        checked_most(most)
        try:
            async with compat.timeout(checked_wait(timeout)):
                return await self._next(most)
        except TimeoutError:
            return None

    async def confirm(self, batch: MessageBatch) -> None:
        """The batch, and all before it of its partition, has been dealt with; when this returns it does not come again.
        TopicRefused: the partition is not ours any more, and it does. TopicUnknownFate: that was lost while the answer
        was waited for, and it may come again or not."""
        check_loop(self._loop)
        held = self._giver_of(batch)
        if held is not None:
            await held.confirm(batch.end)
            return
        lease = batch.lease if isinstance(batch.lease, HeldPartition) else None
        if lease is None or lease.confirmed < batch.end:  # else it was, before the partition was lost
            why = None if lease is None else lease.why_not(batch.end)
            raise why if isinstance(why, TopicUnknownFate) else _lost(batch.topic, batch.partition)

    def consumed(self, batch: MessageBatch) -> None:
        """``confirm``, without waiting: soon. If the partition is not ours any more, it comes again."""
        held = self._giver_of(batch)
        if held is not None:
            held.consumed(batch.end)

    def give_up(self, batch: MessageBatch) -> None:
        """The application does not deal with it now: it comes again, before what is behind it, to whoever has the
        partition then. For any thread."""
        self._given_up.append(batch)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody asks any more
            self._loop.call_soon_threadsafe(self._changed)

    def _take_back(self) -> None:
        """What was given up."""
        while self._given_up:
            batch = self._given_up.popleft()
            held = self._giver_of(batch)
            if held is not None:
                held.take_back(batch)

    def __aiter__(self) -> MessageIteration:
        """All messages, for ever. A batch is confirmed when the application goes on behind its last message; if the
        iteration ends before, by whatever it is, all of it comes again."""
        return MessageIteration(lambda: self._next(1000), self.consumed, self.give_up)

    async def run(self, handler: Callable[[MessageBatch], Awaitable[object]], workers: int = 1) -> None:
        """Push: call ``handler`` with each batch, ``workers`` of them at a time, until this is cancelled. A batch is
        confirmed when its handler has returned. What it raises ends this; its batch, and those behind it in its
        partition, come again. Batches of one partition are handled one after the other."""
        if checked_int("the number of workers", workers) < 1:
            raise InvalidInput(f"handlers are called by at least one worker, not {workers}")
        busy: dict[tuple[str, int], asyncio.Lock] = {}
        ended = False

        async def work() -> None:
            nonlocal ended
            while not ended:
                batch, dealt_with = await self._next(1000), False
                try:
                    async with busy.setdefault((batch.topic, batch.partition), asyncio.Lock()):
                        if not ended:  # or what is before it in its partition was perhaps not dealt with
                            await handler(batch)
                            self.consumed(batch)
                            dealt_with = True
                finally:
                    if not dealt_with:
                        ended = True  # before who waits for the lock has its turn
                        self.give_up(batch)

        tasks = [asyncio.get_running_loop().create_task(work()) for _ in range(workers)]
        try:
            await asyncio.gather(*tasks)
        finally:
            ended = True
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _next(self, most: int) -> MessageBatch:
        check_loop(self._loop)
        while (batch := self._take(most)) is None:
            self._something.clear()
            await self._something.wait()
        return batch

    def _take(self, most: int) -> MessageBatch | None:
        """What is next; None: there is nothing now. ClientClosed, TopicRefused."""
        if self._closed:
            raise ClientClosed(_CLOSED)
        if not self._joining:
            raise InvalidInput("the consumer is no member of its group: use `with`, or start() first")
        failure = self._failure or self._membership.failure
        if failure is not None:
            raise failure.with_traceback(None)  # which would grow with each time
        self._take_back()
        while any(held.ready for held in self._held.values()):
            for _ in range(len(self._turn)):
                self._turn.rotate(-1)
                held = self._held.get(self._turn[-1])
                if held is not None and held.ready and (batch := held.next_batch(most)) is not None:
                    return batch
        return None

    def hand(self, future: Future[MessageBatch | None], most: int) -> None:
        """``pull`` for a thread that waits outside of the loop: the future gets what is next, or what ``pull`` raises.
        No task and no timer: they would be most of what a message costs a consumer that waits for it."""
        self._hands.append(_Hand(future, most))
        self._fill_hands()

    def withdraw(self, future: Future[MessageBatch | None]) -> None:
        """Who waits wants it no more. The future is told None, if it has not been told what is next."""
        for hand in self._hands:
            if hand.future is future:
                self._hands.remove(hand)
                future.set_result(None)
                return

    def _fill_hands(self) -> None:
        while self._hands:
            try:
                batch = self._take(self._hands[0].most)
            except Exception as error:  # noqa: BLE001 - whatever it is, who waits has to know
                self._hands.popleft().future.set_exception(error)
            else:
                if batch is None:
                    return
                self._hands.popleft().future.set_result(batch)

    def _changed(self) -> None:
        """There may be something for who waits."""
        self._take_back()
        self._something.set()
        self._fill_hands()

    # ---- where it is

    def _having(self) -> list[HeldPartition]:
        """What it has now, for any thread: the list is made at once, before the loop's thread goes on."""
        return [held for held in list(self._held.values()) if held.lost is None]

    @property
    def partitions(self) -> list[tuple[str, int]]:
        """Those that it has now. For any thread."""
        return sorted((held.topic, held.partition) for held in self._having())

    def lag(self) -> dict[tuple[str, int], int]:
        """By partition that it has: how many transactions the log has behind what is confirmed, about. For any
        thread."""
        return {(held.topic, held.partition): max(0, held.end - held.confirmed) for held in self._having()}

    def skipped(self) -> int:
        """Transactions that retention had let go of before this consumer could read them. For any thread."""
        return self._skipped + sum(held.skipped for held in list(self._held.values()))

    def pause(self, topic: str, partition: int) -> None:
        """Give out nothing of it until ``resume``; it stays ours, also while it is another member's in between."""
        self._paused.add((checked_text("a topic's name", topic), checked_int("a partition", partition)))
        self._apply_pauses()

    def resume(self, topic: str, partition: int) -> None:
        """End ``pause``."""
        self._paused.discard((checked_text("a topic's name", topic), checked_int("a partition", partition)))
        self._apply_pauses()

    async def seek(self, topic: str, partition: int, to: SeekTo) -> int:
        """Go on at ``to`` in a partition that we have: an offset, the first message appended at a time or later, or an
        end of the log. The offset. InvalidInput: it is not ours; TopicRefused: the slot does not let us;
        PartitionNotReady: it does not answer. Where it fails it goes on where the group is."""
        to = checked_seek(to)
        check_loop(self._loop)
        held = self._of(topic, partition)
        if held is None:
            raise InvalidInput(f"partition {partition!r:.60} of topic {topic!r:.60} is not this consumer's")
        offset = await self._offset(topic, partition, to)
        try:
            await self._begin_again(held, offset)
        except BaseException as error:  # refused, or cancelled on the way
            self._spawn(self._go_on(held.subscription))
            if isinstance(error, OSError | WireError):
                text = f"the slot of partition {partition} of topic {topic} does not answer: {error}"
                raise PartitionNotReady(text) from error
            raise
        return offset

    async def _begin_again(self, held: HeldPartition, offset: int | None) -> None:
        """Read from ``offset``, or from where the group is (None), in place of ``held``."""
        async with self._moving[held.subscription]:
            if self._closed:
                raise ClientClosed(_CLOSED)
            if self._held.get(held.subscription) is not held or held.lost is not None:
                raise _lost(held.topic, held.partition)
            await held.stop()
            fresh = await self._new(held.subscription)
            self._hold(fresh)  # or the next report to the master would say that we do not have it
            try:
                await fresh.take(offset)
            except (Exception, asyncio.CancelledError):
                await fresh.stop()
                raise
            self._apply_pauses()

    async def _go_on(self, subscription: str) -> None:
        """Where the group is. If that cannot be done now, the master orders it again when it sees that we lack it."""
        held = self._held.get(subscription)
        if held is None or not held.stopped:
            return
        try:
            await self._begin_again(held, None)
        except (OSError, WaltzError) as error:
            log.info("consumer %s does not go on with %s now: %s", self.client_id, subscription, error)
            if not self._closed:  # else ``close`` gives it back
                self._forget(subscription)

    async def _offset(self, topic: str, partition: int, to: SeekTo) -> int:
        source = await self._logs.of(topic)
        if isinstance(to, int):
            return to
        if to == "latest":
            return await source.server_high_water_mark(partition) + 1
        when = datetime.fromtimestamp(0, timezone.utc) if isinstance(to, str) else to
        return await source.first_id_at(partition, when)

    def _of(self, topic: str, partition: int) -> HeldPartition | None:
        return next((held for held in self._having() if (held.topic, held.partition) == (topic, partition)), None)

    def _giver_of(self, batch: MessageBatch) -> HeldPartition | None:
        """Who has given it out, if the partition is still ours by the same lease. InvalidInput: it is no batch."""
        if not isinstance(batch, MessageBatch):
            raise InvalidInput(f"a batch that was pulled is confirmed, not {type(batch).__name__}: {batch!r:.60}")
        held = self._of(batch.topic, batch.partition)
        return held if held is not None and held.gave(batch) else None

    def _apply_pauses(self) -> None:
        for held in self._held.values():
            held.paused = (held.topic, held.partition) in self._paused
        self._changed()

    # ---- what the master orders

    def _reported(self) -> list[str]:
        return [each for each, held in self._held.items() if held.lost is None]

    async def _keep_beating(self) -> None:
        loop = asyncio.get_running_loop()
        looked_s = loop.time()
        while not self._closed:  # it may be cancelled and only be told that a time is over
            self._drop_lost()
            if not self._held and loop.time() - looked_s > _LOOK_S:
                looked_s = loop.time()
                if (gone := await self._logs.gone(self._wanted.topics)) is not None:
                    self._failure = gone
                    self._changed()
                    return
            order = await self._membership.beat()
            if order is not None:
                self._spawn(self._obey(order))
            elif self._membership.failure is not None:
                self._changed()
            await self._membership.until_next_beat()

    async def _obey(self, order: EventProto) -> None:
        """What cannot be connected now the master orders again, when it sees that we do not have it."""
        if order.op_type in _CONNECTS:
            await asyncio.gather(*(self._connect(each) for each in order.subscribe_info if each not in self._held))
        elif order.op_type in _DISCONNECTS:
            await asyncio.gather(*(self._give_back(each, finish=True) for each in order.subscribe_info))
        self._membership.done(order)

    async def _connect(self, subscription: str) -> None:
        held: HeldPartition | None = None
        async with self._moving[subscription]:
            if subscription in self._held:
                return
            try:
                held = await self._new(subscription)
                await held.take()
            except (OSError, WaltzError) as error:
                log.info("consumer %s does not get %s now: %s", self.client_id, subscription, error)
                if held is not None:
                    await held.stop()
                return
            self._had.add((held.topic, held.partition))
            self._hold(held)
            self._apply_pauses()

    def _hold(self, held: HeldPartition) -> None:
        before = self._held.get(held.subscription)
        self._skipped += 0 if before is None else before.skipped
        self._held[held.subscription] = held
        if held.subscription not in self._turn:  # it may have been forgotten while it was sought in
            self._turn.append(held.subscription)

    async def _new(self, subscription: str) -> HeldPartition:
        wanted, place = self._wanted, parse_subscription(subscription).place
        topic = place.topic
        start = "earliest" if (topic, place.broker.broker_id - 1) in self._had else wanted.start
        shown = self._membership.rights.for_slot
        status, ahead = _READ_STATUS[start], self._config.ahead_bytes
        own = ConsumerSelf(self.client_id, wanted.group, wanted.topics[topic], status, shown, ahead)
        return HeldPartition(subscription, own, await self._logs.of(topic), self._ask_slot, self._changed)

    async def _ask_slot(self, endpoint: Endpoint, request: TopicRequest) -> TopicResponse | RpcFault:
        return await self._links.ask(endpoint, request)

    async def _give_back(self, subscription: str, finish: bool) -> None:
        """``finish``: once the application has done with what it has of it."""
        async with self._moving[subscription]:
            held = self._held.get(subscription)
            if held is not None:
                held.leaving = True
                await held.give_back(_LEAVE_S, finish)
                self._forget(subscription)

    def _drop_lost(self) -> None:
        for subscription, held in list(self._held.items()):
            if held.lost is not None:
                log.info("consumer %s has lost %s: %s", self.client_id, subscription, held.lost)
                self._forget(subscription)
                self._spawn(held.stop())

    def _forget(self, subscription: str) -> None:
        held = self._held.pop(subscription, None)
        self._skipped += 0 if held is None else held.skipped
        if subscription in self._turn:
            self._turn.remove(subscription)

    def _spawn(self, work: Awaitable[None]) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:  # a bug of ours: nothing more would come
            self._failure = WaltzError(f"the consumer has failed: {error!r}")
            self._changed()
            log.critical("consumer %s has failed", self.client_id, exc_info=error)


def _lost(topic: str, partition: int) -> TopicRefused:
    text = f"partition {partition} of topic {topic} has been lost since, or the group set elsewhere"
    return TopicRefused(TopicCode.HB_NO_NODE, text)
