"""One connection to a kv port: each command gets exactly one reply, and nothing it does makes it keep much.

Commands below 1000 are answered here, all others by the node. What waits meanwhile: ``net/backlog.py``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from waltz_ray.actors.access_guard import MOST_REFUSALS, AccessGuard, comer_at
from waltz_ray.errors import BadPayload, InvalidInput, InvariantBroken
from waltz_ray.kv.messages import (
    Capabilities,
    Command,
    FailCode,
    FailInfo,
    Goodbye,
    Hashmasks,
    KvHello,
    NewServer,
    Opcode,
    Reply,
    SecondaryHas,
    ServerList,
    ShowKvToken,
    ShuttingDown,
    SpaceMeant,
    TryElsewhere,
)
from waltz_ray.kv.serving.access import KvAccess
from waltz_ray.kv.serving.port import ACK, FAIL, CommandPort, GatewayCounts, GatewayLimits, courtesy
from waltz_ray.kv.wire import (
    COMMAND_OPCODES,
    Dialect,
    announcement,
    decode_command,
    encode_command,
    encode_reply,
)
from waltz_ray.kv.wire_framer import HELD_FREELY, KvFrame, KvFramer
from waltz_ray.net.backlog import BackloggedStream, BacklogLimits
from waltz_ray.net.limit import ConnectionLimit
from waltz_ray.net.outgoing import Outgoing
from waltz_ray.net.room import Room
from waltz_ray.net.stream import Patience
from waltz_ray.net.untaken import Untaken

__all__ = ["KvConnection", "PortState"]

log = logging.getLogger(__name__)

_FIRST_DATA = 1000
_SECONDARY_HAS = int(Opcode.APPLIED)
_COMMAND_BYTES = 512  # of one that waits, besides its payload
_SMALL_REPLY = 1024  # is sent whatever waits: there are at most ``outstanding`` of them
_LONGEST_ADDRESS = 512  # is kept as long as the connection
_ASKED = 64  # own commands that are remembered: of an older one the reply counts as a stray


class PortState:
    """What all connections of a port share."""

    def __init__(
        self,
        name: str,
        port: CommandPort,
        dialect: Dialect,
        limits: GatewayLimits,
        outgoing: Outgoing,
        guard: AccessGuard | None = None,
        space: str = "",
        identity: str = "",
    ) -> None:
        self.port = port
        self.guard, self.space, self.identity = guard, space, identity
        self.dialect: Dialect = dialect
        self.limits = limits
        self.outgoing = outgoing
        self.admission = ConnectionLimit(name, limits.connections, limits.connections_per_peer)
        self.room = Room(limits.outstanding_bytes)
        self.frames_room = Room(limits.incoming_bytes)
        self.counts = GatewayCounts()
        self.connections: dict[int, KvConnection] = {}
        """Those that are open, by their number."""
        self.untaken = Untaken(limits.untaken_bytes, self.connections.values)
        self.none_left = asyncio.Event()
        """Set when the last of them goes."""
        self._last_message_id = 0
        self._last_connection_id = 0

    def next_message_id(self) -> int:
        """Of our own commands: unique on the port, so one announcement is the same bytes for everybody."""
        self._last_message_id = self._last_message_id % 0xFFFF_FFFF + 1
        return self._last_message_id

    def next_connection_id(self) -> int:
        self._last_connection_id += 1
        return self._last_connection_id

    def encoded(self, command: ServerList | Hashmasks, dialect: Dialect) -> list[tuple[int, int, bytes]]:
        """(message ID, opcode, frame) of what says it in a dialect."""
        return [self.frame_of(part, dialect) for part in announcement(command, dialect)]

    def frame_of(self, command: Command, dialect: Dialect = "doc") -> tuple[int, int, bytes]:
        """(message ID, opcode, frame) of a command of ours."""
        message_id = self.next_message_id()
        frame = encode_command(message_id, command, dialect)
        return message_id, int.from_bytes(frame[:2], "big"), frame


class KvConnection(BackloggedStream[KvFrame, KvFrame]):
    """One client, or one other member."""

    def __init__(self, shared: PortState) -> None:
        limits = shared.limits
        super().__init__(
            KvFramer(limits.frame_bytes, self._hold),
            shared.outgoing,
            Patience(limits.first_ms, limits.untaken_ms, limits.busy_bytes),
            shared.admission,
            BacklogLimits(limits.outstanding, limits.frame_ms),
            shared.room,
            shared.frames_room,
        )
        self.connection_id = shared.next_connection_id()
        self.greeted = False
        """It has said hello, and hears what changes."""
        self.dialect: Dialect = shared.dialect
        """In which it hears that: who asked whether we know our own commands need not be told things one by one."""
        self.stirred = True
        """Something has come since the last look (``look``)."""
        self._shared = shared
        self._port = shared.port
        self._limits = limits
        self._counts = shared.counts
        self._parting = False  # we have said goodbye
        self._said_goodbye = False  # and the node knows it
        self._missed = False  # an announcement that it did not take
        self._server = ""  # who it is, if it is a member
        self._asked: dict[int, int] = {}  # our commands without a reply: message ID -> opcode
        self._access: KvAccess | None = None  # while there are rights of clients
        self._when_answered: Callable[[], None] | None = None  # what is done when nothing is outstanding any more

    # ---- in ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self.busy:  # it was admitted
            self._shared.connections[self.connection_id] = self
            guard = self._shared.guard
            if guard is not None and guard.rules is not None:
                self._access = self._new_access(guard)

    def _new_access(self, guard: AccessGuard) -> KvAccess:
        return KvAccess(guard, comer_at(self._transport), self._shared.space, self.peer, self._counts.access_refused)

    def rights_changed(self) -> None:
        """What this connection could do before it may perhaps not do any more: then it is said goodbye to."""
        guard = self._shared.guard
        assert guard is not None
        if guard.rules is None:
            self._access = None
        elif self._access is None:
            self._access = self._new_access(guard)
            self.leave("clients have rights here from now on: connect again")
        elif why := self._access.lost():
            self.leave(why)

    def on_frame(self, frame: KvFrame) -> None:
        self._take(frame)

    def on_turn_end(self) -> None:
        super().on_turn_end()
        self._port.input_ended()

    def _handle(self, frame: KvFrame) -> None:
        opcode, replied_to, message_id, payload = frame
        self.stirred = True
        if replied_to:
            self._on_reply(message_id)
        elif payload is None:
            self._counts.no_room += 1
            text = f"no room for a long frame: {self._frames_room.used} bytes of others are coming in; ask again later"
            self._reply(opcode, message_id, FailInfo(FailCode.TOO_MANY, text))
        elif opcode not in COMMAND_OPCODES:
            self._counts.unknown += 1
            self._reply(opcode, message_id, courtesy(opcode, None))
        elif self._access is not None and (why := self._access.why_not(opcode)):
            self._refuse(opcode, message_id, why)
        elif opcode >= _FIRST_DATA and self._room.full and (self.outstanding or len(payload) > HELD_FREELY):
            self._put_back(frame)
        else:
            try:
                command = decode_command(opcode, payload)
            except BadPayload as error:
                self._counts.nonsense += 1
                self._reply(opcode, message_id, FailInfo(FailCode.BAD_REQUEST, str(error)))
                return
            if opcode >= _FIRST_DATA or opcode == _SECONDARY_HAS:
                self._submit(opcode, message_id, len(payload) + _COMMAND_BYTES, command)
            else:
                self._answer_here(opcode, message_id, command)

    def _refuse(self, opcode: int, message_id: int, why: str) -> None:
        assert self._access is not None
        self._reply(opcode, message_id, FailInfo(FailCode.NOT_ALLOWED, why))
        if self._access.refusals > MOST_REFUSALS:
            self.finish(why)

    def _submit(self, opcode: int, message_id: int, size: int, command: Command) -> None:
        self._counts.commands += 1
        self._room.used += size
        self.outstanding += 1
        self._port.submit(self.connection_id, command, partial(self._answered, opcode, message_id, size))
        if self.outstanding >= self._limits.outstanding:
            self._stall()

    def _answered(self, opcode: int, message_id: int, size: int, reply: Reply) -> None:
        self.outstanding -= 1
        if self.outstanding < 0:
            raise InvariantBroken(f"{self.peer}: a command has been answered twice, the last one was {opcode}")
        self._room.give(size)
        if self.ended:
            return
        self._reply(opcode, message_id, reply)
        if self._when_answered is not None and not self.outstanding:
            self._when_answered()
        else:
            self._one_less()

    def _answer_here(self, opcode: int, message_id: int, command: Command) -> None:
        if isinstance(command, KvHello):
            elsewhere = self._port.accepting()
            self._reply(opcode, message_id, TryElsewhere(elsewhere) if elsewhere else ACK)
            if not elsewhere:
                self.greeted = True
                self._tell_everything()
        elif isinstance(command, Goodbye):
            self._on_goodbye(opcode, message_id)
        elif isinstance(command, ShowKvToken):
            if self._access is not None and (why := self._access.show(command.token)):
                self._refuse(opcode, message_id, why)
            else:
                self._reply(opcode, message_id, ACK)
        elif isinstance(command, SpaceMeant):
            meant = self._shared.identity in ("", command.identity)
            self._reply(opcode, message_id, ACK if meant else FAIL)
        elif isinstance(command, ShuttingDown):
            self._reply(opcode, message_id, ACK)
            if self._server in self._port.servers():
                self._port.peer_shutting_down(self._server)
        else:
            assert not isinstance(command, SecondaryHas)
            if isinstance(command, NewServer):
                self._server = command.server if len(command.server) <= _LONGEST_ADDRESS else ""  # it is nobody's
            elif isinstance(command, Capabilities) and command.opcode == Opcode.PUT:
                self.dialect = "doc"
            self._reply(opcode, message_id, courtesy(opcode, command))

    def _on_reply(self, message_id: int) -> None:
        """By its message ID alone: a client of 2011 acks hashmasks(110) as if 100 had been asked (O34)."""
        opcode = self._asked.pop(message_id, None)
        if opcode is None:
            self._counts.stray_replies += 1
        elif opcode == Opcode.GOODBYE:
            self._end_with(partial(self.finish, "it has acked our goodbye"))

    def on_writable(self) -> None:
        if self._missed:
            self._missed = False
            self._tell_everything()
        super().on_writable()

    # ---- out --------------------------------------------------------------------------------------------

    def _reply(self, opcode: int, message_id: int, reply: Reply) -> None:
        try:
            frame = encode_reply(opcode, message_id, reply, self._limits.frame_bytes)
        except InvalidInput as error:
            frame = encode_reply(opcode, message_id, FailInfo(FailCode.TOO_LONG, str(error)))
        if len(frame) > _SMALL_REPLY and (why := self._why_not_now(len(frame))):
            self._counts.no_room += 1
            frame = encode_reply(opcode, message_id, FailInfo(FailCode.TOO_MANY, why))
        self.send_bytes(frame)

    def _why_not_now(self, size: int) -> str:
        """Why it is sent no reply of this size; empty: it is."""
        unsent_bytes = self.unsent_bytes
        if unsent_bytes > self._limits.unsent_bytes:
            return f"{unsent_bytes} bytes of replies have not been taken; take them, then ask again"
        if not self._shared.untaken.allows(size, unsent_bytes + size):
            return "clients of this port do not take what they ask for, and there is no room for more; ask again"
        return ""

    def tell(self, frames: list[tuple[int, int, bytes]]) -> None:
        """What has changed, to who said hello: (message ID, opcode, frame). Who takes nothing hears it all later."""
        if not self.greeted or self._leaving or self._parting:
            return
        if self.busy:
            self._missed = True
        else:
            self._ask(frames)

    def _tell_everything(self) -> None:
        self._ask(self._shared.encoded(ServerList(tuple(self._port.servers())), self.dialect))
        self._ask(self._shared.encoded(self._port.hashmasks(), self.dialect))

    def _ask(self, frames: list[tuple[int, int, bytes]]) -> None:
        for message_id, opcode, _ in frames[-_ASKED:]:
            self._asked[message_id] = opcode
        if frames:
            self.send_bytes(b"".join([frame for _, _, frame in frames]))
        while len(self._asked) > _ASKED:
            del self._asked[next(iter(self._asked))]

    # ---- end --------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Called now and then: goodbye to who was quiet since the last look."""
        if not (self.stirred or self.outstanding or self.busy):
            self.leave(f"it has been idle for more than {self._limits.idle_ms} ms")
        self.stirred = False

    def leave(self, why: str) -> None:
        """Say goodbye; the end is its ack, or a while without one. Until then it is served."""
        if not (self._parting or self._leaving):
            self._parting = True
            self._ask([self._shared.frame_of(Goodbye())])
            self._wait("goodbye", self._limits.goodbye_ms, why)

    def _on_goodbye(self, opcode: int, message_id: int) -> None:
        def last() -> None:
            self._reply(opcode, message_id, ACK)
            self.finish("it has said goodbye")

        if not self._said_goodbye:
            self._said_goodbye = True
            self._port.left(self.connection_id, goodbye=True)
        self._end_with(last)

    def _end_with(self, last: Callable[[], None]) -> None:
        """Take nothing more; ``last`` once what is outstanding has its answers, or has had time for them."""
        if self._leaving:
            return
        self._leaving = True
        self._stall()
        if not self.outstanding:
            last()
            return
        self._when_answered = last
        self._wait("goodbye", self._limits.goodbye_ms, f"it is leaving, and {self.outstanding} commands have no answer")

    def on_impatience(self, reason: str) -> None:
        self.say(log, logging.INFO, "closing the connection with %s: %s", self.peer, reason)

    def on_closed(self, error: Exception) -> None:
        super().on_closed(error)
        if self._shared.connections.pop(self.connection_id, None) is not None:
            if self.outstanding or not self._said_goodbye:
                self._port.left(self.connection_id)
            if not self._shared.connections:
                self._shared.none_left.set()
