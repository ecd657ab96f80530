"""One partition that a consumer has: its lease at the slot, its messages straight from the log, what is confirmed.

The slot says where the group is, and keeps that; it is told how far the application has come, and says whether more may
be given out (rules of flow). The messages themselves are fed by the log's server: whole where all are wanted; of types
only, headers first, and then of the data what has a wanted header.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

from waltz_ray import compat
from waltz_ray.client.aio import AsyncWaltzClient, engine_of, next_client_id_of
from waltz_ray.client.subscription import FeedItem, Subscription
from waltz_ray.errors import DataUnavailable, TopicRefused, TopicUnknownFate, Trimmed, WaltzError, WireError
from waltz_ray.net.backoff import Backoff
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.messages.client import FeedBatch, FeedMode
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.topics.client.messages import MessageBatch, has_messages
from waltz_ray.topics.codes import BrokerOperation, TopicCode
from waltz_ray.topics.filtering import headers_of_types, wanted_ranges
from waltz_ray.topics.messages import AuthorizedInfo
from waltz_ray.topics.messages_consumer import (
    ProgressRequestC2B,
    ProgressResponseB2C,
    RegisterRequestC2B,
    RegisterResponseB2C,
)
from waltz_ray.topics.rpc import RpcFault
from waltz_ray.topics.texts import parse_subscription
from waltz_ray.topics.wire import TopicRequest, TopicResponse

__all__ = ["ConsumerSelf", "HeldPartition"]

log = logging.getLogger(__name__)

AskSlot = Callable[[Endpoint, TopicRequest], Awaitable["TopicResponse | RpcFault"]]

_TRY_AGAIN = (TopicCode.NOT_READY, TopicCode.RECEIVE_OVERFLOW, TopicCode.UNAVAILABLE, TopicCode.SPEED_LIMIT)
_OF_RIGHTS = (
    TopicCode.UNAUTHORIZED,
    TopicCode.FORBIDDEN,
    TopicCode.CERTIFICATE_FAILURE,
    TopicCode.GROUP_FORBIDDEN,
    TopicCode.CONTENT_FORBIDDEN,
)
"""Of a report whose offset counts all the same: it is stored whatever rights are by then."""
_REPORT_S = 0.5
_PIECE_BYTES = 1 << 20


class ConsumerSelf(NamedTuple):
    """Who consumes. ``types``: of the topic, that are wanted; none: all. ``read_status``: where a group begins that was
    nowhere. ``rights``: what a slot is shown. ``ahead_bytes``: of a partition, that are read ahead of the application.
    """

    client_id: str
    group: str
    types: frozenset[str]
    read_status: int
    rights: Callable[[], AuthorizedInfo | None]
    ahead_bytes: int


class _Read(NamedTuple):
    """What was read, up to ``end``, and what is to be said to the feed when it is used."""

    records: tuple[RecordBatch, ...]
    end: int
    item: FeedItem


def _cut(read: _Read, most: int) -> tuple[_Read, _Read | None]:
    """The first ``most`` transactions of it, and the rest, with which the feed is told that it is used."""
    taken: list[RecordBatch] = []
    room = most
    for number, records in enumerate(read.records):
        if len(records) > room:
            taken.append(records.slice(0, room))
            rest = records.slice(room, len(records))
            return _Read(tuple(taken), rest.first_id, None), read._replace(records=(rest, *read.records[number + 1 :]))
        taken.append(records)
        room -= len(records)
    return read, None


class HeldPartition:
    """In one event loop. ``changed``: there is something to take, or the partition is lost."""

    def __init__(
        self,
        subscription: str,
        own: ConsumerSelf,
        source: AsyncWaltzClient,
        ask: AskSlot,
        changed: Callable[[], None],
    ) -> None:
        place = parse_subscription(subscription).place
        self.subscription = subscription
        self.topic = place.topic
        self.partition = place.broker.broker_id - 1
        self.paused = False
        self.leaving = False
        """It is about to be given back: nothing more is given out, whatever the application says of pauses."""
        self.lost: TopicRefused | None = None
        """Why the slot does not let us have it any more."""
        self.confirmed = self.end = -1
        """Where the group is, and where the log ends, as the slot said last."""
        self.skipped = 0
        """Transactions that were trimmed away before they could be read."""
        self._endpoint = Endpoint(place.broker.host, place.broker.port)
        self._number = place.partition_id
        self._own, self._source, self._ask, self._changed = own, source, ask, changed
        self._headers = headers_of_types(own.types)
        self._reads: deque[_Read] = deque()
        self._fewer = asyncio.Event()  # set when some of them were given
        self._given = -1  # what is below it was given to the application
        self._seen = -1  # what is below it has been fed
        self._wanted = -1  # what is below it is to be confirmed
        self._doubtful = -1  # what is below it may be confirmed: that was said, and not answered
        self._last = -1  # where the last batch with messages ended that was given
        self._counted = -1  # what is below it and trimmed away is counted
        self._read_bytes = 0
        self._limited = False
        self._wait_s = 0.0  # until more may be given out, as the slot said last
        self._free = asyncio.Event()
        self._free.set()
        self._report_now = asyncio.Event()
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._feed: Subscription | None = None
        self._unread: asyncio.Queue[tuple[FeedBatch, FeedItem]] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopped = False

    def gave(self, batch: MessageBatch) -> bool:
        """Whether it was given out under this lease. The next one may begin elsewhere: what is confirmed of an older
        one would pass over what is in between."""
        return batch.lease is self

    # ---- the lease

    @property
    def stopped(self) -> bool:
        """Nothing comes of it any more."""
        return self._stopped

    async def take(self, offset: int | None = None) -> None:
        """Register with the slot, and read from where the group is, or from ``offset``. TopicRefused; OSError,
        WireError, WaltzError: it could not be done now."""
        own = self._own
        request = RegisterRequestC2B(
            BrokerOperation.REGISTER,
            own.client_id,
            own.group,
            self.topic,
            self._number,
            own.read_status,
            tuple(sorted(own.types)),
            offset,
            auth_info=own.rights(),
        )
        answer = await self._ask(self._endpoint, request)
        if isinstance(answer, RpcFault):
            raise TopicRefused(TopicCode.INTERNAL_ERROR, answer.text)
        assert isinstance(answer, RegisterResponseB2C)
        if not answer.success:
            raise TopicRefused(answer.err_code, answer.err_msg)
        self.confirmed = answer.curr_offset or 0
        self.end = answer.max_offset or 0
        self._given = self._seen = self._wanted = self._last = self.confirmed
        await self._report()  # are there rules of flow?
        if self.lost is not None:
            raise self.lost.with_traceback(None)  # which would grow with each time
        await self._follow(self.confirmed)
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._or_lose(self._keep_reporting)))
        if len(self._headers):
            self._tasks.append(loop.create_task(self._or_lose(self._read_wanted)))

    async def _or_lose(self, work: Callable[[], Awaitable[None]]) -> None:
        """Without it nothing would come any more, or be confirmed, and nobody be told: who has lost the partition is
        given it anew."""
        try:
            await work()
        except WaltzError as error:
            self._lose(TopicCode.INTERNAL_ERROR, f"it cannot be consumed now: {error}")
        except Exception as error:  # a bug of ours
            log.critical("%s: its consumer has failed", self.subscription, exc_info=error)
            self._lose(TopicCode.INTERNAL_ERROR, f"its consumer has failed: {error!r}")

    async def stop(self) -> None:
        """Read and report nothing more. Idempotent."""
        self._stopped = True
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:  # for who is cancelled meanwhile, too: perhaps nobody stops it again
            if self._feed is not None:
                await engine_of(self._source).unsubscribe(self._feed)
                self._feed = None
            self._reads.clear()
            self._tell_all()

    async def give_back(self, within_s: float, finish: bool) -> None:
        """Log out, once what the application has done with is confirmed (``finish``: once it has done with all that it
        was given, and has given up nothing), or the time is over."""
        given_up = bool(self._reads) and self._reads[0].end <= self._given
        end = self._given if finish and not given_up else self._wanted
        if self.lost is None and end > self.confirmed:
            done = self._confirmation(end)
            try:
                await asyncio.wait([done], timeout=within_s)
            finally:  # whatever it has come to: nobody else looks at it, and asyncio would log that
                if not done.cancel():
                    done.exception()
        await self.stop()
        if self.lost is not None:
            return
        own = self._own
        out = RegisterRequestC2B(
            BrokerOperation.LOGOUT, own.client_id, own.group, self.topic, self._number, 1, auth_info=own.rights()
        )
        try:
            await self._ask(self._endpoint, out)
        except (OSError, WireError) as error:
            log.info("%s: not logged out, the lease ends by itself: %s", self.subscription, error)

    # ---- messages

    @property
    def ready(self) -> bool:
        """There is something that may be taken."""
        held_up = self.paused or self.leaving or not self._free.is_set()
        return bool(self._reads) and not held_up and self.lost is None

    def next_batch(self, most: int) -> MessageBatch | None:
        """What comes next, ``most`` transactions; None: nothing was wanted of what was read, or it was confirmed since
        it was taken back."""
        read, rest = _cut(self._reads.popleft(), most)
        if rest is not None:
            self._reads.appendleft(rest)
        if self._feed is not None and read.item is not None:
            self._feed.used(read.item)
        batch = MessageBatch(self.topic, self.partition, read.records, read.end, self._own.types, self)
        empty = read.end <= self._wanted or not any(map(has_messages, read.records))
        self._fewer.set()
        self._given = max(self._given, read.end)
        self._read_bytes += batch.size_bytes
        if not empty:
            self._last = max(self._last, read.end)
        if self._wanted >= self._last:  # nothing wanted is in it, and all before it has been dealt with
            self._wanted = max(self._wanted, read.end)
        elif self._limited:
            self._free.clear()
            self._report_now.set()
        return None if empty else batch

    def take_back(self, batch: MessageBatch) -> None:
        """The application has not dealt with it: it is given out again, before what is behind it."""
        if not self._stopped:
            before = sum(read.end < batch.end for read in self._reads)  # they were taken back, too
            self._reads.insert(before, _Read(batch.records, batch.end, None))

    def consumed(self, end: int) -> None:
        """The application has done with what is below ``end``: the slot is told soon. So has it with what came since,
        if nothing of that was wanted."""
        if end >= self._last:
            end = max(end, self._given)
        if end > self._wanted:
            self._wanted = end

    async def confirm(self, end: int) -> None:
        """The same, and wait until the slot has it. TopicRefused: the partition is not ours any more; what was not
        confirmed comes again, to whoever has it then. TopicUnknownFate: nobody knows whether it was."""
        self.consumed(end)
        if self.confirmed >= end:
            return
        if self.lost is not None or self._stopped:  # it may still be logged out
            raise self.why_not(end)
        await self._confirmation(end)

    def why_not(self, end: int) -> WaltzError:
        """Of a confirm up to ``end``, when the partition is not ours any more."""
        if self.confirmed < end <= self._doubtful:
            return TopicUnknownFate(
                f"partition {self.partition} of topic {self.topic} was lost before a confirm had its answer: "
                "what it was about is confirmed, or comes again"
            )
        if self.lost is not None:
            return self.lost.with_traceback(None)  # which would grow with each time
        return TopicRefused(TopicCode.HB_NO_NODE, "the partition was given back")

    def _tell_all(self) -> None:
        """Who waits for a confirm: there will be no answer."""
        waiting, self._waiting = self._waiting, []
        for end, future in waiting:
            if not future.done():
                future.set_exception(self.why_not(end))

    def _confirmation(self, end: int) -> asyncio.Future[None]:
        """Done when what is below ``end`` is confirmed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((end, future))
        self._report_now.set()
        return future

    async def _follow(self, offset: int) -> None:
        """Have the log's server feed us from there on."""
        engine, early = engine_of(self._source), list[FeedItem]()
        put: Callable[[FeedItem], None] = early.append
        client_id = await next_client_id_of(self._source)
        mode = FeedMode.HEADERS if len(self._headers) else FeedMode.RECORDS
        feed = engine.follow(client_id, {self.partition: offset}, lambda item: put(item), earliest=True, mode=mode)
        self._feed = feed
        put = self._fed
        for item in early:
            put(item)

    def _fed(self, item: FeedItem) -> None:
        if isinstance(item, WaltzError):
            if isinstance(item, Trimmed):  # and with it what was read and not given out: it is begun anew behind that
                self._count_skipped(self._given, item.first_id)
            self._lose(TopicCode.INTERNAL_ERROR, f"the feed has ended: {item}")
        elif item is not None:
            batch = item[0]
            if isinstance(batch, RecordBatch):
                self._came(batch.since(max(self._seen, batch.first_id)), item)
            else:
                self._unread.put_nowait((batch, item))

    def _came(self, batch: RecordBatch, item: FeedItem) -> None:
        self._count_skipped(self._seen, batch.first_id)
        self._seen = batch.end_id
        self._have(_Read((batch,), batch.end_id, item))

    def _have(self, read: _Read) -> None:
        self._reads.append(read)
        self._changed()

    def _count_skipped(self, begin: int, end: int) -> None:
        """What is in between is trimmed away."""
        begin = max(begin, self._counted)
        if begin < end:
            self.skipped += end - begin
            self._counted = end

    async def _read_wanted(self) -> None:
        """Of headers, the data of what may be wanted. They are fed as far as they are small: one frame of them may be
        of more data than there is memory."""
        piece_bytes = min(_PIECE_BYTES, self._own.ahead_bytes)
        while True:
            feed, item = await self._unread.get()
            records: list[RecordBatch] = []
            size = 0
            for first, end in wanted_ranges(feed.first_id, feed.headers, self._headers):
                async for batch in self._read_range(first, end, piece_bytes):
                    records.append(batch)
                    size += batch.size_bytes
                    if size >= piece_bytes:
                        self._have(_Read(tuple(records), batch.end_id, None))
                        records, size = [], 0
                        await self._until_few()
            self._have(_Read(tuple(records), feed.first_id + len(feed), item))
            await self._until_few()

    @property
    def _ahead(self) -> int:
        """Bytes that are read and not given."""
        return sum([each.size_bytes for read in self._reads for each in read.records])

    async def _until_few(self) -> None:
        """Wait until less is read ahead than may be."""
        while self._reads and self._ahead >= self._own.ahead_bytes:
            self._fewer.clear()
            await self._fewer.wait()

    async def _read_range(self, first: int, end: int, most_bytes: int) -> AsyncIterator[RecordBatch]:
        pauses = Backoff(first_s=0.05, longest_s=1.0)
        while first < end:
            try:
                batch = await engine_of(self._source).rpc.read(self.partition, first, end, most_bytes)
            except Trimmed as trimmed:
                self._count_skipped(first, min(end, trimmed.first_id))
                first = trimmed.first_id
                continue
            except DataUnavailable as error:
                log.info("%s: %s; tried again", self.subscription, error)
                await asyncio.sleep(pauses.next_s())
                continue
            if not len(batch):  # the server is behind the one that has fed us
                await asyncio.sleep(pauses.next_s())
                continue
            yield batch
            first = batch.end_id

    # ---- reports

    async def _keep_reporting(self) -> None:
        pauses = Backoff(first_s=0.05, longest_s=1.0)
        while self.lost is None and not self._stopped:  # it may be cancelled and only be told that a time is over
            with contextlib.suppress(TimeoutError):
                async with compat.timeout(min(_REPORT_S, self._wait_s or _REPORT_S)):
                    await self._report_now.wait()
            self._report_now.clear()
            again_s = await self._report()
            if again_s is None:
                pauses.reset()
            else:
                self._report_now.set()
                await asyncio.sleep(max(again_s, pauses.next_s()))

    async def _report(self) -> float | None:
        """Say how far we are. Seconds after which it is to be said again; None: all is well. Rules of flow hold up what
        is given out, and no report: it renews the lease, and confirms."""
        own, offset, read_bytes = self._own, self._wanted, self._read_bytes
        told = offset if offset > self.confirmed else -1
        before, self._doubtful = self._doubtful, max(self._doubtful, told)
        request = ProgressRequestC2B(
            own.client_id, own.group, self.topic, self._number, told, read_bytes, bool(own.types) or None
        )
        try:
            answer = await self._ask(self._endpoint, request)
        except (OSError, WireError) as error:
            log.info("%s: %s; told again", self.subscription, error)
            if isinstance(error, ConnectionRefusedError):  # it was not even sent
                self._doubtful = before
            return 0.1
        if not isinstance(answer, ProgressResponseB2C):
            self._doubtful = before
            return 0.1
        if not answer.success:
            if answer.err_code != TopicCode.UNAVAILABLE:  # that of whoever could not hear of the store
                self._doubtful = before
            if answer.err_code in _TRY_AGAIN:
                return 0.1
            if answer.err_code in _OF_RIGHTS and answer.curr_offset is not None:
                self._reported(max(self.confirmed, answer.curr_offset))
            self._lose(answer.err_code, answer.err_msg)
            return None
        self._read_bytes -= read_bytes
        self.end = answer.max_offset or self.end
        self._reported(max(self.confirmed, answer.curr_offset or 0))
        self._limited = bool(answer.limited)
        self._wait_s = (answer.min_limit_time or 0) / 1000
        if self._wait_s:
            self._free.clear()
        elif not self._free.is_set():
            self._free.set()
            self._changed()
        return None

    def _reported(self, confirmed: int) -> None:
        self.confirmed = confirmed
        waiting, self._waiting = self._waiting, []
        for end, future in waiting:
            if end > confirmed:
                self._waiting.append((end, future))
            elif not future.done():
                future.set_result(None)
        if self._wanted > confirmed and self._waiting:
            self._report_now.set()

    def _lose(self, code: int, text: str) -> None:
        self.lost = TopicRefused(code, text)
        self._tell_all()
        self._changed()
