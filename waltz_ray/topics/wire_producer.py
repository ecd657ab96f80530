"""Tables of what producers say and hear. Pure. Numbers are public and frozen."""

from __future__ import annotations

from waltz_ray.topics.messages_producer import (
    CloseRequestP2M,
    CloseResponseM2P,
    HeartRequestP2M,
    HeartResponseM2P,
    RegisterRequestP2M,
    RegisterResponseM2P,
    SendMessageRequestP2B,
    SendMessageResponseB2P,
)
from waltz_ray.topics.protobuf import ProtoCodec, ProtoKind, optional, repeated, required
from waltz_ray.topics.wire_shared import (
    APPROVED_CLIENT_CONFIG,
    AUTHORIZED_INFO,
    MASTER_AUTHORIZED_INFO,
    MASTER_CERTIFICATE_INFO,
    OUTCOME,
)

__all__ = [
    "CLOSE_REQUEST_P2M",
    "CLOSE_RESPONSE_M2P",
    "HEART_REQUEST_P2M",
    "HEART_RESPONSE_M2P",
    "REGISTER_REQUEST_P2M",
    "REGISTER_RESPONSE_M2P",
    "SEND_MESSAGE_REQUEST_P2B",
    "SEND_MESSAGE_RESPONSE_B2P",
]

INT32, INT64, BOOL = ProtoKind.INT32, ProtoKind.INT64, ProtoKind.BOOL
STRING, MESSAGE = ProtoKind.STRING, ProtoKind.MESSAGE

REGISTER_REQUEST_P2M = ProtoCodec(
    RegisterRequestP2M,
    required(1, "clientId", STRING),
    repeated(2, "topicList", STRING),
    required(3, "brokerCheckSum", INT64),
    required(4, "hostName", STRING),
    optional(5, "authInfo", MESSAGE, MASTER_CERTIFICATE_INFO),
    optional(6, "jdkVersion", STRING),
    optional(7, "appdConfig", MESSAGE, APPROVED_CLIENT_CONFIG),
)
REGISTER_RESPONSE_M2P = ProtoCodec(
    RegisterResponseM2P,
    *OUTCOME,
    required(4, "brokerCheckSum", INT64),
    repeated(5, "brokerInfos", STRING),
    optional(6, "authorizedInfo", MESSAGE, MASTER_AUTHORIZED_INFO),
    optional(7, "appdConfig", MESSAGE, APPROVED_CLIENT_CONFIG),
)
HEART_REQUEST_P2M = ProtoCodec(
    HeartRequestP2M,
    required(1, "clientId", STRING),
    required(2, "brokerCheckSum", INT64),
    required(3, "hostName", STRING),
    repeated(4, "topicList", STRING),
    optional(5, "authInfo", MESSAGE, MASTER_CERTIFICATE_INFO),
    optional(6, "appdConfig", MESSAGE, APPROVED_CLIENT_CONFIG),
)
HEART_RESPONSE_M2P = ProtoCodec(
    HeartResponseM2P,
    *OUTCOME,
    required(4, "brokerCheckSum", INT64),
    repeated(5, "topicInfos", STRING),
    repeated(6, "brokerInfos", STRING),
    optional(7, "requireAuth", BOOL),
    optional(8, "authorizedInfo", MESSAGE, MASTER_AUTHORIZED_INFO),
    optional(9, "appdConfig", MESSAGE, APPROVED_CLIENT_CONFIG),
)
CLOSE_REQUEST_P2M = ProtoCodec(
    CloseRequestP2M,
    required(1, "clientId", STRING),
    optional(2, "authInfo", MESSAGE, MASTER_CERTIFICATE_INFO),
)
CLOSE_RESPONSE_M2P = ProtoCodec(CloseResponseM2P, *OUTCOME)

SEND_MESSAGE_REQUEST_P2B = ProtoCodec(
    SendMessageRequestP2B,
    required(1, "clientId", STRING),
    required(2, "topicName", STRING),
    required(3, "partitionId", INT32),
    required(4, "data", ProtoKind.BYTES),
    required(5, "flag", INT32),
    required(6, "checkSum", INT32),
    required(7, "sentAddr", INT32),
    optional(8, "msgType", STRING),
    optional(9, "msgTime", STRING),
    optional(10, "authInfo", MESSAGE, AUTHORIZED_INFO),
)
SEND_MESSAGE_RESPONSE_B2P = ProtoCodec(
    SendMessageResponseB2P,
    *OUTCOME,
    optional(4, "requireAuth", BOOL),
    optional(5, "messageId", INT64),
    optional(6, "appendTime", INT64),
    optional(7, "appendOffset", INT64),
)
