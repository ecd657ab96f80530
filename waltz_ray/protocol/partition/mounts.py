"""Mounts that have no answer yet: held until they are confirmed, then until what came before them is admitted.

A mount is answered only after a quorum of the session's members has confirmed, in a round begun after the mount came,
that they know of no higher session. Without it a server that was replaced without noticing would call a client READY
that has appends in flight (or committed) at its successor, and the client would execute them a second time.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from waltz_ray.protocol.ids import NO_TRANSACTION
from waltz_ray.protocol.messages.client import FROM_NOW, FeedMode, Mount, Mounted
from waltz_ray.protocol.messages.original import MountState
from waltz_ray.protocol.partition.events import ConfirmSession, Effect, SendMessage
from waltz_ray.protocol.partition.feed import FEED_CREDIT_LIMIT_BYTES, FeedHub, Subscriber
from waltz_ray.protocol.partition.intake import Intake
from waltz_ray.protocol.partition.state import Log, PartitionState, Stage
from waltz_ray.protocol.session import Session
from waltz_ray.protocol.value import value

__all__ = ["Mounts", "confirmations_needed", "needs_what_is_gone"]


@value()
class _HeldMount:
    """A mount without an answer; any round after ``after_round`` began after it came."""

    connection_id: int
    mount: Mount
    after_round: int

    @property
    def key(self) -> tuple[int, int]:
        return self.connection_id, self.mount.req_id.client_id

    def with_credit(self, credit_bytes: int) -> _HeldMount:
        credit_bytes = min(self.mount.credit_bytes + credit_bytes, FEED_CREDIT_LIMIT_BYTES)
        return replace(self, mount=replace(self.mount, credit_bytes=credit_bytes))


def confirmations_needed(session: Session) -> int:
    """How many members must know of no higher session before a mount is answered: a successor has fenced one."""
    return session.quorum


def needs_what_is_gone(mount: Mount, trim_mark: int) -> bool:
    """Whether the client must be told of transactions that may have been trimmed away: it is never served a gap."""
    if mount.feed is FeedMode.NONE or (mount.feed is FeedMode.OWN and mount.client_mark == FROM_NOW):
        return False
    return max(mount.client_mark, NO_TRANSACTION) + 1 < trim_mark


class Mounts:
    """The mounts that have no answer yet. Methods return the effects."""

    def __init__(self, state: PartitionState, feed: FeedHub, intake: Intake) -> None:
        self._state = state
        self._feed = feed
        self._intake = intake
        self._held: dict[tuple[int, int], _HeldMount] = {}  # by connection and client
        # Confirmed; until so many arrivals are admitted. By the same, of which each is here or there.
        self._behind: OrderedDict[tuple[int, int], tuple[int, _HeldMount]] = OrderedDict()
        self._clients: dict[int, set[int]] = {}  # by connection, of both: of each one that ends all others may wait
        self._round = 0  # number of the last round of ConfirmSession
        self._confirmed: set[int] | None = None  # the members that have answered it; None = it is over

    @property
    def held(self) -> int:
        """How many wait to be confirmed."""
        return len(self._held)

    def mount(self, connection_id: int, mount: Mount) -> list[Effect]:
        """A client asks; of each client only the last mount over a connection counts."""
        held = _HeldMount(connection_id, mount, self._round)
        if self._state.stage is Stage.IDLE or mount.req_id.generation != self._state.generation:
            return [self._answer(held, MountState.NOT_READY)]
        before = self.forget(connection_id, mount.req_id.client_id)
        self._held[held.key] = held
        self._clients.setdefault(connection_id, set()).add(mount.req_id.client_id)
        effects: list[Effect] = [self._answer(one, MountState.NOT_READY) for one in before]
        return effects + (self.confirm() if self._confirmed is None else [])

    def add_credit(self, connection_id: int, credit_bytes: int) -> None:
        """Credit that comes while a mount waits is the mount's: it says what may be sent beyond what the mount said."""
        for client_id in self._clients.get(connection_id, ()):
            key = connection_id, client_id
            if key in self._held:
                self._held[key] = self._held[key].with_credit(credit_bytes)
            else:
                come, held = self._behind[key]
                self._behind[key] = come, held.with_credit(credit_bytes)

    # ---- rounds ---------------------------------------------------------------------------------------------

    def confirm(self) -> list[Effect]:
        """Begin a round for the mounts that wait; without a session the next one to open does.

        The round before is over in any case: its answers may be lost, and the next mount must not wait for them.
        """
        self.end_round()
        session = self._state.session
        if not self._held or session is None or not session.published:
            return []
        self._round += 1
        self._confirmed = set()
        return [ConfirmSession(session.session_id, session.members, self._round), *self._attach_confirmed(session)]

    def end_round(self) -> None:
        """What its members answer counts no more; the next mount begins another one."""
        self._confirmed = None

    def confirmed(self, session_id: int, replica_id: int, number: int) -> list[Effect]:
        """A replica has answered: it knows of no higher session."""
        session = self._state.session
        if self._confirmed is None or number != self._round or session is None or session.session_id != session_id:
            return []
        if replica_id in session.members:
            self._confirmed.add(replica_id)
        return self._attach_confirmed(session)

    def _attach_confirmed(self, session: Session) -> list[Effect]:
        if self._confirmed is None or len(self._confirmed) < confirmations_needed(session):
            return []
        self._confirmed = None
        mounts, self._held = self._held, {}
        effects: list[Effect] = []
        for key, held in mounts.items():
            if held.after_round >= self._round:
                self._held[key] = held
            elif self._intake.is_waiting:
                effects += self._wait_behind(held)
            else:
                self._answered(key)
                effects += self._attach(held)
        return effects + self.confirm()

    def _answered(self, key: tuple[int, int]) -> None:
        """It waits no more."""
        connection_id, client_id = key
        clients = self._clients[connection_id]
        clients.remove(client_id)
        if not clients:
            del self._clients[connection_id]

    # ---- attaching ------------------------------------------------------------------------------------------

    def _wait_behind(self, held: _HeldMount) -> list[Effect]:
        """What came over an older connection of this client is settled before READY; nothing more is taken from it."""
        client_id, effects = held.mount.req_id.client_id, self._replaced(held)
        older = self._feed.connection_of(client_id)
        if older is not None and not self._feed.has_newer_mount(held.connection_id, held.mount.req_id):
            self._feed.unmount(older, client_id)
        self._behind[held.key] = self._intake.come, held
        return effects

    def attach_due(self) -> list[Effect]:
        """Attach those before which everything is admitted."""
        effects: list[Effect] = []
        while self._behind and next(iter(self._behind.values()))[0] <= self._intake.admitted:
            key, (_, held) = self._behind.popitem(last=False)
            self._answered(key)
            effects += self._attach(held)
        return effects

    def _attach(self, held: _HeldMount) -> list[Effect]:
        """The mount is confirmed: begin its feed; READY follows when the feed has passed all that is in flight."""
        log, mount = self._state.log, held.mount
        assert log is not None
        if self._feed.has_newer_mount(held.connection_id, mount.req_id):
            # Two connections of one client have no order between them: this is what is left of the older one.
            return [self._answer(held, MountState.NOT_READY)]
        if mount.client_mark > log.high_water_mark:
            return [self._answer(held, MountState.CLIENT_AHEAD)]
        if needs_what_is_gone(mount, self._state.trim_mark):
            return [self._answer(held, MountState.TRIMMED)]
        replaced = self._replaced(held)
        self._intake.forget_client(mount.req_id.client_id)
        self._feed.mount(_subscriber(held, log))
        return replaced + self._feed.ask_for_turn()

    def _replaced(self, held: _HeldMount) -> list[Effect]:
        """The client's mount over the same connection that ``held`` takes the place of gets its answer, if it has none
        yet: its feed had not come far enough."""
        before = self._feed.newest(held.mount.req_id.client_id)
        if before is None or before.answered or before.connection_id != held.connection_id:
            return []
        not_ready = Mounted(before.req_id, MountState.NOT_READY, self._state.generation, NO_TRANSACTION)
        return [SendMessage(held.connection_id, not_ready)]

    def _answer(self, held: _HeldMount, state: MountState) -> SendMessage:
        mark = NO_TRANSACTION if state is MountState.NOT_READY else self._state.high_water_mark
        if state is MountState.TRIMMED:
            mark = self._state.trim_mark - 1
        return SendMessage(held.connection_id, Mounted(held.mount.req_id, state, self._state.generation, mark))

    # ---- ends -----------------------------------------------------------------------------------------------

    def forget(self, connection_id: int, client_id: int) -> list[_HeldMount]:
        """The mounts of a client over this connection that have no answer yet; they will get none from here."""
        key = connection_id, client_id
        if client_id not in self._clients.get(connection_id, ()):
            return []
        self._answered(key)
        return [self._held.pop(key) if key in self._held else self._behind.pop(key)[1]]

    def forget_connection(self, connection_id: int) -> None:
        """Nobody is there any more to be answered."""
        for client_id in list(self._clients.get(connection_id, ())):
            self.forget(connection_id, client_id)

    def log_lost(self) -> list[SendMessage]:
        """All are told NOT_READY."""
        mounts = [*self._held.values(), *(held for _, held in self._behind.values())]
        self._held.clear()
        self._behind.clear()
        self._clients.clear()
        self.end_round()
        return [self._answer(held, MountState.NOT_READY) for held in mounts]


def _subscriber(held: _HeldMount, log: Log) -> Subscriber:
    mount = held.mount
    from_now = mount.feed is FeedMode.OWN and mount.client_mark == FROM_NOW
    return Subscriber(
        held.connection_id,
        mount.req_id.client_id,
        mount.feed,
        log.high_water_mark if from_now else max(mount.client_mark, NO_TRANSACTION),
        mount.credit_bytes,
        mount.req_id,
        NO_TRANSACTION if from_now else log.next_id - 1,
        mount.in_order,
    )
