"""The client's machine against a server of a few lines, in random walks; and its table of transitions.

A walk draws what happens next: answers, losses, rewinds, moves, refusals, other clients' records, late applying. In the
end everything arrives and is applied, and then: each record appended has one fate and the log agrees with it, the feed
was gap-free, and the server may send as much as at the beginning. Each mutation breaks a rule and must be noticed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.simulation.mutations import WALKED
from waltz_ray.config import ClientConfig
from waltz_ray.errors import AccessRefused, ClientAhead, PartitionNotReady, Trimmed
from waltz_ray.protocol.ids import Endpoint, Location
from waltz_ray.protocol.messages.client import (
    FROM_NOW,
    AppendedBatch,
    FeedBatch,
    FeedCredit,
    FeedMode,
    FeedRecords,
    LockFailureBatch,
    Mount,
    Mounted,
    NotReady,
    Rejected,
    RejectionCode,
    Unmount,
)
from waltz_ray.protocol.messages.original import MountState
from waltz_ray.protocol.mounting import Mounting
from waltz_ray.protocol.mounting_types import (
    TRANSITIONS,
    AppendsTaken,
    Applied,
    CancelTimer,
    Deliver,
    Event,
    ExpireAppends,
    FailAppends,
    GaveUp,
    Located,
    LoseAppends,
    MountingState,
    MountTimerFired,
    OpenFailed,
    OpenStream,
    Received,
    RefuseAppends,
    RefuseLocks,
    Rewound,
    SendAppends,
    SendCredit,
    SendMount,
    SendUnmount,
    SendWaiting,
    SetTimer,
    Started,
    StateChanged,
    Stopped,
    StreamBroken,
    StreamLost,
    StreamOpened,
    Timer,
)
from waltz_ray.protocol.records import RecordBatch, few_records

CLIENT, OTHER = 7, 8
FRAME_BYTES = 1000
CONFIG = ClientConfig(feed_credit_bytes=5 * FRAME_BYTES, outstanding_appends=40)
ENDPOINT = Endpoint("127.0.0.1", 1)


@dataclass
class Connection:
    """In order both ways."""

    to_server: deque[Any] = field(default_factory=deque)
    to_client: deque[Any] = field(default_factory=deque)
    mode: FeedMode | None = None  # of the mount over it, if there is one
    sent: int = -1
    credit: int = 0
    ready: Mounted | None = None


class Server:
    """One partition; the log is (client ID, sequence number) by transaction ID."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.log: list[tuple[int, int]] = []
        self.generation = 1
        self.kind = True
        self.trim_mark = 0
        self.has_fed = False

    def take(self, connection: Connection) -> None:
        message = connection.to_server.popleft()
        if isinstance(message, Mount):
            self.mount(connection, message)
        elif isinstance(message, Unmount):
            connection.mode = None
        elif isinstance(message, FeedCredit):
            connection.credit += message.credit_bytes
        else:
            self.append(connection, message[0], message[1])
        self.feed(connection)

    def mount(self, connection: Connection, mount: Mount) -> None:
        mark = len(self.log) - 1
        if mount.req_id.generation != self.generation or (not self.kind and self.random.random() < 0.2):
            state = MountState.NOT_READY
        elif mount.client_mark != FROM_NOW and mount.client_mark + 1 < self.trim_mark:
            state, mark = MountState.TRIMMED, self.trim_mark - 1
        else:
            assert mount.client_mark <= mark, "no application is ahead here"
            state = MountState.READY
            connection.mode, connection.credit = mount.feed, mount.credit_bytes
            connection.sent = mark if mount.client_mark == -2 else mount.client_mark
        answer = Mounted(mount.req_id, state, self.generation, mark)
        if state is MountState.READY:
            connection.ready = answer
        else:
            connection.to_client.append(answer)

    def append(self, connection: Connection, generation: int, numbers: list[int]) -> None:
        roll = 1.0 if self.kind else self.random.random()
        wire = np.array(numbers, np.int32)
        if connection.mode is None or generation != self.generation:
            self.reject(connection, wire, RejectionCode.NOT_MOUNTED)
        elif roll < 0.1:
            self.reject(connection, wire, RejectionCode.QUEUE_FULL)
        elif roll < 0.15:
            self.reject(connection, wire, RejectionCode.TOO_LARGE)
        elif roll < 0.25:
            ids = np.full(len(wire), len(self.log) - 1, np.int64)
            connection.to_client.append(LockFailureBatch(0, wire, ids))
        else:
            self.log += [(CLIENT, number) for number in numbers[len(numbers) // 2 if roll < 0.3 else 0 :]]

    def reject(self, connection: Connection, wire: Any, code: RejectionCode) -> None:
        connection.to_client.append(Rejected(0, self.generation, code, wire, "as drawn"))

    def feed(self, connection: Connection) -> None:
        while connection.mode is not None and connection.sent < len(self.log) - 1:
            first = connection.sent + 1
            end = min(len(self.log), first + self.random.randint(1, 4))
            entries = self.log[first:end]
            if connection.mode is FeedMode.OWN:
                own = [(number, first + i) for i, (client, number) in enumerate(entries) if client == CLIENT]
                numbers, ids = np.array([o[0] for o in own], np.int32), np.array([o[1] for o in own], np.int64)
                connection.to_client.append(AppendedBatch(0, end - 1, numbers, ids))
            elif connection.credit <= 0:
                return
            else:
                connection.credit -= FRAME_BYTES
                self.has_fed = True
                clients = np.array([client for client, _ in entries], np.int32)
                numbers = np.array([number for _, number in entries], np.int32)
                connection.to_client.append(FeedBatch(0, first, clients, clients, numbers, numbers))
            connection.sent = end - 1
        if connection.mode is not None and connection.ready is not None:
            connection.to_client.append(connection.ready)
            connection.ready = None


class Walk:
    """One machine, the server, and what an application would know."""

    def __init__(self, seed: int, trimmed: bool = False) -> None:
        self.random = Random(seed)
        self.mode = self.random.choice([FeedMode.OWN, FeedMode.HEADERS, FeedMode.HEADERS])
        self.machine: Mounting[int] = Mounting(0, CLIENT, self.mode, -1, CONFIG, trimmed)
        self.server = Server(self.random)
        self.may_begin = trimmed  # further on: nothing has been delivered yet
        if trimmed:
            self.server.log = [(OTHER, number) for number in range(20)]
        self.pooled: Connection | None = None  # one stream to a server, as ``StreamPool`` has it
        self.mounted: Connection | None = None
        self.opening = False
        self.timers: dict[Timer, SetTimer] = {}
        self.batches = 0
        self.sent: dict[tuple[int, int], int] = {}  # (batch, record) -> sequence number
        self.fates: dict[tuple[int, int], str | int] = {}
        self.last = -1  # transaction delivered
        self.epoch = 0
        self.held: list[int] = []
        self.overdrawn_bytes = 0  # when the newest mount was sent: it could ask for no less than nothing
        self.tell(Started(Location(1, 1, ENDPOINT)))

    def tell(self, event: Event) -> None:
        for effect in self.machine.step(event):
            self.carry_out(effect)
        assert (self.machine.broken() or self.machine.monitor.broken()) is None

    def carry_out(self, effect: Any) -> None:
        assert not isinstance(effect, (StreamBroken, GaveUp)), effect
        if isinstance(effect, OpenStream):
            assert not self.opening
            self.opening = True
        elif isinstance(effect, SendMount):
            self.mounted = self.pooled
            self.overdrawn_bytes = max(0, sum(self.held) - CONFIG.feed_credit_bytes)
            self.send(effect.message)
        elif isinstance(effect, SendUnmount):
            self.send(effect.message)
            self.mounted = None
        elif isinstance(effect, SendCredit):
            self.send(effect.message)
        elif isinstance(effect, SetTimer):
            self.timers[effect.timer] = effect
        elif isinstance(effect, CancelTimer):
            del self.timers[effect.timer]
        elif isinstance(effect, SendAppends):
            count = sum(1 for batch, _ in self.sent if batch == effect.batch)
            numbers = [effect.first_sequence + i for i in range(count)]
            self.sent.update({(effect.batch, i): number for i, number in enumerate(numbers)})
            self.send((effect.generation, numbers))
        elif isinstance(effect, Deliver):
            self.deliver(effect)
        elif isinstance(effect, (FailAppends, RefuseAppends, RefuseLocks)):
            self.fate(effect.pieces, "absent")
        elif isinstance(effect, LoseAppends):
            self.fate(effect.pieces, "unknown")

    def send(self, message: Any) -> None:
        assert self.mounted is not None
        self.mounted.to_server.append(message)

    def fate(self, pieces: Any, fate: str) -> None:
        for piece in pieces:
            for i in range(piece.start, piece.start + piece.size):
                assert (piece.token, i) not in self.fates, "one fate each"
                self.fates[(piece.token, i)] = fate

    def deliver(self, effect: Deliver[int]) -> None:
        for piece in effect.committed:
            for i in range(piece.size):
                record = piece.token, piece.start + i
                assert record not in self.fates, "one fate each"
                self.fates[record] = int(effect.transaction_ids[piece.offset + i])
        self.fate(effect.failed, "absent")
        if effect.feed is None:
            return
        self.held.append(effect.frame_bytes)
        if effect.epoch == self.epoch:
            begin = self.server.trim_mark if self.may_begin else self.last + 1
            assert effect.feed.first_id <= begin, "a gap in the feed"
            self.may_begin = False
            self.last = max(self.last, effect.feed.first_id + len(effect.feed) - 1)

    # ---- what happens

    def step(self) -> None:
        self.random.choice(_STEPS)(self)

    def append(self) -> None:
        room = self.machine.room
        if room and self.mounted is not None:
            self.batches += 1
            count = self.random.randint(1, min(room, 5))
            self.sent.update({(self.batches, i): -1 for i in range(count)})
            self.tell(AppendsTaken(self.batches, count))

    def others_append(self) -> None:
        self.server.log.append((OTHER, len(self.server.log)))
        if self.pooled is not None:
            self.server.feed(self.pooled)

    def server_takes(self) -> None:
        if self.pooled is not None and self.pooled.to_server:
            self.server.take(self.pooled)

    def client_takes(self) -> None:
        if self.pooled is None or not self.pooled.to_client:
            return
        message = self.pooled.to_client.popleft()
        if self.mounted is self.pooled:  # else it has left the stream: nobody is told
            self.tell(Received(message, FRAME_BYTES))

    def opened(self) -> None:
        if not self.opening:
            return
        self.opening = False
        if not self.server.kind and self.random.random() < 0.2:
            self.tell(OpenFailed(ConnectionRefusedError("as drawn")))
        else:
            self.pooled = self.pooled or Connection()
            self.tell(StreamOpened())

    def lose(self) -> None:
        """What is under way, either way, is gone; the server may have taken some of it."""
        if self.pooled is None or self.random.random() < 0.7:
            return
        for _ in range(self.random.randint(0, len(self.pooled.to_server))):
            self.server.take(self.pooled)
        mounted, self.pooled = self.mounted, None
        if mounted is not None:
            self.tell(StreamLost(ConnectionResetError("as drawn")))

    def fire(self) -> None:
        if self.timers:
            timer = self.random.choice([*self.timers])
            del self.timers[timer]
            self.tell(MountTimerFired(timer))

    def apply(self) -> None:
        if self.held:
            self.tell(Applied(self.held.pop(0)))

    def rewind(self) -> None:
        oldest = self.server.trim_mark - 1
        if self.mode is not FeedMode.OWN and self.random.random() < 0.2 and not self.may_begin:
            self.last = self.random.randint(oldest, self.last)
            self.epoch += 1
            self.tell(Rewound(self.last, self.epoch))

    def trim(self) -> None:
        """Not more than the application has, once it is being fed; of who only appends whatever is there."""
        server = self.server
        highest = self.last + 1 if server.has_fed else len(server.log)
        server.trim_mark = self.random.randint(server.trim_mark, max(server.trim_mark, highest))

    def move(self) -> None:
        """The same server has it again, in a new generation; perhaps it was nobody's for a while."""
        if self.random.random() < 0.3:
            self.server.generation += 1
            if self.pooled is not None and self.pooled.mode is not None:
                self.pooled.mode = None
                if self.random.random() < 0.5:  # else the directory is sooner
                    self.pooled.to_client.append(NotReady(0, self.server.generation))
        self.locate()

    def hand_over(self) -> None:
        """As ``move``, with some of the feed on its way when the next mount is sent over the same stream."""
        for _ in range(3):
            self.others_append()
        self.server.generation += 1
        if self.pooled is not None:
            self.pooled.mode = None
        self.locate()
        self.opened()

    def locate(self) -> None:
        known = self.server.kind or self.random.random() < 0.8
        endpoint = ENDPOINT if self.server.kind or self.random.random() < 0.8 else None
        self.tell(Located(Location(1, self.server.generation, endpoint) if known else None))

    def quiesce(self) -> None:
        """Everything arrives, and is applied."""
        self.server.kind = True
        self.locate()
        for _ in range(10_000):
            moves = [self.server_takes, self.client_takes, self.opened, self.apply, self.fire]
            for move in moves:
                move()
            busy = self.held or (self.pooled and (self.pooled.to_server or self.pooled.to_client))
            if self.machine.room and not busy:
                return
        raise AssertionError(f"it does not become ready: {self.machine.state}")

    def check(self) -> None:
        log = {number: i for i, (client, number) in enumerate(self.server.log) if client == CLIENT}
        assert len(log) == sum(client == CLIENT for client, _ in self.server.log), "a duplicate"
        for record, number in self.sent.items():
            fate = self.fates.get(record)
            assert fate == log.get(number, "absent") or (fate == "unknown" and self.server.trim_mark), (record, number)
        if self.mode is FeedMode.OWN:
            return
        assert self.last == len(self.server.log) - 1
        assert self.pooled is not None
        told = self.pooled.credit + self.machine._credit_bytes
        assert told == CONFIG.feed_credit_bytes + self.overdrawn_bytes, told


_STEPS: list[Callable[[Walk], None]] = [
    *[Walk.append] * 4,
    *[Walk.others_append] * 2,
    *[Walk.server_takes] * 8,
    *[Walk.client_takes] * 8,
    *[Walk.opened] * 3,
    *[Walk.fire] * 2,
    *[Walk.apply] * 5,
    Walk.lose,
    Walk.rewind,
    Walk.move,
]


def walk(seed: int, steps: int = 300, trimmed: bool = False) -> Walk:
    one = Walk(seed, trimmed)
    one.server.kind = False
    for _ in range(steps):
        one.step()
        if trimmed and one.random.random() < 0.1:
            one.trim()
    one.hand_over()
    one.quiesce()
    one.check()
    return one


def test_walks() -> None:
    walks = [walk(seed) for seed in range(150)]
    fates = [fate for one in walks for fate in one.fates.values()]
    assert fates.count("absent") > 200
    assert sum(isinstance(fate, int) for fate in fates) > 1000
    assert sum(one.machine.mounts for one in walks) > 400
    assert sum(one.epoch for one in walks) > 100


def test_walks_on_a_log_that_is_trimmed() -> None:
    walks = [walk(seed, trimmed=True) for seed in range(150)]
    fates = [fate for one in walks for fate in one.fates.values()]
    assert fates.count("unknown") > 20
    assert sum(isinstance(fate, int) for fate in fates) > 900
    assert sum(one.server.trim_mark for one in walks) > 1000


# ---- teeth


BROKEN = (
    "older_pending_are_not_failed",
    "fates_decided_at_a_lost_connection",
    "own_mount_skips_what_is_pending",
    "sequence_numbers_come_again",
    "rewinds_are_skipped",
    "answers_to_earlier_mounts_are_believed",
    "credit_of_earlier_mounts_is_kept",
    "a_mount_claims_all_credit",
    "the_rest_of_an_earlier_mount_fails_what_is_older",
    "moves_go_unnoticed",
    "the_back_off_is_forgotten",
)
BROKEN_OF_TRIMMED = (
    "what_became_of_appends_is_made_up",
    "what_is_gone_is_waited_for",
    "who_only_appends_is_given_up",
)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_noticed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    WALKED[name](monkeypatch)
    with pytest.raises(AssertionError):
        [walk(seed) for seed in range(150)]


@pytest.mark.parametrize("name", BROKEN_OF_TRIMMED)
def test_a_broken_rule_is_noticed_where_the_log_is_trimmed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    WALKED[name](monkeypatch)
    with pytest.raises(AssertionError):
        [walk(seed, trimmed=True) for seed in range(150)]


# ---- one by one


class Bench:
    """A machine and what it answered last."""

    def __init__(
        self,
        mode: FeedMode = FeedMode.HEADERS,
        position: int = -1,
        earliest: bool = False,
        config: ClientConfig = CONFIG,
    ) -> None:
        self.machine: Mounting[str] = Mounting(0, CLIENT, mode, position, config, earliest)

    def tell(self, event: Event) -> list[Any]:
        effects = [*self.machine.step(event)]
        assert (self.machine.broken() or self.machine.monitor.broken()) is None
        return effects

    def names(self, event: Event) -> list[str]:
        return [type(effect).__name__ for effect in self.tell(event)]

    def mounting(self) -> Mount:
        self.tell(Started(Location(1, 1, ENDPOINT)))
        mount = self.tell(StreamOpened())[-1]
        assert isinstance(mount, SendMount)
        return mount.message

    def again(self) -> Mount:
        """The next attempt, after the back-off."""
        self.tell(MountTimerFired(Timer.RETRY))
        mount = self.tell(StreamOpened())[-1]
        assert isinstance(mount, SendMount)
        return mount.message

    def ready(self) -> Mount:
        mount = self.mounting()
        self.tell(Received(Mounted(mount.req_id, MountState.READY, 1, mount.client_mark), 0))
        assert self.machine.state is MountingState.READY
        return mount


def test_every_state_has_its_successors() -> None:
    assert set(TRANSITIONS) == set(MountingState)
    reached = {MountingState.LOCATING}
    for _ in MountingState:
        reached |= {after for state in reached for after in TRANSITIONS[state]}
    assert reached == set(MountingState)
    for state in MountingState:
        for after in set(MountingState) - TRANSITIONS[state]:
            bench = Bench()
            bench.machine.state = state
            with pytest.raises(AssertionError, match=f"{state.name} is never followed by {after.name}"):
                bench.machine._enter(after)


def test_from_locating_to_ready_and_back() -> None:
    bench = Bench()
    assert bench.names(Started(None)) == ["SetTimer"]
    assert bench.names(Located(Location(1, 1, None))) == []
    assert bench.names(Located(Location(1, 1, ENDPOINT))) == ["OpenStream"]
    effects = bench.tell(StreamOpened())
    req_id = effects[-1].message.req_id
    assert [type(effect) for effect in effects] == [StateChanged, SendMount]
    stale = req_id._replace(sequence_number=req_id.sequence_number - 1)
    assert bench.names(Received(Mounted(stale, MountState.READY, 1, 5), 0)) == []
    assert bench.names(Received(Mounted(req_id, MountState.READY, 1, -1), 0)) == ["StateChanged", "SendWaiting"]
    assert bench.machine.room == CONFIG.outstanding_appends
    assert bench.names(AppendsTaken("batch", 3)) == ["SendAppends"]
    assert bench.names(Received(Mounted(req_id, MountState.READY, 1, -1), 0)) == ["StreamBroken"]
    lost = bench.names(StreamLost(ConnectionResetError("gone")))
    assert lost == ["SendUnmount", "StateChanged", "SetTimer"]  # the last is RETRY; EXPIRY is still set
    assert (bench.machine.room, bench.machine.monitor.pending) == (0, 3)


def test_a_change_cuts_the_back_off_short() -> None:
    bench = Bench()
    bench.tell(Started(Location(1, 1, ENDPOINT)))
    assert bench.tell(OpenFailed(OSError("no"))) == [SetTimer(Timer.RETRY, 0.02, jittered=True)]
    elsewhere = Location(2, 2, ENDPOINT)
    assert bench.tell(Located(elsewhere)) == [CancelTimer(Timer.RETRY), OpenStream(elsewhere)]
    assert bench.tell(OpenFailed(OSError("no"))) == [SetTimer(Timer.RETRY, 0.04, jittered=True)]
    assert bench.tell(MountTimerFired(Timer.RETRY)) == [OpenStream(elsewhere)]
    third = Location(3, 3, ENDPOINT)
    assert bench.tell(Located(third)) == []
    assert bench.tell(StreamOpened()) == [OpenStream(third)]  # what was opened is of no use any more


@pytest.mark.parametrize(
    ("quick_ms", "pauses_ms"),
    [
        (0, [20, 40, 80, 160, 320, 640, 1000, 1000]),
        (100, [20, 40, 40, 80, 160, 320, 640, 1000]),
        (300, [20, 40, 40, 40, 40, 40, 40, 40, 80, 160, 320, 640, 1000, 1000]),
    ],
)
def test_it_tries_often_at_first_and_then_ever_more_rarely(quick_ms: int, pauses_ms: list[int]) -> None:
    bench = Bench(config=replace(CONFIG, quick_mounts_ms=quick_ms))
    bench.tell(Started(Location(1, 1, ENDPOINT)))

    def pauses_after(event: Event) -> list[int]:
        """Of ``event``, and of attempts that fail behind it."""
        found = []
        for each in [event, *[OpenFailed(OSError("no"))] * (len(pauses_ms) - 1)]:
            timer = bench.tell(each)[-1]
            assert timer.jittered
            found.append(round(1000 * timer.delay_s))
            bench.tell(MountTimerFired(Timer.RETRY))
        return found

    assert pauses_after(OpenFailed(OSError("no"))) == pauses_ms
    message = bench.tell(StreamOpened())[-1].message
    bench.tell(Received(Mounted(message.req_id, MountState.READY, 1, message.client_mark), 0))
    assert pauses_after(StreamLost(ConnectionResetError("gone"))) == pauses_ms


def test_what_waits_too_long_expires_while_it_is_not_ready() -> None:
    bench = Bench()
    bench.tell(Started(None))
    expire, again = bench.tell(MountTimerFired(Timer.EXPIRY))
    assert isinstance(expire, ExpireAppends)
    assert isinstance(expire.error, PartitionNotReady)
    assert "no server owns it" in str(expire.error)
    assert again == SetTimer(Timer.EXPIRY, CONFIG.mount_timeout_ms / 10_000)
    bench = Bench()
    bench.ready()
    assert bench.tell(MountTimerFired(Timer.EXPIRY)) == []
    assert SetTimer(Timer.EXPIRY, 3.0) in bench.tell(StreamLost(ConnectionResetError("gone")))


def test_a_full_queue_is_left_alone_for_longer_each_time() -> None:
    bench = Bench(FeedMode.OWN)
    bench.ready()
    full = Received(Rejected(0, 1, RejectionCode.QUEUE_FULL, np.array([0], np.int32), "full"), 0)
    for delay_s in (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.2, 0.2):
        bench.tell(AppendsTaken("batch", 1))
        assert bench.tell(full)[0] == SetTimer(Timer.FULL, delay_s)
        assert bench.machine.room == 0
        assert bench.names(MountTimerFired(Timer.FULL)) == ["SendWaiting"]
    number = np.array([bench.machine.monitor.register("batch", 0, 1)], np.int32)
    bench.tell(Received(AppendedBatch(0, 5, number, np.array([5], np.int64)), 0))
    assert bench.tell(full)[0] == SetTimer(Timer.FULL, 0.005)


def test_after_a_refusal_nothing_is_sent_before_all_fates_are_known() -> None:
    """So what is sent again keeps its place, and a number is left out, so that the server knows."""
    bench = Bench(FeedMode.OWN)
    bench.ready()
    numbers = [bench.tell(AppendsTaken("batch", 1))[0].first_sequence for _ in range(3)]
    assert numbers == [0, 1, 2]
    bench.tell(Received(Rejected(0, 1, RejectionCode.QUEUE_FULL, np.array([1], np.int32), "full"), 0))
    bench.tell(MountTimerFired(Timer.FULL))
    assert bench.machine.room == 0, "0 and 2 have none"
    bench.tell(Received(AppendedBatch(0, 5, np.array([0], np.int32), np.array([5], np.int64)), 0))
    assert bench.machine.room == 0
    final = Received(Rejected(0, 1, RejectionCode.TOO_LARGE, np.array([2], np.int32), "too large"), 0)
    assert bench.names(final) == ["RefuseAppends", "SendWaiting"]
    assert bench.machine.room > 0
    assert [bench.tell(AppendsTaken("batch", 1))[0].first_sequence for _ in range(2)] == [4, 5]


def test_a_mount_asks_for_order() -> None:
    assert Bench(FeedMode.OWN).mounting().in_order


def test_a_client_that_is_ahead_stays_so() -> None:
    bench = Bench(position=17)
    mount = bench.mounting()
    effects = bench.tell(Received(Mounted(mount.req_id, MountState.CLIENT_AHEAD, 1, 3), 0))
    assert [type(effect) for effect in effects] == [StateChanged, SendUnmount, GaveUp]
    assert isinstance(bench.machine.not_ready_error(0), ClientAhead)
    later: list[Event] = [
        Located(Location(2, 2, ENDPOINT)),
        Rewound(3, 1),
        MountTimerFired(Timer.EXPIRY),
        StreamLost(ConnectionResetError("gone")),
    ]
    for event in later:
        assert bench.tell(event) == []
    assert bench.machine.state is MountingState.GIVEN_UP


def trimmed(mount: Mount, lowest_mark: int) -> Received:
    return Received(Mounted(mount.req_id, MountState.TRIMMED, 1, lowest_mark), 0)


def headers(first_id: int, count: int = 1) -> Received:
    zeros = np.zeros(count, np.int32)
    return Received(FeedBatch(0, first_id, zeros, zeros, zeros, zeros), FRAME_BYTES)


def test_a_client_whose_next_transaction_is_gone_is_given_up_and_its_appends_are_left_open() -> None:
    bench = Bench(position=4)
    bench.ready()
    bench.tell(AppendsTaken("batch", 3))
    bench.tell(Received(NotReady(0, 1), 0))
    lost, _, _, gave_up = bench.tell(trimmed(bench.again(), 8))
    assert isinstance(lost, LoseAppends)
    assert [piece[:3] for piece in lost.pieces] == [("batch", 0, 3)]
    assert "may or may not be in the log" in str(lost.error)
    assert isinstance(gave_up, GaveUp)
    error = bench.machine.not_ready_error(0)
    assert gave_up.error is error
    assert isinstance(error, Trimmed)
    assert error.args == (0, 5, 9, "")
    assert bench.tell(Rewound(3, 1)) == bench.tell(Located(Location(2, 2, ENDPOINT))) == []
    assert bench.machine.state is MountingState.GIVEN_UP


def test_who_wants_the_earliest_begins_at_what_there_is_however_often_that_moves() -> None:
    bench = Bench(earliest=True)
    mount = bench.mounting()
    for mark in (8, 20):
        effects = bench.tell(trimmed(mount, mark))
        assert [type(effect) for effect in effects] == [SendUnmount, StateChanged, SetTimer]
        mount = bench.again()
        assert mount.client_mark == mark
    bench.tell(headers(21))
    assert bench.machine.position == 21
    # It has something now: from here on it is like any other.
    effects = bench.tell(trimmed(mount, 30))
    assert [type(effect) for effect in effects] == [StateChanged, SendUnmount, GaveUp]
    assert effects[-1].error.args == (0, 22, 31, "")


def test_who_has_had_meanwhile_what_is_gone_mounts_again() -> None:
    """The rest of an earlier mount over the same stream came before the answer."""
    bench = Bench(position=4)
    mount = bench.mounting()
    bench.tell(headers(5, count=6))
    effects = bench.tell(trimmed(mount, 8))
    assert [type(effect) for effect in effects] == [SendUnmount, StateChanged, SetTimer]
    assert bench.again().client_mark == 10


def test_an_application_that_went_back_does_not_begin_further_on() -> None:
    bench = Bench(earliest=True)
    bench.mounting()
    bench.tell(Rewound(3, 1))
    assert isinstance(bench.tell(trimmed(bench.again(), 8))[-1], GaveUp)


def test_who_only_appends_goes_on_but_cannot_know_what_became_of_what_was_under_way() -> None:
    bench = Bench(FeedMode.OWN)
    bench.ready()
    bench.tell(Received(AppendedBatch(0, 5, np.zeros(0, np.int32), np.zeros(0, np.int64)), 0))
    bench.tell(AppendsTaken("batch", 2))
    bench.tell(StreamLost(ConnectionResetError("gone")))
    mount = bench.again()
    assert mount.client_mark == 5
    lost, *rest = bench.tell(trimmed(mount, 8))
    assert isinstance(lost, LoseAppends)
    assert lost.error.args[:3] == (0, 6, 9)
    assert [type(effect) for effect in rest] == [SendUnmount, StateChanged, SetTimer]
    mount = bench.again()
    assert mount.client_mark == FROM_NOW
    assert bench.names(Received(Mounted(mount.req_id, MountState.READY, 1, 9), 0)) == ["StateChanged", "SendWaiting"]
    assert bench.machine.room == CONFIG.outstanding_appends


@pytest.mark.parametrize("count", [1, 40])
def test_a_record_that_is_not_what_its_crc_says_breaks_the_stream(count: int) -> None:
    batch = few_records(0, 0, [(9, 1, number, 0, 0, b"data") for number in range(count)])
    for at in range(len(batch.records)):
        changed = bytearray(batch.records)
        changed[at] ^= 1 << at % 8
        bench = Bench()
        bench.ready()
        fed = FeedRecords(RecordBatch(0, 0, batch.lengths, memoryview(changed)))
        (effect,) = bench.tell(Received(fed, FRAME_BYTES))
        assert isinstance(effect, StreamBroken)
        assert "is not what its CRC says" in str(effect.error)
        assert bench.machine.position == -1, "it is asked for again"
    assert bench.names(Received(FeedRecords(batch), FRAME_BYTES)) == ["Deliver"]


def test_a_feed_with_a_gap_breaks_the_stream() -> None:
    bench = Bench()
    bench.ready()
    column = np.zeros(1, np.int32)
    (effect,) = bench.tell(Received(FeedBatch(0, 5, column, column, column, column), FRAME_BYTES))
    assert isinstance(effect, StreamBroken)
    assert "jumps from transaction -1 to 5" in str(effect.error)


def test_the_rest_of_an_earlier_mount_says_nothing_about_what_is_older() -> None:
    """Told out of order, an own record must not fail one whose news was let go: that would be sent twice."""
    bench = Bench(FeedMode.OWN)
    bench.ready()
    first, second = (
        Received(AppendedBatch(0, number, np.array([number], np.int32), np.array([number], np.int64)), 0)
        for number in range(2)
    )
    bench.tell(AppendsTaken("a", 1))
    bench.tell(AppendsTaken("b", 1))
    bench.tell(Located(Location(1, 2, ENDPOINT)))
    assert bench.tell(first) == []  # between two mounts over one stream: let go
    mount = bench.tell(StreamOpened())[-1].message
    news = bench.tell(second)[-1]
    assert ([piece.token for piece in news.committed], news.failed) == (["b"], [])
    assert bench.machine.monitor.resume_mark < 0  # so that also the mount after this one would tell it
    assert [piece.token for piece in bench.tell(first)[-1].committed] == ["a"]
    assert bench.names(Received(Mounted(mount.req_id, MountState.READY, 2, 1), 0)) == ["StateChanged", "SendWaiting"]


def test_nothing_follows_the_stop() -> None:
    bench = Bench()
    mount = bench.ready()
    bench.tell(AppendsTaken("batch", 3))
    assert bench.names(Stopped()) == ["SendUnmount", "StateChanged"]
    assert bench.machine.monitor.pending == 0
    later: list[Event] = [
        Started(Location(1, 1, ENDPOINT)),
        Received(Mounted(mount.req_id, MountState.READY, 1, -1), 0),
        MountTimerFired(Timer.RETRY),
        Rewound(0, 1),
        Stopped(),
    ]
    for event in later:
        assert bench.tell(event) == []


def not_allowed(*numbers: int) -> Received:
    columns = np.array(numbers, dtype=np.int32)
    return Received(Rejected(0, -1, RejectionCode.NOT_ALLOWED, columns, "client 'ann' may not: ask"), 0)


def test_who_may_not_mount_is_told_once_and_for_all() -> None:
    bench = Bench()
    bench.mounting()
    effects = bench.tell(not_allowed())
    assert [type(effect) for effect in effects] == [StateChanged, SendUnmount, GaveUp]
    error = bench.machine.not_ready_error(0)
    assert isinstance(error, AccessRefused)
    assert "client 'ann' may not: ask" in str(error)
    assert bench.tell(Located(Location(2, 2, ENDPOINT))) == []


def test_a_right_that_went_while_appends_were_under_way_leaves_their_fate_open() -> None:
    bench = Bench()
    bench.ready()
    bench.tell(AppendsTaken("batch", 3))
    bench.tell(StreamLost(ConnectionResetError("the rights have changed")))
    bench.again()
    effects = bench.tell(not_allowed())
    assert [type(effect) for effect in effects] == [LoseAppends, StateChanged, SendUnmount, GaveUp]
    assert "may or may not be in the log" in str(effects[0].error)


def test_an_append_that_is_not_allowed_is_refused_for_good_and_the_mount_goes_on() -> None:
    bench = Bench()
    bench.ready()
    bench.tell(AppendsTaken("batch", 1))
    effects = bench.tell(not_allowed(0))
    assert [type(effect) for effect in effects] == [RefuseAppends, SendWaiting]
    assert bench.machine.state is MountingState.READY
