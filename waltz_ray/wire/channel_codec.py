"""Several clients over one connection, in bytes (``docs/wire.md``, "Channels", types 64 and 65)."""

from __future__ import annotations

import struct

from waltz_ray.protocol.messages.client import ChannelClosed, InChannel
from waltz_ray.wire.client_codec import batch_row
from waltz_ray.wire.primitives import BytesLike, Reader

__all__ = ["CHANNELS", "channel_head", "read_in_channel"]

_IN_CHANNEL, _CHANNEL_CLOSED = 64, 65
_HEAD = struct.Struct(">Bi")


def channel_head(channel: int) -> bytes:
    """What goes before the payload of a message in ``channel``."""
    return _HEAD.pack(_IN_CHANNEL, channel)


def read_in_channel(payload: BytesLike) -> InChannel | None:
    """None for any other message; the general way says what is wrong with it, if anything is."""
    if len(payload) <= _HEAD.size or payload[0] != _IN_CHANNEL:
        return None
    _, channel = _HEAD.unpack_from(payload)
    message = memoryview(payload)[_HEAD.size :]
    return InChannel(channel, message) if channel > 0 and message[0] not in (_IN_CHANNEL, _CHANNEL_CLOSED) else None


def _read_in_channel(reader: Reader) -> InChannel:
    channel = _read_channel(reader)
    if not reader.left:
        reader.fail("no message in it")
    start = reader.need(reader.left)
    message = reader.payload[start:]
    if message[0] in (_IN_CHANNEL, _CHANNEL_CLOSED):
        reader.fail(f"a message of type {message[0]} does not belong in a channel")
    return InChannel(channel, message)


def _write_in_channel(message: InChannel) -> list[BytesLike]:
    return [channel_head(message.channel), message.message]


def _read_closed(reader: Reader) -> ChannelClosed:
    return ChannelClosed(_read_channel(reader))


def _read_channel(reader: Reader) -> int:
    channel = reader.read_int()
    if channel <= 0:
        reader.fail(f"channel {channel}; they are counted from 1")
    return channel


CHANNELS = (
    batch_row(_IN_CHANNEL, "IN_CHANNEL", InChannel, _read_in_channel, _write_in_channel),
    batch_row(
        _CHANNEL_CLOSED,
        "CHANNEL_CLOSED",
        ChannelClosed,
        _read_closed,
        lambda closed: [_HEAD.pack(_CHANNEL_CLOSED, closed.channel)],
    ),
)
