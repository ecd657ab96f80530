"""Tables of what consumers say and hear. Pure. Numbers are public and frozen."""

from __future__ import annotations

from waltz_ray.topics.messages_consumer import (
    CloseRequestC2M,
    CloseResponseM2C,
    CommitOffsetRequestC2B,
    CommitOffsetResponseB2C,
    GetMessageRequestC2B,
    GetMessageResponseB2C,
    HeartBeatRequestC2B,
    HeartBeatResponseB2C,
    HeartRequestC2M,
    HeartResponseM2C,
    ProgressRequestC2B,
    ProgressResponseB2C,
    RegisterRequestC2B,
    RegisterRequestC2M,
    RegisterResponseB2C,
    RegisterResponseM2C,
    TransferedMessage,
)
from waltz_ray.topics.protobuf import ProtoCodec, ProtoKind, optional, repeated, required
from waltz_ray.topics.wire_shared import (
    AUTHORIZED_INFO,
    EVENT_PROTO,
    MASTER_AUTHORIZED_INFO,
    MASTER_CERTIFICATE_INFO,
    OUTCOME,
)

__all__ = [
    "CLOSE_REQUEST_C2M",
    "CLOSE_RESPONSE_M2C",
    "COMMIT_OFFSET_REQUEST_C2B",
    "COMMIT_OFFSET_RESPONSE_B2C",
    "GET_MESSAGE_REQUEST_C2B",
    "GET_MESSAGE_RESPONSE_B2C",
    "HEART_BEAT_REQUEST_C2B",
    "HEART_BEAT_RESPONSE_B2C",
    "HEART_REQUEST_C2M",
    "HEART_RESPONSE_M2C",
    "PROGRESS_REQUEST_C2B",
    "PROGRESS_RESPONSE_B2C",
    "REGISTER_REQUEST_C2B",
    "REGISTER_REQUEST_C2M",
    "REGISTER_RESPONSE_B2C",
    "REGISTER_RESPONSE_M2C",
]

INT32, INT64, BOOL = ProtoKind.INT32, ProtoKind.INT64, ProtoKind.BOOL
STRING, BYTES, MESSAGE = ProtoKind.STRING, ProtoKind.BYTES, ProtoKind.MESSAGE

# ---- with a master ----------------------------------------------------------------------------------------

REGISTER_REQUEST_C2M = ProtoCodec(
    RegisterRequestC2M,
    required(1, "clientId", STRING),
    required(2, "groupName", STRING),
    required(3, "hostName", STRING),
    repeated(4, "topicList", STRING),
    repeated(5, "subscribeInfo", STRING),
    repeated(6, "topicCondition", STRING),
    optional(7, "requireBound", BOOL),
    optional(8, "sessionTime", INT64),
    optional(9, "sessionKey", STRING),
    optional(10, "totalCount", INT32),
    optional(11, "requiredPartition", STRING),
    optional(12, "notAllocated", BOOL),
    optional(13, "selectBig", BOOL),
    optional(14, "groupFlowCheckId", INT64),
    optional(15, "defFlowCheckId", INT64),
    optional(17, "qryPriorityId", INT32),
    optional(18, "authInfo", MESSAGE, MASTER_CERTIFICATE_INFO),
    optional(19, "jdkVersion", STRING),
)
REGISTER_RESPONSE_M2C = ProtoCodec(
    RegisterResponseM2C,
    *OUTCOME,
    repeated(4, "topicInfo", STRING),
    optional(5, "notAllocated", BOOL),
    optional(6, "defFlowCheckId", INT64),
    optional(7, "defFlowControlInfo", STRING),
    optional(8, "groupFlowCheckId", INT64),
    optional(9, "groupFlowControlInfo", STRING),
    optional(11, "qryPriorityId", INT32),
    optional(12, "authorizedInfo", MESSAGE, MASTER_AUTHORIZED_INFO),
)
HEART_REQUEST_C2M = ProtoCodec(
    HeartRequestC2M,
    required(1, "clientId", STRING),
    required(2, "groupName", STRING),
    repeated(3, "subscribeInfo", STRING),
    required(4, "reportSubscribeInfo", BOOL),
    optional(5, "event", MESSAGE, EVENT_PROTO),
    optional(6, "defFlowCheckId", INT64),
    optional(7, "groupFlowCheckId", INT64),
    optional(9, "qryPriorityId", INT32),
    optional(10, "authInfo", MESSAGE, MASTER_CERTIFICATE_INFO),
)
HEART_RESPONSE_M2C = ProtoCodec(
    HeartResponseM2C,
    *OUTCOME,
    optional(4, "event", MESSAGE, EVENT_PROTO),
    optional(5, "notAllocated", BOOL),
    optional(6, "defFlowCheckId", INT64),
    optional(7, "defFlowControlInfo", STRING),
    optional(8, "groupFlowCheckId", INT64),
    optional(9, "groupFlowControlInfo", STRING),
    optional(11, "qryPriorityId", INT32),
    optional(12, "requireAuth", BOOL),
    optional(13, "authorizedInfo", MESSAGE, MASTER_AUTHORIZED_INFO),
)
CLOSE_REQUEST_C2M = ProtoCodec(
    CloseRequestC2M,
    required(1, "clientId", STRING),
    required(2, "groupName", STRING),
    optional(3, "authInfo", MESSAGE, MASTER_CERTIFICATE_INFO),
)
CLOSE_RESPONSE_M2C = ProtoCodec(CloseResponseM2C, *OUTCOME)

# ---- with a broker ----------------------------------------------------------------------------------------

REGISTER_REQUEST_C2B = ProtoCodec(
    RegisterRequestC2B,
    required(1, "opType", INT32),
    required(2, "clientId", STRING),
    required(3, "groupName", STRING),
    required(4, "topicName", STRING),
    required(5, "partitionId", INT32),
    required(6, "readStatus", INT32),
    repeated(7, "filterCondStr", STRING),
    optional(8, "currOffset", INT64),
    optional(9, "sessionKey", STRING),
    optional(10, "sessionTime", INT64),
    optional(12, "qryPriorityId", INT32),
    optional(13, "authInfo", MESSAGE, AUTHORIZED_INFO),
)
REGISTER_RESPONSE_B2C = ProtoCodec(
    RegisterResponseB2C,
    *OUTCOME,
    optional(4, "currOffset", INT64),
    optional(5, "maxOffset", INT64),
)
HEART_BEAT_REQUEST_C2B = ProtoCodec(
    HeartBeatRequestC2B,
    required(1, "clientId", STRING),
    required(2, "groupName", STRING),
    required(3, "readStatus", INT32),
    repeated(4, "partitionInfo", STRING),
    optional(6, "qryPriorityId", INT32),
    optional(7, "authInfo", MESSAGE, AUTHORIZED_INFO),
)
HEART_BEAT_RESPONSE_B2C = ProtoCodec(
    HeartBeatResponseB2C,
    *OUTCOME,
    optional(4, "hasPartFailure", BOOL),
    repeated(5, "failureInfo", STRING),
    optional(6, "requireAuth", BOOL),
)
GET_MESSAGE_REQUEST_C2B = ProtoCodec(
    GetMessageRequestC2B,
    required(1, "clientId", STRING),
    required(2, "partitionId", INT32),
    required(3, "groupName", STRING),
    required(4, "topicName", STRING),
    optional(5, "lastPackConsumed", BOOL),
    optional(6, "manualCommitOffset", BOOL),
    optional(7, "escFlowCtrl", BOOL),
)
TRANSFERED_MESSAGE = ProtoCodec(
    TransferedMessage,
    required(1, "messageId", INT64),
    required(2, "checkSum", INT32),
    required(3, "payLoadData", BYTES),
    required(4, "flag", INT32),
)
GET_MESSAGE_RESPONSE_B2C = ProtoCodec(
    GetMessageResponseB2C,
    required(1, "success", BOOL),
    required(2, "errCode", INT32),
    optional(3, "errMsg", STRING),
    repeated(4, "messages", MESSAGE, TRANSFERED_MESSAGE),
    optional(5, "currOffset", INT64),
    optional(6, "minLimitTime", INT32),
    optional(7, "escFlowCtrl", BOOL),
    optional(8, "currDataDlt", INT64),
    optional(9, "requireSlow", BOOL),
    optional(10, "maxOffset", INT64),
)
COMMIT_OFFSET_REQUEST_C2B = ProtoCodec(
    CommitOffsetRequestC2B,
    required(1, "clientId", STRING),
    required(2, "topicName", STRING),
    required(3, "partitionId", INT32),
    required(4, "groupName", STRING),
    optional(5, "lastPackConsumed", BOOL),
)
COMMIT_OFFSET_RESPONSE_B2C = ProtoCodec(
    CommitOffsetResponseB2C,
    *OUTCOME,
    optional(4, "currOffset", INT64),
    optional(5, "maxOffset", INT64),
)
PROGRESS_REQUEST_C2B = ProtoCodec(
    ProgressRequestC2B,
    required(1, "clientId", STRING),
    required(2, "groupName", STRING),
    required(3, "topicName", STRING),
    required(4, "partitionId", INT32),
    required(5, "offset", INT64),
    required(6, "readBytes", INT64),
    optional(7, "filtered", BOOL),
)
PROGRESS_RESPONSE_B2C = ProtoCodec(
    ProgressResponseB2C,
    *OUTCOME,
    optional(4, "currOffset", INT64),
    optional(5, "maxOffset", INT64),
    optional(6, "minLimitTime", INT32),
    optional(7, "limited", BOOL),
)
