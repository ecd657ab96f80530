"""A member's connection to another member's gateway: the same protocol from the other side.

It opens with a token, over TLS, which proves that we are of the cluster, with which space we mean, and newserver(130),
which says who we are. It goes on for ever: lost, it is opened again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial

from waltz_ray import compat
from waltz_ray.client.credentials import NO_CREDENTIALS, Presented
from waltz_ray.errors import BadPayload, WaltzError
from waltz_ray.kv.messages import (
    Command,
    Fail,
    FailCode,
    FailInfo,
    Goodbye,
    NewServer,
    Ping,
    Reply,
    ShowKvToken,
    SpaceMeant,
)
from waltz_ray.kv.serving.port import ACK, courtesy
from waltz_ray.kv.wire import (
    COMMAND_OPCODES,
    MAX_FRAME_BYTES,
    decode_command,
    decode_reply,
    encode_command,
    encode_reply,
)
from waltz_ray.kv.wire_framer import KvFrame, KvFramer
from waltz_ray.net.backoff import Backoff
from waltz_ray.net.connector import connect
from waltz_ray.net.outgoing import Outgoing
from waltz_ray.net.stream import Patience, Stream
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.runtime.seldom import Seldom

__all__ = ["PeerLink"]

log = logging.getLogger(__name__)

_LOG_EVERY_S = 10.0


class _PeerStream(Stream[KvFrame]):
    """One TCP connection to the other member."""

    def __init__(self, link: PeerLink, outgoing: Outgoing, first: bytes, first_ms: int) -> None:
        super().__init__(KvFramer(link.max_frame_bytes), outgoing, Patience(first_ms=first_ms), None, first)
        self._link = link
        self.answered = False
        self.closed = asyncio.Event()

    def on_ready(self) -> None:
        self.answered = True
        self._link.stream_ready(self)

    def doubt(self, ping: bytes, timeout_ms: int) -> None:
        """It is late with an answer. Whoever is there answers a ping, whatever else it waits for; a connection that
        something in between has forgotten, or whose other end hangs, would stay for ever."""
        if not self.ended:
            self.send_bytes(ping)
            self._wait("sign of life", timeout_ms, f"it has said nothing for {timeout_ms} ms, not even to a ping")

    def on_frame(self, frame: KvFrame) -> None:
        self._wait_no_more("sign of life")
        opcode, replied_to, message_id, payload = frame
        assert payload is not None, "nothing is dropped here"
        if replied_to:
            self._link.on_reply(opcode, message_id, payload)
            return
        command = None
        if opcode in COMMAND_OPCODES:
            try:
                command = decode_command(opcode, payload)
            except BadPayload as error:
                log.warning("%s: %s", self.peer, error)
        if isinstance(command, Goodbye):
            self.send_bytes(encode_reply(opcode, message_id, ACK))
            self.finish("it has said goodbye")
        else:
            self.send_bytes(encode_reply(opcode, message_id, courtesy(opcode, command)))

    def on_impatience(self, reason: str) -> None:
        log.info("closing the connection with %s: %s", self.peer, reason)

    def on_closed(self, error: Exception) -> None:
        self.closed.set()
        self._link.stream_closed(error)


class PeerLink:
    """To one other member, kept connected; all methods run in the event loop."""

    def __init__(
        self,
        server: str,
        own_server: str,
        outgoing: Outgoing | None = None,
        shown: Presented = NO_CREDENTIALS,
        timeout_ms: int = 2_000,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        longest_pause_ms: int = 1_000,
        space: str = "",
    ) -> None:
        """``server``: ``host:port`` of the other; ``own_server``: where it finds us. ``shown``: what proves that we
        are of its cluster. ``timeout_ms``: for opening, for its first answer, and for the ack of our goodbye.
        ``space``: ``space_identity`` of the one that the other serves, too; "": whatever is served there is meant."""
        self.server = server
        self.max_frame_bytes = max_frame_bytes
        self._own_server = own_server
        self._outgoing = outgoing or Outgoing()
        self._shown = shown
        self._timeout_ms = timeout_ms
        self._longest_pause_s = longest_pause_ms / 1000
        self._space = space
        self._space_asked = 0  # the message with which we say so
        self._loop = asyncio.get_running_loop()
        self._stream: _PeerStream | None = None  # that it is connected by
        self._up = asyncio.Event()
        self._not_before = 0.0  # the loop's clock
        self._asked: dict[int, asyncio.Future[Reply]] = {}
        self._last_id = 0
        self._closed = False
        self._failed, self._refused = Seldom(_LOG_EVERY_S), Seldom(_LOG_EVERY_S)
        self._task = self._loop.create_task(self._keep_connected())
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:  # a bug of ours: without this the member would be away for ever, and nobody would know
            log.critical("the link to %s has failed", self.server, exc_info=error)

    @property
    def up(self) -> bool:
        """Whether the other has answered on the present connection."""
        return self._up.is_set()

    async def ask(self, command: Command, timeout_s: float) -> Reply:
        """The reply. Waits for a connection if there is none.

        TimeoutError if that or the reply takes too long; ConnectionError if the connection is lost in between: in both
        cases the other may have done it or not. BadPayload if the reply makes no sense.
        """
        if self._closed:
            raise ConnectionError(f"{self.server}: the link is closed")
        async with compat.timeout(timeout_s):
            while (stream := self._stream) is None or not self._up.is_set():
                await self._up.wait()
            message_id = self._next_id()
            future: asyncio.Future[Reply] = self._loop.create_future()
            self._asked[message_id] = future
            try:
                stream.send_bytes(encode_command(message_id, command))
                return await future
            finally:
                if self._asked.pop(message_id, None) is not None:  # whoever asked has stopped waiting
                    stream.doubt(encode_command(self._next_id(), Ping()), self._timeout_ms)

    def rest(self, seconds: float) -> None:
        """Dial no more for so long: it has said that it is shutting down. A connection that there is stays."""
        self._not_before = self._loop.time() + seconds

    async def close(self) -> None:
        """Goodbye, and wait for the ack a little. Idempotent."""
        if self.up and not self._closed:
            with contextlib.suppress(TimeoutError, ConnectionError, BadPayload):  # then it ends without
                await self.ask(Goodbye(), self._timeout_ms / 1000)
        self._closed = True
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._stream is not None:
            self._stream.abort("the link is closed")
            await self._stream.closed.wait()

    async def _keep_connected(self) -> None:
        pauses = Backoff(longest_s=self._longest_pause_s)
        endpoint = Endpoint.parse(self.server)
        while not self._closed:  # Python 3.10: it may be cancelled and only be told that a time is over
            try:
                tls, token = self._shown.context(), self._shown.token()
                make = partial(self._new_stream, token)
                stream = await connect(make, *endpoint, self._timeout_ms / 1000, tls)
                self._stream = stream
                await stream.closed.wait()
                if stream.answered:
                    pauses.reset()
            except (OSError, WaltzError) as error:  # files of ours may be put right
                if self._failed.due():
                    log.info("%s", error)
            await asyncio.sleep(max(pauses.next_s(), self._not_before - self._loop.time()))

    def _new_stream(self, token: str) -> _PeerStream:
        first = encode_command(self._next_id(), ShowKvToken(token)) if token else b""
        if self._space:
            self._space_asked = self._next_id()
            first += encode_command(self._space_asked, SpaceMeant(self._space))
        first += encode_command(self._next_id(), NewServer(self._own_server))
        return _PeerStream(self, self._outgoing, first, self._timeout_ms)

    def _next_id(self) -> int:
        self._last_id = self._last_id % 0xFFFF_FFFF + 1
        return self._last_id

    # ---- from the stream --------------------------------------------------------------------------------

    def stream_ready(self, stream: _PeerStream) -> None:
        """It has answered."""
        self._stream = stream
        self._up.set()

    def on_reply(self, opcode: int, message_id: int, payload: bytes) -> None:
        """By its message ID alone; one that nobody waits for (any more) is nothing, unless we are refused."""
        future = self._asked.pop(message_id, None)
        try:
            reply = decode_reply(opcode, payload)
        except BadPayload as error:
            if future is not None and not future.done():
                future.set_exception(error)
            return
        if message_id == self._space_asked and isinstance(reply, Fail):
            self._refuse("it serves another space by now")  # what it says to our questions would be of that
        if isinstance(reply, FailInfo) and reply.code == FailCode.NOT_ALLOWED and self._refused.due():
            log.warning("%s does not believe that we are of its cluster: %s", self.server, reply.text)
        if future is not None and not future.done():
            future.set_result(reply)

    def _refuse(self, why: str) -> None:
        stream = self._stream
        assert stream is not None, "it has answered"
        if self._failed.due():
            log.info("%s: %s", self.server, why)
        stream.answered = False  # the next pause is longer
        stream.abort(why)

    def stream_closed(self, error: Exception) -> None:
        """There is only one at a time."""
        self._up.clear()
        asked, self._asked = self._asked, {}
        for future in asked.values():
            if not future.done():
                future.set_exception(ConnectionError(f"{self.server}: {error}"))
