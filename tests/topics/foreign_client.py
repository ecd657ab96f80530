"""A client of topics written from the wire, with nothing of ours: frames, varints, fields by their numbers.

A message is a dict: field number -> int, bytes, or a list of those. What comes in has lists only.
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from waltz_ray import compat

__all__ = ["Fields", "ForeignClient", "ForeignFault", "ForeignReply", "crc", "payloads_of", "text"]

TOKEN = 0xFF7FF4FE
PATIENCE_S = 20.0

Field = int | bytes
Fields = Mapping[int, Any]


def text(value: str) -> bytes:
    return value.encode()


def crc(data: bytes) -> int:
    return zlib.crc32(data) & 0x7FFFFFFF


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        number |= (data[at] & 0x7F) << shift
        at += 1
        if not data[at - 1] & 0x80:
            return number, at
        shift += 7


def message(fields: Fields) -> bytes:
    out = bytearray()
    for number, given in fields.items():
        for value in given if isinstance(given, list | tuple) else [given]:
            if isinstance(value, bytes):
                out += varint(number << 3 | 2) + varint(len(value)) + value
            else:
                assert isinstance(value, int)
                out += varint(number << 3) + varint(value)
    return bytes(out)


def parsed(data: bytes) -> dict[int, list[Field]]:
    found: dict[int, list[Field]] = {}
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        value, at = read_varint(data, at)
        if key & 7 == 2:
            found.setdefault(key >> 3, []).append(data[at : at + value])
            at += value
        else:
            assert key & 7 == 0
            found.setdefault(key >> 3, []).append(value - (1 << 64) if value >> 63 else value)
    return found


def delimited(data: bytes) -> bytes:
    return varint(len(data)) + data


@dataclass
class ForeignReply:
    """An answer, by field."""

    fields: dict[int, list[Field]]

    def number(self, field: int) -> int:
        [value] = self.fields[field]
        assert isinstance(value, int)
        return value

    def data(self, field: int) -> bytes:
        [value] = self.fields[field]
        assert isinstance(value, bytes)
        return value

    def texts(self, field: int) -> list[str]:
        return [value.decode() for value in self.fields.get(field, []) if isinstance(value, bytes)]

    def parts(self, field: int) -> list[ForeignReply]:
        return [ForeignReply(parsed(value)) for value in self.fields.get(field, []) if isinstance(value, bytes)]

    @property
    def code(self) -> int:
        """Field 2 of every answer."""
        return self.number(2)

    @property
    def why(self) -> str:
        return self.data(3).decode()


class ForeignFault(Exception):
    def __init__(self, status: int, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.status, self.name, self.why = status, name, why


class ForeignClient:
    """One connection; any number of requests at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: int) -> None:
        self.reader, self.writer, self.version = reader, writer, version
        self._serial = 0
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._listening = asyncio.ensure_future(self._listen())

    @classmethod
    async def open(cls, port: int, host: str = "127.0.0.1", version: int = 3, ssl: Any = None) -> ForeignClient:
        reader, writer = await asyncio.open_connection(host, port, ssl=ssl)
        return cls(reader, writer, version)

    async def close(self) -> None:
        self.writer.close()
        await self._listening

    async def ask(
        self, method: int, request: Fields | bytes, timeout_ms: int = 10_000, service: int | None = None
    ) -> ForeignReply:
        """The answer. ForeignFault if it is an exception; ConnectionError if there will be none."""
        serial, answer = self.send(method, request, timeout_ms, service)
        async with compat.timeout(PATIENCE_S):
            reply = await answer
        del self._waiting[serial]
        return self._answer(reply, method)

    def send(
        self, method: int, request: Fields | bytes, timeout_ms: int = 10_000, service: int | None = None
    ) -> tuple[int, asyncio.Future[bytes]]:
        if service is None:
            service = 1 if method < 13 else 3 if method == 13 else 2
        body = request if isinstance(request, bytes) else message(request)
        whole = (
            delimited(message({1: 0}))
            + delimited(message({1: service, 2: self.version}))
            + delimited(message({1: method, 2: timeout_ms, 3: body}))
            + b"12345678"  # as the C++ client does
        )
        self._serial += 1
        blocks = [whole[at : at + 8192] for at in range(0, len(whole), 8192)]
        frame = struct.pack(">III", TOKEN, self._serial, len(blocks))
        frame += b"".join(struct.pack(">I", len(block)) + block for block in blocks)
        answer = self._waiting[self._serial] = asyncio.get_running_loop().create_future()
        if self._listening.done():
            answer.set_exception(ConnectionError("closed"))
        else:
            self.writer.write(frame)
        return self._serial, answer

    def _answer(self, reply: bytes, method: int) -> ForeignReply:
        at, parts = 0, []
        for _ in range(3):
            size, at = read_varint(reply, at)
            parts.append(parsed(reply[at : at + size]))
            at += size
        connection, header, body = parts
        assert connection[1] == [1], "it is a response"
        assert header[3] == [self.version]
        [status] = header[1]
        if status != 0:
            name, why = body[1][0], body[2][0]
            assert isinstance(status, int)
            assert isinstance(name, bytes)
            assert isinstance(why, bytes)
            raise ForeignFault(status, name.decode(), why.decode())
        assert body[1] == [method]
        [data] = body[2]
        assert isinstance(data, bytes)
        return ForeignReply(parsed(data))

    async def _listen(self) -> None:
        try:
            while True:
                token, serial, count = struct.unpack(">III", await self.reader.readexactly(12))
                assert token == TOKEN
                blocks = []
                for _ in range(count):
                    (size,) = struct.unpack(">I", await self.reader.readexactly(4))
                    blocks.append(await self.reader.readexactly(size))
                answer = self._waiting[serial]
                if not answer.done():
                    answer.set_result(b"".join(blocks))
        except (asyncio.IncompleteReadError, ConnectionError):
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(ConnectionError("closed"))

    # ---- what producers and consumers say

    async def produce(self, topic: str, data: bytes, msg_type: str = "", **more: int) -> ForeignReply:
        """m13; by keyword: ``flag``, ``check_sum``, ``partition``, ``visit``."""
        fields: dict[int, Field] = {
            1: text("foreign"),
            2: text(topic),
            3: more.get("partition", 0),
            4: data,
            5: more.get("flag", 0),
            6: more.get("check_sum", crc(data)),
            7: -1073741310,
        }
        if msg_type:
            fields[8] = text(msg_type)
            fields[9] = b"202311142213"
        if "visit" in more:
            fields[10] = message({1: more["visit"]})
        return await self.ask(13, fields)

    async def register(self, group: str, topic: str, consumer: str = "one", **more: Any) -> ForeignReply:
        """m15; by keyword: ``read``, ``offset``, ``filters``, ``out`` (log out)."""
        fields: dict[int, Field | Sequence[Field]] = {
            1: 32 if more.get("out") else 31,
            2: text(consumer),
            3: text(group),
            4: text(topic),
            5: 0,
            6: more.get("read", 0),
            7: [text(each) for each in more.get("filters", ())],
        }
        if "offset" in more:
            fields[8] = more["offset"]
        if "visit" in more:
            fields[13] = message({1: more["visit"]})
        return await self.ask(15, fields)

    async def beat(self, group: str, places: Sequence[str], consumer: str = "one") -> ForeignReply:
        """m16."""
        head: Fields = {1: text(consumer), 2: text(group), 3: 0}
        return await self.ask(16, {**head, 4: [text(place) for place in places]})

    async def pull(
        self, group: str, topic: str, consumer: str = "one", consumed: bool = True, by_hand: bool = False
    ) -> ForeignReply:
        """m17."""
        head: Fields = {1: text(consumer), 2: 0, 3: text(group), 4: text(topic)}
        return await self.ask(17, {**head, 5: int(consumed), 6: int(by_hand)})

    async def confirm(self, group: str, topic: str, consumer: str = "one", consumed: bool = True) -> ForeignReply:
        """m18."""
        head: Fields = {1: text(consumer), 2: text(topic), 3: 0, 4: text(group)}
        return await self.ask(18, {**head, 5: int(consumed)})


def payloads_of(reply: ForeignReply) -> list[bytes]:
    """Of a pull."""
    for part in reply.parts(4):
        assert crc(part.data(3)) == part.number(2), "a Java consumer drops it otherwise"
    return [part.data(3) for part in reply.parts(4)]
