"""Tables of the messages that are parts of others, and of those of both ports. Pure. Numbers are public and frozen."""

from __future__ import annotations

from waltz_ray.topics.messages import (
    ApprovedClientConfig,
    AuthenticateInfo,
    AuthorizedInfo,
    ClusterMeantRequest,
    ClusterMeantResponse,
    EventProto,
    MasterAuthorizedInfo,
    MasterCertificateInfo,
)
from waltz_ray.topics.protobuf import ProtoCodec, ProtoField, ProtoKind, optional, repeated, required

__all__ = [
    "APPROVED_CLIENT_CONFIG",
    "AUTHENTICATE_INFO",
    "AUTHORIZED_INFO",
    "CLUSTER_MEANT_REQUEST",
    "CLUSTER_MEANT_RESPONSE",
    "EVENT_PROTO",
    "MASTER_AUTHORIZED_INFO",
    "MASTER_CERTIFICATE_INFO",
    "OUTCOME",
]

INT32, INT64, STRING, MESSAGE = ProtoKind.INT32, ProtoKind.INT64, ProtoKind.STRING, ProtoKind.MESSAGE

OUTCOME: tuple[ProtoField, ...] = (
    required(1, "success", ProtoKind.BOOL),
    required(2, "errCode", INT32),
    required(3, "errMsg", STRING),
)
"""With which every answer begins but that to a pull, whose errMsg is optional."""

EVENT_PROTO = ProtoCodec(
    EventProto,
    optional(1, "rebalanceId", INT64),
    optional(2, "opType", INT32),
    optional(3, "status", INT32),
    repeated(4, "subscribeInfo", STRING),
)
AUTHENTICATE_INFO = ProtoCodec(
    AuthenticateInfo,
    required(1, "userName", STRING),
    required(2, "timestamp", INT64),
    required(3, "nonce", INT32),
    optional(4, "othParams", STRING),
    required(5, "signature", STRING),
)
MASTER_CERTIFICATE_INFO = ProtoCodec(
    MasterCertificateInfo,
    optional(1, "authInfo", MESSAGE, AUTHENTICATE_INFO),
    optional(2, "authorizedToken", STRING),
)
MASTER_AUTHORIZED_INFO = ProtoCodec(
    MasterAuthorizedInfo,
    required(1, "visitAuthorizedToken", INT64),
    optional(2, "authAuthorizedToken", STRING),
)
AUTHORIZED_INFO = ProtoCodec(
    AuthorizedInfo,
    required(1, "visitAuthorizedToken", INT64),
    optional(2, "authAuthorizedToken", STRING),
)
APPROVED_CLIENT_CONFIG = ProtoCodec(
    ApprovedClientConfig,
    required(1, "configId", INT64),
    optional(2, "maxMsgSize", INT32),
)
CLUSTER_MEANT_REQUEST = ProtoCodec(ClusterMeantRequest, required(1, "clusterKey", STRING))
CLUSTER_MEANT_RESPONSE = ProtoCodec(ClusterMeantResponse, *OUTCOME)
