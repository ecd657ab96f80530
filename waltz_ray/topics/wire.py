"""Bytes of what is asked and answered on topic ports: which message belongs to which method. Pure.

The tables are in ``wire_producer.py``, ``wire_consumer.py`` and ``wire_shared.py``, what is around these bytes in
``rpc.py``. Bytes that make no sense are ``BadPayload``: only that request is refused.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from waltz_ray.topics import messages_consumer as consumer
from waltz_ray.topics import messages_producer as producer
from waltz_ray.topics import wire_consumer, wire_producer, wire_shared
from waltz_ray.topics.codes import RpcMethod
from waltz_ray.topics.messages import ClusterMeantRequest, ClusterMeantResponse, UnknownMethod
from waltz_ray.topics.protobuf import ProtoCodec

__all__ = [
    "TopicRequest",
    "TopicResponse",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
]

TopicRequest: TypeAlias = (
    producer.RegisterRequestP2M
    | producer.HeartRequestP2M
    | producer.CloseRequestP2M
    | consumer.RegisterRequestC2M
    | consumer.HeartRequestC2M
    | consumer.CloseRequestC2M
    | producer.SendMessageRequestP2B
    | consumer.RegisterRequestC2B
    | consumer.HeartBeatRequestC2B
    | consumer.GetMessageRequestC2B
    | consumer.CommitOffsetRequestC2B
    | consumer.ProgressRequestC2B
    | ClusterMeantRequest
)
"""What a client asks."""

TopicResponse: TypeAlias = (
    producer.RegisterResponseM2P
    | producer.HeartResponseM2P
    | producer.CloseResponseM2P
    | consumer.RegisterResponseM2C
    | consumer.HeartResponseM2C
    | consumer.CloseResponseM2C
    | producer.SendMessageResponseB2P
    | consumer.RegisterResponseB2C
    | consumer.HeartBeatResponseB2C
    | consumer.GetMessageResponseB2C
    | consumer.CommitOffsetResponseB2C
    | consumer.ProgressResponseB2C
    | ClusterMeantResponse
)
"""What it is answered."""

_EXCHANGES: Final[dict[RpcMethod, tuple[ProtoCodec[Any], ProtoCodec[Any]]]] = {
    RpcMethod.PRODUCER_REGISTER: (wire_producer.REGISTER_REQUEST_P2M, wire_producer.REGISTER_RESPONSE_M2P),
    RpcMethod.PRODUCER_HEARTBEAT: (wire_producer.HEART_REQUEST_P2M, wire_producer.HEART_RESPONSE_M2P),
    RpcMethod.PRODUCER_CLOSE: (wire_producer.CLOSE_REQUEST_P2M, wire_producer.CLOSE_RESPONSE_M2P),
    RpcMethod.CONSUMER_REGISTER: (wire_consumer.REGISTER_REQUEST_C2M, wire_consumer.REGISTER_RESPONSE_M2C),
    RpcMethod.CONSUMER_HEARTBEAT: (wire_consumer.HEART_REQUEST_C2M, wire_consumer.HEART_RESPONSE_M2C),
    RpcMethod.CONSUMER_CLOSE: (wire_consumer.CLOSE_REQUEST_C2M, wire_consumer.CLOSE_RESPONSE_M2C),
    RpcMethod.SEND_MESSAGE: (wire_producer.SEND_MESSAGE_REQUEST_P2B, wire_producer.SEND_MESSAGE_RESPONSE_B2P),
    RpcMethod.PARTITION_REGISTER: (wire_consumer.REGISTER_REQUEST_C2B, wire_consumer.REGISTER_RESPONSE_B2C),
    RpcMethod.PARTITION_HEARTBEAT: (wire_consumer.HEART_BEAT_REQUEST_C2B, wire_consumer.HEART_BEAT_RESPONSE_B2C),
    RpcMethod.GET_MESSAGE: (wire_consumer.GET_MESSAGE_REQUEST_C2B, wire_consumer.GET_MESSAGE_RESPONSE_B2C),
    RpcMethod.COMMIT_OFFSET: (wire_consumer.COMMIT_OFFSET_REQUEST_C2B, wire_consumer.COMMIT_OFFSET_RESPONSE_B2C),
    RpcMethod.PROGRESS: (wire_consumer.PROGRESS_REQUEST_C2B, wire_consumer.PROGRESS_RESPONSE_B2C),
    RpcMethod.CLUSTER_MEANT: (wire_shared.CLUSTER_MEANT_REQUEST, wire_shared.CLUSTER_MEANT_RESPONSE),
}

_REQUESTS: Final = {int(method): request for method, (request, _) in _EXCHANGES.items()}
_RESPONSES: Final = {int(method): response for method, (_, response) in _EXCHANGES.items()}
_OF_REQUEST: Final = {request.kind: (method, request) for method, (request, _) in _EXCHANGES.items()}
_OF_RESPONSE: Final = {response.kind: (method, response) for method, (_, response) in _EXCHANGES.items()}


def decode_request(method: int, body: bytes) -> TopicRequest | UnknownMethod:
    """What a client asks. BadPayload if ``body`` is not the method's message."""
    codec = _REQUESTS.get(method)
    if codec is None:
        return UnknownMethod(method)
    request: TopicRequest = codec.decode(body)
    return request


def encode_request(request: TopicRequest) -> tuple[RpcMethod, bytes]:
    """The method and the bytes. InvalidInput if a value does not fit its field."""
    method, codec = _OF_REQUEST[type(request)]
    return method, codec.encode(request)


def decode_response(method: int, body: bytes) -> TopicResponse | UnknownMethod:
    """What a client is answered. BadPayload if ``body`` is not the method's message."""
    codec = _RESPONSES.get(method)
    if codec is None:
        return UnknownMethod(method)
    response: TopicResponse = codec.decode(body)
    return response


def encode_response(response: TopicResponse) -> tuple[RpcMethod, bytes]:
    """The method and the bytes. InvalidInput if a value does not fit its field."""
    method, codec = _OF_RESPONSE[type(response)]
    return method, codec.encode(response)
