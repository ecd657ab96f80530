"""One connection to a master or a slot: a request, its answer. For commands; in one event loop."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence

from waltz_ray import compat
from waltz_ray.errors import PartitionNotReady, WireError
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.topics.framing import TopicFramer, encode_frame
from waltz_ray.topics.messages import UnknownMethod
from waltz_ray.topics.rpc import RpcCall, RpcFault, decode_reply, encode_call
from waltz_ray.topics.wire import TopicRequest, TopicResponse, decode_response, encode_request

__all__ = ["TopicCaller", "ask_master", "tell"]

_READ_BYTES = 1 << 16


class TopicCaller:
    """One request at a time. OSError if the connection is not to be had, or lost."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, timeout_s: float) -> None:
        self._reader, self._writer, self._timeout_s = reader, writer, timeout_s
        self._framer = TopicFramer()
        self._serial = 0

    @classmethod
    async def open(cls, endpoint: Endpoint, timeout_s: float, tls: ssl.SSLContext | None = None) -> TopicCaller:
        """Connect."""
        async with compat.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=tls)
        return cls(reader, writer, timeout_s)

    async def close(self) -> None:
        """Idempotent."""
        self._writer.close()

    async def ask(self, request: TopicRequest) -> TopicResponse | RpcFault:
        """The answer. TimeoutError, OSError, WireError."""
        method, data = encode_request(request)
        self._serial += 1
        call = RpcCall(method, data, method.service, timeout_ms=int(1000 * self._timeout_s))
        self._writer.write(encode_frame(self._serial, encode_call(call)))
        async with compat.timeout(self._timeout_s):
            while True:
                received = await self._reader.read(_READ_BYTES)
                if not received:
                    raise ConnectionResetError("the connection was closed")
                for serial, message in self._framer.feed(received):
                    if serial == self._serial and message is not None:
                        return _answer(message)


def _answer(message: bytes) -> TopicResponse | RpcFault:
    reply = decode_reply(message)
    if isinstance(reply, RpcFault):
        return reply
    answer = decode_response(reply.method, reply.data)
    if isinstance(answer, UnknownMethod):
        raise WireError(f"the answer is of method {reply.method}, which there is not")
    return answer


async def tell(endpoint: Endpoint, request: TopicRequest, timeout_s: float, tls: ssl.SSLContext | None = None) -> str:
    """Say something to whose answer nothing is to be done. Why it was not heard, or ""."""
    caller: TopicCaller | None = None
    try:
        caller = await TopicCaller.open(endpoint, timeout_s, tls)
        await caller.ask(request)
    except (OSError, TimeoutError, WireError) as error:
        return str(error) or "no answer"
    finally:
        if caller is not None:
            await caller.close()
    return ""


async def ask_master(
    masters: Sequence[Endpoint], request: TopicRequest, timeout_s: float, tls: ssl.SSLContext | None = None
) -> tuple[TopicCaller, TopicResponse]:
    """The answer of the one that leads, and the connection with it. PartitionNotReady: none does, within the time."""
    loop = asyncio.get_running_loop()
    until_s, trouble = loop.time() + timeout_s, "no topic actor is registered: start them with waltz up --topics"
    while True:
        for master in masters:
            try:
                caller = await TopicCaller.open(master, timeout_s, tls)
            except (OSError, TimeoutError) as error:
                trouble = f"{master}: {error or 'no answer'}"
                continue
            try:
                answer = await caller.ask(request)
                if not isinstance(answer, RpcFault):
                    return caller, answer
                trouble = f"{master}: {answer.text}"
            except (OSError, TimeoutError) as error:
                trouble = f"{master}: {error or 'no answer'}"
            await caller.close()
        if loop.time() > until_s or not masters:
            raise PartitionNotReady(f"no master of topics answers: {trouble}")
        await asyncio.sleep(0.2)
