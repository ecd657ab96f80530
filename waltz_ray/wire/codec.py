"""The one door of the client protocol (magic ``L``): messages of versions 0-5 to bytes and back.

Versions 0-4 are the original's. Version 5 knows every message of version 4, in version 4's bytes, and the batches
(types from 32 up). Which version a connection speaks is what HELLO agreed on (``framing.negotiate``).
"""

from __future__ import annotations

import struct

from waltz_ray.errors import WireError
from waltz_ray.protocol.messages.client import BatchMessage
from waltz_ray.protocol.messages.original import OriginalMessage
from waltz_ray.wire.client_codec import BATCH_NAMES, BATCH_READERS, BATCH_WRITERS, read_one_append, read_one_appended
from waltz_ray.wire.original_codec import KIND_OF_CLASS, KINDS
from waltz_ray.wire.primitives import BytesLike, Reader, Writer

__all__ = ["BATCH_VERSION", "CLIENT_VERSIONS", "ClientMessage", "decode_client", "encode_client"]

ClientMessage = OriginalMessage | BatchMessage

CLIENT_VERSIONS = (0, 1, 2, 3, 4, 5)
BATCH_VERSION = 5

_NAMES = {number: kind.name for number, kind in KINDS.items()} | BATCH_NAMES


def decode_client(version: int, payload: BytesLike) -> ClientMessage:
    """One message. Bodies and data are views of ``payload``, columns are copies. ``WireError`` for anything else."""
    if version >= BATCH_VERSION:
        one: ClientMessage | None = read_one_appended(payload)
        if one is None:
            one = read_one_append(payload)
        if one is not None:
            return one
    reader = Reader(payload, _NAMES)
    message: ClientMessage
    batch = BATCH_READERS.get(reader.type) if version >= BATCH_VERSION else None
    if batch is not None:
        message = batch[1](reader)
    else:
        kind = KINDS.get(reader.type)
        if kind is None or version < kind.since:
            raise WireError(f"message {reader.label} is unknown in version {version} of the client protocol")
        message = kind.read(version, reader.read_req_id(), reader)
    reader.done()
    return message


def encode_client(version: int, message: ClientMessage) -> list[BytesLike]:
    """The payload in parts, to be joined once in the frame; bodies and data are not copied.

    ``WireError`` if this version has no such message or a number does not fit its place.
    """
    cls = type(message)
    try:
        write_batch = BATCH_WRITERS.get(cls) if version >= BATCH_VERSION else None
        if write_batch is not None:
            return write_batch(message)
        kind = KIND_OF_CLASS.get(cls)
        if kind is None or version < kind.since:
            raise WireError(f"{cls.__name__} does not exist in version {version} of the client protocol")
        assert not isinstance(message, BatchMessage)
        writer = Writer(bytes((kind.number,)))
        writer.write_req_id(message.req_id)
        kind.write(version, message, writer)
        return writer.parts
    except struct.error as error:
        raise WireError(f"{cls.__name__} cannot be written: {error}") from None
