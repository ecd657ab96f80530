"""Connections of a client with masters and slots: one for each address, requests on it side by side, their answers in
any order. All that is made of one ``TopicClient`` shares them, unless it asks for its own.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl

from waltz_ray import compat
from waltz_ray.errors import ClientClosed, WireError
from waltz_ray.net.connector import connect
from waltz_ray.net.outgoing import Outgoing
from waltz_ray.net.stream import Stream
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.topics.client.openings import CLOSED, outcome_of
from waltz_ray.topics.framing import TopicFrame, TopicFramer, encode_frame
from waltz_ray.topics.messages import ClusterMeantRequest, ClusterMeantResponse, UnknownMethod
from waltz_ray.topics.rpc import FaultName, RpcCall, RpcFault, decode_reply, encode_call
from waltz_ray.topics.wire import TopicRequest, TopicResponse, decode_response, encode_request

__all__ = ["TopicLink", "TopicLinks", "tell_slot", "to_our_own"]

_SERIALS = 1 << 32


class TopicLink(Stream[TopicFrame]):
    """One connection. All in its event loop."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(TopicFramer(), Outgoing())
        self.endpoint = endpoint
        self.used_s = self._loop.time()
        """When it was last asked, or answered."""
        self._heard_s = self.used_s
        self.closed = asyncio.Event()
        self._serials = itertools.count(1)
        self._asked: dict[int, tuple[int, asyncio.Future[TopicResponse | RpcFault]]] = {}  # with the method

    @property
    def outstanding(self) -> int:
        """Requests without an answer."""
        return len(self._asked)

    async def ask(self, request: TopicRequest, timeout_s: float) -> TopicResponse | RpcFault:
        """The answer. ConnectionRefusedError: there is no connection, nothing was sent; TimeoutError; another
        ConnectionError if it is lost: then nobody can say whether the request was carried out. WireError: the answer
        makes no sense."""
        if self.ended:
            raise ConnectionRefusedError(f"the connection with {self.endpoint} is lost")
        method, data = encode_request(request)
        serial = next(self._serials) % _SERIALS
        answer: asyncio.Future[TopicResponse | RpcFault] = self._loop.create_future()
        self._asked[serial] = method, answer
        asked_s = self.used_s = self._loop.time()
        self.send_bytes(
            encode_frame(serial, encode_call(RpcCall(method, data, method.service, timeout_ms=int(1000 * timeout_s))))
        )
        try:
            async with compat.timeout(timeout_s):
                return await answer
        except TimeoutError:
            silence = TimeoutError(f"{self.endpoint} has not answered within {timeout_s:g} s")
            if self._heard_s < asked_s:  # nor anything else: something in between may have forgotten the connection
                self.abort(silence)
            raise silence from None
        finally:
            self._asked.pop(serial, None)

    async def mean(self, cluster_key: str, timeout_s: float) -> None:
        """Where an actor of ours has died, one of another cluster may listen by now, with topics, groups and slots of
        the same names: ConnectionError, or what ``ask`` raises. Who does not know the question is believed."""
        if not cluster_key:
            return
        answer = await self.ask(ClusterMeantRequest(cluster_key), timeout_s)
        if isinstance(answer, RpcFault) and FaultName.NO_METHOD in answer.exception_name:
            return
        if isinstance(answer, RpcFault):
            raise ConnectionRefusedError(f"{self.endpoint} says: {answer.text}")
        assert isinstance(answer, ClusterMeantResponse)
        if not answer.success:
            raise ConnectionRefusedError(f"{self.endpoint} says: {answer.err_msg}")

    def on_frame(self, frame: TopicFrame) -> None:
        serial, message = frame
        self.used_s = self._heard_s = self._loop.time()
        method, answer = self._asked.get(serial, (0, None))
        if answer is None or answer.done():
            return  # nobody waits for it any more
        try:
            answer.set_result(_read(message, method))
        except WireError as error:  # BadPayload is one: of this answer alone
            answer.set_exception(error)

    def on_closed(self, error: Exception) -> None:
        lost = ConnectionResetError(f"the connection with {self.endpoint} was lost: {error}")
        for _, answer in self._asked.values():
            if not answer.done():
                answer.set_exception(lost)
        self.closed.set()


def _read(message: bytes | None, method: int) -> TopicResponse | RpcFault:
    assert message is not None, "this framer drops nothing"
    reply = decode_reply(message)
    if isinstance(reply, RpcFault):
        return reply
    answer = decode_response(reply.method, reply.data)
    if reply.method != method or isinstance(answer, UnknownMethod):
        raise WireError(f"the answer is of method {reply.method}, what was asked is of {method}")
    return answer


class TopicLinks:
    """Opened when they are asked for the first time, and again when they were lost. In one event loop."""

    def __init__(
        self, timeout_s: float, idle_s: float, tls: ssl.SSLContext | None = None, cluster_key: str = ""
    ) -> None:
        """``cluster_key``: of the cluster that is meant, which each of them is asked for first; "": any."""
        self._timeout_s, self._idle_s, self._tls, self._cluster_key = timeout_s, idle_s, tls, cluster_key
        self._links: dict[Endpoint, asyncio.Task[TopicLink]] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        """Connections that are open, or being opened."""
        return len(self._links)

    async def ask(
        self, endpoint: Endpoint, request: TopicRequest, timeout_s: float | None = None
    ) -> TopicResponse | RpcFault:
        """The answer of who listens there, within ``timeout_s`` if that is less than usual, and as long again where it
        is not connected. OSError (TimeoutError is one; ConnectionRefusedError: nothing
        was sent), WireError, ClientClosed."""
        limit_s = self._timeout_s if timeout_s is None else min(timeout_s, self._timeout_s)
        try:
            async with compat.timeout(limit_s):
                link = await self._link(endpoint)
        except OSError as error:
            raise ConnectionRefusedError(str(error) or f"{endpoint} has not answered within {limit_s:g} s") from error
        return await link.ask(request, limit_s)

    async def close(self) -> None:
        """Let go of all of them. Idempotent."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        links, self._links = self._links, {}
        for opening in links.values():
            if opening.done() and not opening.cancelled() and opening.exception() is None:
                link = opening.result()
                link.finish("the client is closed")
                await link.closed.wait()
            else:
                opening.cancel()
        await asyncio.gather(*links.values(), return_exceptions=True)

    async def _link(self, endpoint: Endpoint) -> TopicLink:
        if self._closed:
            raise ClientClosed(CLOSED)
        opening = self._links.get(endpoint)
        if opening is None or (opening.done() and (opening.exception() is not None or opening.result().ended)):
            opening = self._links[endpoint] = asyncio.get_running_loop().create_task(self._opened(endpoint))
            self._sweep_later()
        return await outcome_of(opening)

    async def _opened(self, endpoint: Endpoint) -> TopicLink:
        try:
            link = await connect(lambda: TopicLink(endpoint), *endpoint, self._timeout_s, self._tls)
            try:
                await link.mean(self._cluster_key, self._timeout_s)
            except BaseException:
                link.abort("given up before it was used")
                raise
            return link
        except (OSError, WireError):
            self._links.pop(endpoint, None)  # it may have been closed meanwhile
            raise

    def _sweep_later(self) -> None:
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(self._idle_s / 4, self._sweep)

    def _sweep(self) -> None:
        """Close what nobody uses, forget what is lost."""
        self._sweeper = None
        now_s = asyncio.get_running_loop().time()
        for endpoint, opening in list(self._links.items()):
            if not opening.done() or opening.exception() is not None:
                continue
            link = opening.result()
            if not link.ended and not link.outstanding and now_s - link.used_s >= self._idle_s:
                link.finish(f"it was not used for {self._idle_s:g} s")
            if link.ended or (link.unsent_bytes == 0 and not link.outstanding and now_s - link.used_s >= self._idle_s):
                del self._links[endpoint]
        if self._links:
            self._sweep_later()


def to_our_own() -> ssl.SSLContext:
    """For connections with our own slots, whose addresses ZooKeeper has: what proves us is in the request."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def tell_slot(endpoint: Endpoint, request: TopicRequest, timeout_s: float) -> str:
    """Say something that has its proof in it, to whose answer nothing is to be done; over TLS where that is spoken. Why
    it was not heard, or ""."""
    if not await _tell(endpoint, request, timeout_s, None):
        return ""
    return await _tell(endpoint, request, timeout_s, to_our_own())


async def _tell(endpoint: Endpoint, request: TopicRequest, timeout_s: float, tls: ssl.SSLContext | None) -> str:
    links = TopicLinks(timeout_s, timeout_s, tls)
    try:
        await links.ask(endpoint, request)
    except (OSError, WireError) as error:
        return str(error) or "no answer"
    finally:
        await links.close()
    return ""
