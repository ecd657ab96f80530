"""A client as a third party writes it from the document, in 2011 or 2012: blocking, struct and socket, nothing of ours.

It keeps a table with one entry for each bucket, filled from what servers tell it (hashmasks in the dialect "doc", one
hashmask each in "2012"), asks the server of the key's bucket, follows tryelsewhere, and connects to any other server
of the list when the one it wants does not answer.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from typing import NamedTuple

__all__ = ["ForeignClient", "ForeignServer", "Message", "fnv"]

HEADER = struct.Struct(">HHII")


def fnv(name: bytes) -> int:
    """The document's "FNV hashing algorithm": something is 7e47596b."""
    found = 0x811C9DC5
    for byte in name:
        found = (found ^ byte) * 0x01000193 % (1 << 32)
    return found


class Message(NamedTuple):
    opcode: int
    replied_to: int
    message_id: int
    payload: bytes


def string(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


def _strings(payload: bytes, count: int) -> list[bytes]:
    found = []
    for _ in range(count):
        (size,) = struct.unpack_from(">I", payload)
        found.append(payload[4 : 4 + size])
        payload = payload[4 + size :]
    assert payload == b""
    return found


class ForeignServer:
    """A connection to one server: it has said hello, and answers what the server asks."""

    def __init__(self, client: ForeignClient, address: str, timeout_s: float) -> None:
        host, _, port = address.rpartition(":")
        self.address = address
        self.commands: list[Message] = []
        """Everything that the server has asked."""
        self._client = client
        self._buffer = b""
        self._next_id = client.first_message_id
        self._replies: dict[int, Message] = {}
        self._socket = socket.create_connection((host, int(port)), timeout_s)
        self._socket.settimeout(timeout_s)

    def close(self) -> None:
        self._socket.close()

    def send(self, opcode: int, payload: bytes = b"") -> int:
        """A command, without waiting: its message ID."""
        message_id, self._next_id = self._next_id, (self._next_id + 1) % (1 << 32)
        self._socket.sendall(HEADER.pack(opcode, 0, message_id, len(payload)) + payload)
        return message_id

    def wait(self, message_id: int) -> Message:
        """The reply to what was sent."""
        while message_id not in self._replies:
            self._one()
        return self._replies.pop(message_id)

    def ask(self, opcode: int, payload: bytes = b"") -> Message:
        return self.wait(self.send(opcode, payload))

    def listen_for(self, opcode: int, count: int = 1) -> list[Message]:
        """Wait until the server has sent so many commands of ``opcode`` in all."""
        while len(found := [each for each in self.commands if each.opcode == opcode]) < count:
            self._one()
        return found

    def drain(self) -> None:
        """What has come already, without waiting."""
        self._socket.settimeout(0.0)
        try:
            with contextlib.suppress(BlockingIOError):
                while True:
                    self._one()
        finally:
            self._socket.settimeout(self._client.timeout_s)

    def _one(self) -> None:
        while len(self._buffer) < 12 or len(self._buffer) < 12 + HEADER.unpack_from(self._buffer)[3]:
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionResetError(f"{self.address} has closed")
            self._buffer += data
        opcode, replied_to, message_id, size = HEADER.unpack_from(self._buffer)
        message = Message(opcode, replied_to, message_id, self._buffer[12 : 12 + size])
        self._buffer = self._buffer[12 + size :]
        if replied_to:
            assert message_id not in self._replies, "two replies to one command"
            self._replies[message_id] = message
            return
        self.commands.append(message)
        self._client.told(self, message)
        if self._client.acks:
            # A client of 2011 says 100 here, whatever it was asked: its server looks at the message ID alone.
            self._socket.sendall(HEADER.pack(1, 100, message_id, 0))


class ForeignClient:
    """``dialect``: doc or 2012. ``updates``: whether it takes a larger mask, and changes, after its first table."""

    def __init__(
        self,
        address: str,
        dialect: str = "doc",
        updates: bool = True,
        acks: bool = True,
        timeout_s: float = 10.0,
        patience_s: float = 20.0,
    ) -> None:
        self.dialect, self.updates, self.acks, self.timeout_s = dialect, updates, acks, timeout_s
        self.first_message_id = 1
        self.mask = 0
        self.table: list[str] = []
        """The server of each bucket, empty where nobody has told."""
        self.servers: list[str] = [address]
        self.open: dict[str, ForeignServer] = {}
        self.elsewhere = 0
        """How often it was sent on."""
        self._patience_s = patience_s
        self._frozen = False
        self.connect(address)
        self._frozen = not updates

    def close(self) -> None:
        for server in self.open.values():
            server.close()

    def __enter__(self) -> ForeignClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- servers --------------------------------------------------------------------------------------------

    def connect(self, address: str) -> ForeignServer:
        """The connection to ``address``, which has told what it has; follows its tryelsewhere."""
        for _ in range(10):
            if address in self.open:
                return self.open[address]
            server = ForeignServer(self, address, self.timeout_s)
            reply = server.ask(10)
            if reply.opcode == 1:
                self.open[address] = server
                server.listen_for(100)
                server.listen_for(110 if self.dialect == "doc" else 120)
                return server
            server.close()
            assert reply.opcode == 4, reply
            (elsewhere,) = _strings(reply.payload, 1)
            address = elsewhere.decode()
        raise ConnectionError("sent in a circle")

    def told(self, server: ForeignServer, message: Message) -> None:
        """What a server says of itself and of others."""
        payload = message.payload
        if message.opcode == 100:
            if self.dialect == "doc":
                (count,) = struct.unpack_from(">i", payload)
                self.servers = [each.decode() for each in _strings(payload[4:], count)]
            else:
                name = _strings(payload, 1)[0].decode()
                self.servers += [name] if name not in self.servers else []
        elif self._frozen:
            return
        elif message.opcode == 110:
            assert self.dialect == "doc"
            mask, count = struct.unpack_from(">ii", payload)
            rows = list(struct.iter_unpack(">ii", payload[8:]))
            assert len(rows) == count
            for bucket, instance in rows:
                self._has(server.address, mask, bucket, instance)
        elif message.opcode == 120:
            mask, bucket, instance = struct.unpack(">iii", payload)
            self._has(server.address, mask, bucket, instance)

    def _has(self, address: str, mask: int, bucket: int, instance: int) -> None:
        if mask > self.mask:
            old = self.table or [""]
            self.table = [old[i & (len(old) - 1)] for i in range(mask + 1)]
            self.mask = mask
        if mask < self.mask:
            return
        if instance == 0:
            self.table[bucket] = address
        elif instance < 0 and self.table[bucket] == address:
            self.table[bucket] = ""

    # ---- data -----------------------------------------------------------------------------------------------

    def routed(self, key: int, opcode: int, payload: bytes) -> Message:
        """The reply of the server that has the key's bucket, wherever that is."""
        address = self.table[key & self.mask] or self.servers[0]
        until = time.monotonic() + self._patience_s
        tried = 0
        while True:
            try:
                reply = self.connect(address).ask(opcode, payload)
                if reply.opcode != 4:
                    return reply
                self.elsewhere += 1
                address = _strings(reply.payload, 1)[0].decode()
            except OSError:
                if (lost := self.open.pop(address, None)) is not None:
                    lost.close()
                others = [each for each in self.servers if each != address] or [address]
                address, tried = others[tried % len(others)], tried + 1
            if time.monotonic() > until:
                raise TimeoutError(f"nobody answers for {key:x}")

    def set_int(self, name: bytes, value: int, expires: int = 0, fullwait: int = 0, map_hash: int = 0) -> Message:
        return self._set(2000, name, struct.pack(">i", value), expires, fullwait, map_hash)

    def set_long(self, name: bytes, value: int, expires: int = 0, fullwait: int = 0, map_hash: int = 0) -> Message:
        return self._set(2010, name, struct.pack(">q", value), expires, fullwait, map_hash)

    def set_string(self, name: bytes, value: bytes, expires: int = 0, fullwait: int = 0, map_hash: int = 0) -> Message:
        return self._set(2020, name, string(value), expires, fullwait, map_hash)

    def _set(self, opcode: int, name: bytes, value: bytes, expires: int, fullwait: int, map_hash: int) -> Message:
        key = fnv(name)
        head = struct.pack(">IIii", map_hash, key, expires, fullwait)
        return self.routed(key, opcode, head + string(name) + value)

    def get_int(self, name: bytes, map_hash: int = 0) -> int | None:
        found = self._get(2100, 2105, name, map_hash)
        return None if found is None else int(struct.unpack(">i", found)[0])

    def get_long(self, name: bytes, map_hash: int = 0) -> int | None:
        found = self._get(2110, 2115, name, map_hash)
        return None if found is None else int(struct.unpack(">q", found)[0])

    def get_string(self, name: bytes, map_hash: int = 0) -> bytes | None:
        found = self._get(2120, 2125, name, map_hash)
        return None if found is None else _strings(found, 1)[0]

    def get_type(self, name: bytes, map_hash: int = 0) -> int | None:
        found = self._get(2200, 2205, name, map_hash)
        return None if found is None else int(struct.unpack(">i", found)[0])

    def _get(self, opcode: int, answer: int, name: bytes, map_hash: int) -> bytes | None:
        """What follows map and key in the reply; None if there is nothing."""
        key = fnv(name)
        reply = self.routed(key, opcode, struct.pack(">II", map_hash, key))
        if reply.opcode == 2:
            return None
        if reply.opcode == 3:
            raise ValueError(f"failinfo {struct.unpack_from('>i', reply.payload)[0]}: {reply.payload[8:].decode()}")
        assert (reply.opcode, reply.replied_to) == (answer, opcode)
        assert struct.unpack_from(">II", reply.payload) == (map_hash, key)
        return reply.payload[8:]

    def lock(self, name: bytes, lease_s: int, wait_s: int) -> int | None:
        """Its code; None if it was not to be had."""
        reply = self.routed(fnv(name), 1000, string(name) + struct.pack(">ii", lease_s, wait_s))
        if reply.opcode == 2:
            return None
        assert reply.opcode == 1005
        return int(struct.unpack(">q", reply.payload)[0])

    def unlock(self, name: bytes, code: int) -> bool:
        reply = self.routed(fnv(name), 1010, string(name) + struct.pack(">q", code))
        assert reply.opcode in (1, 2)
        return reply.opcode == 1
