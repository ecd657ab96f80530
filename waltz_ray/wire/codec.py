"""The one door of the client protocol (magic ``L``): messages of versions 0-5 to bytes and back.

Versions 0-4 are the original's. Version 5 knows every message of version 4, in version 4's bytes, and the batches
(types from 32 up). Which version a connection speaks is what HELLO agreed on (``framing.negotiate``).
"""

from __future__ import annotations

from waltz_ray.protocol.messages.client import BatchMessage
from waltz_ray.protocol.messages.original import OriginalMessage
from waltz_ray.wire.channel_codec import CHANNELS, read_in_channel
from waltz_ray.wire.client_codec import BATCH_VERSION, BATCHES, read_one_append, read_one_appended
from waltz_ray.wire.original_codec import ORIGINALS
from waltz_ray.wire.table import MessageTable
from waltz_ray.wire.time_codec import TIME_QUESTIONS

__all__ = ["BATCH_VERSION", "CLIENT_TABLE", "CLIENT_VERSIONS", "ClientMessage", "decode_client", "encode_client"]

ClientMessage = OriginalMessage | BatchMessage

CLIENT_VERSIONS = (0, 1, 2, 3, 4, 5)

CLIENT_TABLE: MessageTable[ClientMessage] = MessageTable(
    "client protocol",
    (*ORIGINALS, *BATCHES, *TIME_QUESTIONS, *CHANNELS),
    fast=((BATCH_VERSION, read_one_appended), (BATCH_VERSION, read_one_append), (BATCH_VERSION, read_in_channel)),
)

decode_client = CLIENT_TABLE.decode
encode_client = CLIENT_TABLE.encode
