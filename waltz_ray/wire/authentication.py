"""The handshake between a replica and who opens a connection to it, in bytes: magic ``A``, version 1
(``docs/wire.md``, "Authentication"). What the messages mean: ``waltz_ray.protocol.authentication``."""

from __future__ import annotations

import struct

from waltz_ray.protocol.authentication import (
    NONCE_BYTES,
    Accepted,
    AcceptingHandshake,
    AuthenticationMessage,
    Challenge,
    DenialCode,
    Denied,
    Introduction,
    OpeningHandshake,
    Proof,
    Role,
)
from waltz_ray.wire.primitives import BytesLike, Reader
from waltz_ray.wire.table import MessageRow, MessageTable

__all__ = [
    "AUTHENTICATION_TABLE",
    "AUTHENTICATION_VERSION",
    "HandshakeInBytes",
    "decode_authentication",
    "encode_authentication",
]

AUTHENTICATION_VERSION = 1

_INTRODUCTION = struct.Struct(">Bqi")
_CODE = struct.Struct(">B")


def _read_32(reader: Reader) -> bytes:
    start = reader.need(NONCE_BYTES)
    return bytes(reader.payload[start : start + NONCE_BYTES])


def _read_introduction(_version: int, reader: Reader) -> Introduction:
    role, expires_ms, replica_id = reader.unpack(_INTRODUCTION)
    reader.check_enum(Role, role, "role")
    return Introduction(Role(role), expires_ms, replica_id, _read_32(reader))


def _write_introduction(_version: int, message: Introduction) -> list[BytesLike]:
    fixed = _INTRODUCTION.pack(message.role, message.expires_ms, message.replica_id)
    return [b"\x01" + fixed + message.nonce]


def _read_denied(_version: int, reader: Reader) -> Denied:
    (code,) = reader.unpack(_CODE)
    reader.check_enum(DenialCode, code, "denial code")
    return Denied(DenialCode(code))


AUTHENTICATION_TABLE: MessageTable[AuthenticationMessage] = MessageTable(
    "authentication",
    (
        MessageRow(1, "Introduction", Introduction, 1, _read_introduction, _write_introduction),
        MessageRow(2, "Challenge", Challenge, 1, lambda _, r: Challenge(_read_32(r)), lambda _, m: [b"\x02" + m.nonce]),
        MessageRow(3, "Proof", Proof, 1, lambda _, r: Proof(_read_32(r)), lambda _, m: [b"\x03" + m.mac]),
        MessageRow(4, "Accepted", Accepted, 1, lambda _, r: Accepted(_read_32(r)), lambda _, m: [b"\x04" + m.mac]),
        MessageRow(5, "Denied", Denied, 1, _read_denied, lambda _, m: [bytes((5, m.code))]),
    ),
)


def encode_authentication(message: AuthenticationMessage) -> bytes:
    """The payload of one frame."""
    return b"".join(AUTHENTICATION_TABLE.encode(AUTHENTICATION_VERSION, message))


def decode_authentication(payload: BytesLike) -> AuthenticationMessage:
    """One message. ``WireError`` for anything else."""
    return AUTHENTICATION_TABLE.decode(AUTHENTICATION_VERSION, payload)


class HandshakeInBytes:
    """One side of a handshake, whose messages are payloads of frames."""

    def __init__(self, machine: OpeningHandshake | AcceptingHandshake) -> None:
        self.machine = machine

    @property
    def done(self) -> bool:
        """The other side has proved what it has to."""
        return self.machine.done

    @property
    def failure(self) -> str:
        """Why the connection has to end now; "" = it goes on."""
        return self.machine.failure

    def begin(self) -> bytes | None:
        """What is sent first, if it is this side that begins."""
        first = self.machine.begin()
        return None if first is None else encode_authentication(first)

    def take(self, payload: BytesLike) -> bytes | None:
        """What is sent now that this has come. ``WireError`` if it is no message."""
        answer = self.machine.step(decode_authentication(payload))
        return None if answer is None else encode_authentication(answer)
