"""A gateway on a real port, its loop in a thread: whoever connects may block."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tests.kv.dict_port import DictPort
from tests.kv.foreign_client import Message
from waltz_ray.kv.serving.gateway import Gateway
from waltz_ray.kv.serving.port import GatewayLimits
from waltz_ray.kv.wire import Dialect

__all__ = ["PATIENCE_S", "Peer", "RunningGateway", "open_files"]

PATIENCE_S = 20.0
HEADER = struct.Struct(">HHII")

T = TypeVar("T")


def open_files() -> int:
    """File handles of this process."""
    return len(os.listdir("/proc/self/fd"))


class RunningGateway:
    """Until ``close``. Nothing may have failed in its loop, and no task is left there."""

    def __init__(
        self,
        port: DictPort | None = None,
        dialect: Dialect = "doc",
        limits: GatewayLimits | None = None,
        tls: Any = None,
        identity: str = "",
    ) -> None:
        self.node = port or DictPort()
        self.loop = asyncio.new_event_loop()
        self.failures: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.failures.append(context))
        self._thread = threading.Thread(target=self.loop.run_forever, name="gateway")
        self._thread.start()

        async def start() -> tuple[Gateway, int]:
            gateway = Gateway("test", self.node, dialect, limits or GatewayLimits(), tls=tls, identity=identity)
            return gateway, await gateway.listen("127.0.0.1", 0)

        self.gateway, self.port = self.do(start())
        self.address = f"127.0.0.1:{self.port}"
        self.node.members = [self.address]

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    def call(self, function: Callable[[], T]) -> T:
        """In the loop."""

        async def run() -> T:
            return function()

        return self.do(run())

    def until(self, condition: Callable[[], object]) -> None:
        """What the condition waits for is brought about by the peer, which tells nobody."""
        pause = threading.Event()
        for _ in range(int(PATIENCE_S * 1000)):
            if self.call(condition):
                return
            pause.wait(0.001)
        raise AssertionError("it never came")

    def close(self) -> None:
        self.do(self.gateway.close())
        left = self.call(lambda: [task for task in asyncio.all_tasks() if task is not asyncio.current_task()])
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.run_until_complete(asyncio.sleep(0.0))
        self.loop.close()
        assert left == []
        assert self.failures == []
        assert self.gateway.connections == 0
        assert self.gateway.outstanding_bytes == 0

    def __enter__(self) -> RunningGateway:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except Exception:
            if kind is None:
                raise
            logging.getLogger(__name__).exception("the gateway did not end well, either")


class Peer:
    """A raw connection: bytes out, messages in."""

    def __init__(self, port: int, timeout_s: float = PATIENCE_S) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()

    def send(self, opcode: int, message_id: int, payload: bytes = b"", replied_to: int = 0) -> None:
        self.socket.sendall(HEADER.pack(opcode, replied_to, message_id, len(payload)) + payload)

    def next(self) -> Message | None:
        """None: the gateway has closed."""
        while len(self._buffer) < 12 or len(self._buffer) < 12 + HEADER.unpack_from(self._buffer)[3]:
            try:
                data = self.socket.recv(1 << 18)
            except ConnectionResetError:
                data = b""
            if not data:
                assert not self._buffer, "closed inside a frame"
                return None
            self._buffer += data
        opcode, replied_to, message_id, size = HEADER.unpack_from(self._buffer)
        payload = bytes(self._buffer[12 : 12 + size])
        del self._buffer[: 12 + size]
        return Message(opcode, replied_to, message_id, payload)

    def messages(self, count: int) -> list[Message]:
        found: list[Message] = []
        for _ in range(count):
            message = self.next()
            assert message is not None, f"closed after {len(found)} messages"
            found.append(message)
        return found

    def rest(self) -> list[Message]:
        """Everything until the gateway closes."""
        found = []
        while (message := self.next()) is not None:
            found.append(message)
        return found

    def ask(self, opcode: int, payload: bytes = b"", message_id: int = 77) -> Message:
        """The next message, which is the reply."""
        self.send(opcode, message_id, payload)
        (reply,) = self.messages(1)
        assert (reply.replied_to, reply.message_id) == (opcode, message_id)
        return reply

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
