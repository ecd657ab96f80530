"""Bytes of a kv port: frames of commands and replies. Pure.

Every payload is tabled in ``docs/opencluster.md``, "Bytes"; the document's are in ``wire_document.py``, ours in
``wire_native.py``. A payload that makes no sense is ``BadPayload``: its frame has said where the next one begins, so
only that command is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final, Literal

from waltz_ray.errors import BadPayload, InvalidInput
from waltz_ray.kv import wire_document, wire_native
from waltz_ray.kv.messages import Command, Hashmask, Hashmasks, Opcode, Reply, ServerList
from waltz_ray.kv.payload import HEADER, packed_string

__all__ = [
    "COMMAND_OPCODES",
    "Dialect",
    "HEADER",
    "MAX_FRAME_BYTES",
    "announcement",
    "decode_command",
    "decode_reply",
    "encode_command",
    "encode_reply",
]

Dialect = Literal["doc", "2012"]
"""``2012``: a serverlist has one server, and hashmasks travel one by one, as hashmask."""

MAX_FRAME_BYTES = 32 * 1024 * 1024
"""Header and payload, unless a port is told another limit."""

_COMMANDS: Final[dict[int, Callable[[bytes], Command]]] = {
    **wire_document.COMMAND_READERS,
    **wire_native.COMMAND_READERS,
}
_WRITERS: Final = {**wire_document.COMMAND_WRITERS, **wire_native.COMMAND_WRITERS}
_REPLIES: Final[dict[int, Callable[[bytes], Reply]]] = {**wire_document.REPLY_READERS, **wire_native.REPLY_READERS}

COMMAND_OPCODES = frozenset(int(opcode) for opcode in _COMMANDS)
"""Of all commands there are: what capabilities(11) answers with ack."""


def decode_command(opcode: int, payload: bytes) -> Command:
    """BadPayload if it makes no sense; KeyError if ``opcode`` is not one of ``COMMAND_OPCODES``."""
    read = _COMMANDS[opcode]
    try:
        return read(payload)
    except BadPayload as error:
        raise BadPayload(f"{_name(opcode)}: {error}") from None


def _name(opcode: int) -> str:
    return f"{Opcode(opcode).name.lower()}({opcode})"


def encode_command(message_id: int, command: Command, dialect: Dialect = "doc") -> bytes:
    """One frame. InvalidInput if a value does not fit its field, or the dialect has other words: ``announcement``."""
    try:
        if dialect == "2012" and type(command) in (ServerList, Hashmasks):
            opcode, payload = Opcode.SERVERLIST, _only_server(command)
        else:
            opcode, payload = _WRITERS[type(command)](command)  # type: ignore[assignment]
        return HEADER.pack(opcode, 0, message_id, len(payload)) + payload
    except (struct.error, OverflowError) as error:
        raise InvalidInput(f"a {type(command).__name__} cannot be sent, a value does not fit: {error}") from None


def _only_server(command: Command) -> bytes:
    if not isinstance(command, ServerList) or len(command.servers) != 1:
        raise InvalidInput("the dialect 2012 tells servers and hashmasks one by one; see announcement()")
    return packed_string(command.servers[0].encode())


def announcement(command: ServerList | Hashmasks, dialect: Dialect) -> Sequence[Command]:
    """The commands by which a dialect says it."""
    if dialect == "doc":
        return (command,)
    if isinstance(command, ServerList):
        return [ServerList((server,)) for server in command.servers]
    return [Hashmask(command.mask, bucket, instance) for bucket, instance in command.buckets]


def decode_reply(opcode: int, payload: bytes) -> Reply:
    """BadPayload if it makes no sense, or there is no such reply."""
    read = _REPLIES.get(opcode)
    if read is None:
        raise BadPayload(f"there is no reply {opcode}")
    try:
        return read(payload)
    except BadPayload as error:
        raise BadPayload(f"{_name(opcode)}: {error}") from None


def encode_reply(replied_to: int, message_id: int, reply: Reply, max_frame_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """One frame; ``replied_to``: the opcode of the command. InvalidInput if a value does not fit its field, or a reply
    of many items is longer than ``max_frame_bytes``: then its parts have not been put together."""
    kind = type(reply)
    try:
        write = wire_document.REPLY_WRITERS.get(kind)
        if write is not None:
            return write(replied_to, message_id, reply)
        opcode, parts = wire_native.REPLY_WRITERS[kind](reply)
        size = sum(map(len, parts))
        if size + HEADER.size > max_frame_bytes:
            raise InvalidInput(f"the answer has {size} bytes, {max_frame_bytes} are the most; ask for fewer at once")
        return b"".join([HEADER.pack(opcode, replied_to, message_id, size), *parts])
    except (struct.error, OverflowError) as error:
        raise InvalidInput(f"a {kind.__name__} cannot be sent, a value does not fit: {error}") from None
