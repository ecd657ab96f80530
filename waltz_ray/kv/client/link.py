"""One connection of a client to a key/value actor, and what keeps one open: commands out, replies in, by message ID.

The actor sends commands, too: which buckets it has, which servers there are. Each is acknowledged.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from functools import partial
from typing import Protocol

from waltz_ray import compat
from waltz_ray.client.credentials import NO_CREDENTIALS, Presented
from waltz_ray.client.liveness import lives
from waltz_ray.errors import AccessRefused, WaltzError, WireError
from waltz_ray.kv.messages import (
    Ack,
    Capabilities,
    Command,
    Fail,
    FailCode,
    FailInfo,
    Goodbye,
    Hashmask,
    Hashmasks,
    KvHello,
    NewServer,
    Opcode,
    Ping,
    Reply,
    ServerList,
    ShowKvToken,
    ShuttingDown,
    SpaceMeant,
    TryElsewhere,
    Unknown,
)
from waltz_ray.kv.wire import decode_command, decode_reply, encode_command, encode_reply
from waltz_ray.kv.wire_framer import KvFrame, KvFramer
from waltz_ray.net.backoff import Backoff
from waltz_ray.net.carried import Carried
from waltz_ray.net.connector import connect
from waltz_ray.net.outgoing import Outgoing
from waltz_ray.net.stream import Stream

__all__ = ["Answer", "KvLink", "KvPeer", "LinkHome", "Missed"]

_CONNECT_S = 3.0  # until it is open and greeted
_SILENCE_S = 1.5  # with something outstanding: then a ping; after as long again it is given up
_DOUBTED_S = 0.3  # the same where what it had is another's by now
_UNREAD_S = 0.1  # for what has come already, if we were busy ourselves, and for the answer to a ping
_UINT32 = 0xFFFFFFFF
_NATIVE = Opcode.PUT  # who knows this one knows all of ours


class Missed(enum.Enum):
    """Why a command has no reply."""

    LOST = 1
    """The connection was lost: it may have been carried out."""
    LATE = 2
    """Its time was over: it may have been, or may be yet."""


Answer = Reply | Missed


class LinkHome(Protocol):
    """The engine, as a connection sees it. All on its loop."""

    def announced(self, server: str, message: Hashmasks | Hashmask) -> None:
        """What an actor says that it has. WireError: that cannot be."""

    def listed(self, servers: tuple[str, ...]) -> None:
        """What an actor says of who else there is."""

    def changed(self) -> None:
        """A connection is ready, or was lost."""


class KvLink(Stream[KvFrame]):
    """One connection, ready after ``greet``."""

    def __init__(self, home: LinkHome, server: str, max_frame_bytes: int) -> None:
        super().__init__(KvFramer(max_frame_bytes), Outgoing())
        self.server = server
        self.closed: asyncio.Future[Exception] = self._loop.create_future()
        """Done, with the reason, when it is over."""
        self._home = home
        self._asked: dict[int, asyncio.Future[Answer]] = {}
        self._last_id = 0
        self._heard = False  # anything, since the last look
        self._silent_since_s = 0.0  # since when something is outstanding and nothing has come
        self._pinged = False
        self._before: Carried | None = None  # how far it had come at the last look
        self._look: asyncio.TimerHandle | None = None
        self._doubt: asyncio.TimerHandle | None = None
        self._when_doubted: Carried | None = None  # how far it had come then

    async def greet(self, token: str = "", space: str = "") -> None:
        """Who we are, if a token says it; which ``space`` we mean, if that is known; hello, and whether it knows our
        commands. ConnectionError: it does not, takes no clients, or serves another space. AccessRefused."""
        shown = self.ask(ShowKvToken(token)) if token else None
        if space and isinstance(await self.ask(SpaceMeant(space)), Fail):  # before it says what it has
            raise ConnectionRefusedError(f"{self.server} serves another space by now")
        native, hello = self.ask(Capabilities(_NATIVE)), self.ask(KvHello())  # so that what it has comes as one message
        for answer in filter(None, (shown, hello)):
            if isinstance(said := await answer, FailInfo) and said.code == FailCode.NOT_ALLOWED:
                raise AccessRefused(f"{self.server} says: {said.text}")
        if not isinstance(said := await hello, Ack):
            raise ConnectionRefusedError(f"{self.server} takes no clients just now: {_words(said)}")
        if not isinstance(said := await native, Ack):
            raise ConnectionRefusedError(f"{self.server} is no key/value actor of waltz_ray: {_words(said)}")

    def ask(self, command: Command) -> asyncio.Future[Answer]:
        """Send it. The result is its reply, or why there is none; never an exception."""
        answer: asyncio.Future[Answer] = self._loop.create_future()
        if self.ended:
            answer.set_result(Missed.LOST)
            return answer
        if not self._asked:
            self._silent_since_s = self._loop.time()
        self._last_id = self._last_id % _UINT32 + 1
        self._asked[self._last_id] = answer
        self.send_bytes(encode_command(self._last_id, command))
        if self._look is None:
            self._heard = self._pinged = False
            self._before = self.carried()
            self._look = self._loop.call_later(_SILENCE_S, self._look_after)
        return answer

    def doubt(self) -> None:
        """Somebody else has what this actor had: perhaps it has moved, perhaps this actor hangs. Then what it has been
        asked had better go to the other, so it has to have said something lately, or to do so soon."""
        if not self._asked or self._doubt is not None or self.ended:
            return
        silent_s = self._loop.time() - self._silent_since_s
        self._when_doubted = self.carried()
        self._ping()
        self._doubt = self._loop.call_later(max(_UNREAD_S, _DOUBTED_S - silent_s), self._still_doubted)

    # ---- Stream

    def data_received(self, data: bytes) -> None:
        self._lives()  # a long answer over a slow line is whole only after a while
        super().data_received(data)

    def on_frame(self, frame: KvFrame) -> None:
        self._lives()
        opcode, replied_to, message_id, payload = frame
        assert payload is not None, "this framer is not told to drop any"
        if replied_to:
            reply = decode_reply(opcode, payload)
            answer = self._asked.pop(message_id, None)
            if answer is not None and not answer.done():
                answer.set_result(reply)
            return
        self.send_bytes(encode_reply(opcode, message_id, self._handled(opcode, payload)))
        if opcode == Opcode.GOODBYE:
            self.finish("it has said goodbye")

    def on_closed(self, error: Exception) -> None:
        for timer in (self._look, self._doubt):
            if timer is not None:
                timer.cancel()
        asked, self._asked = self._asked, {}
        for answer in asked.values():
            if not answer.done():
                answer.set_result(Missed.LOST)
        if not self.closed.done():
            self.closed.set_result(error)

    # ---- inside

    def _handled(self, opcode: int, payload: bytes) -> Reply:
        try:
            command = decode_command(opcode, payload)
        except KeyError:
            return Unknown(opcode)
        except WireError as error:
            return FailInfo(FailCode.BAD_REQUEST, str(error))
        if isinstance(command, Hashmasks | Hashmask):
            self._home.announced(self.server, command)
        elif isinstance(command, ServerList):
            self._home.listed(command.servers)
        elif not isinstance(command, Ping | Goodbye | NewServer | ShuttingDown | KvHello | Capabilities):
            return Unknown(opcode)
        return Ack()

    def _lives(self) -> None:
        self._heard, self._silent_since_s = True, self._loop.time()
        if self._doubt is not None:
            self._doubt.cancel()
            self._doubt = None

    def _look_after(self) -> None:
        """A process that is stopped keeps its connections: one that says nothing, also to a ping, is given up. But not
        while a long command is still on its way to it, and the ping behind that."""
        self._look = None
        if not self._asked or self.ended:
            return
        before, self._before = self._before, self.carried()
        if self._heard or _goes_on(before, self._before):
            self._heard = self._pinged = False
        elif self._pinged:
            self.abort(TimeoutError(f"{self.server} has not answered for {2 * _SILENCE_S:g} s"))
            return
        else:
            self._pinged = True
            self._ping()
        self._look = self._loop.call_later(_SILENCE_S, self._look_after)

    def _still_doubted(self) -> None:
        self._doubt = None
        if self.ended:
            return
        before, self._when_doubted = self._when_doubted, self.carried()
        if _goes_on(before, self._when_doubted):
            self._doubt = self._loop.call_later(_DOUBTED_S, self._still_doubted)
        else:
            self.abort(TimeoutError(f"{self.server} does not answer, and others have what it had"))

    def _ping(self) -> None:
        self._last_id = self._last_id % _UINT32 + 1
        self.send_bytes(encode_command(self._last_id, Ping()))


class KvPeer:
    """One actor: a connection to it, opened again whenever it is lost, until ``stop``."""

    def __init__(
        self,
        home: LinkHome,
        server: str,
        max_frame_bytes: int,
        shown: Presented = NO_CREDENTIALS,
        space: str = "",
    ) -> None:
        """``shown`` is asked for each connection. ``space``: ``space_identity`` of the one that it has to serve."""
        self._shown, self._space = shown, space
        self.server = server
        self.link: KvLink | None = None
        """None: there is no connection just now."""
        self.why = "it is being opened"
        """Why there is none."""
        self.refused = False
        """It does not let us in."""
        self.tried = False
        """There was a connection, or it could not be had."""
        self._home = home
        self._max_frame_bytes = max_frame_bytes
        self._stopped = False
        self._task = asyncio.get_running_loop().create_task(self._keep_open())

    @property
    def ready(self) -> KvLink | None:
        """The connection, if there is one that can be used."""
        return None if self.link is None or self.link.ended else self.link

    async def stop(self) -> None:
        """Let go of the connection, and of what is unsent."""
        self._stopped = True
        self._task.cancel()
        link = self.link
        await asyncio.wait([self._task])
        if link is not None:
            await link.closed

    async def _keep_open(self) -> None:
        backoff = Backoff(first_s=0.02, longest_s=1.0)
        while not self._stopped:  # Python 3.10: it may be cancelled and only be told that a time is over
            try:
                async with compat.timeout(_CONNECT_S):
                    link = await self._opened()
            except (OSError, WaltzError) as error:  # TimeoutError is an OSError; files of ours may be put right
                self.why = str(error) or f"no answer from {self.server} within {_CONNECT_S:g} s"
                self.refused = isinstance(error, AccessRefused)
                if not self.tried:
                    self.tried = True
                    self._home.changed()
                await asyncio.sleep(backoff.next_s())
                continue
            backoff.reset()
            self.link, self.refused, self.tried = link, False, True
            self._home.changed()
            try:
                self.why = str(await link.closed)
            finally:
                self.link = None
                link.abort("the client is closed")
            self._home.changed()

    async def _opened(self) -> KvLink:
        host, _, port = self.server.rpartition(":")
        if not port.isdecimal():
            raise ConnectionError(f"{self.server!r} is no address; host:port is")
        tls, token = self._shown.context(), self._shown.token()
        make: Callable[[], KvLink] = partial(KvLink, self._home, self.server, self._max_frame_bytes)
        link = await connect(make, host.strip("[]"), int(port), timeout_s=None, tls=tls)
        try:
            await link.greet(token, self._space)
        except BaseException:
            link.abort("given up while it was greeted")
            raise
        return link


def _goes_on(before: Carried | None, now: Carried | None) -> bool:
    return before is not None and now is not None and lives(before, now)


def _words(said: Answer) -> str:
    if isinstance(said, TryElsewhere):
        return f"try {said.server}"
    if isinstance(said, FailInfo):
        return said.text
    return said.name if isinstance(said, Missed) else type(said).__name__
