"""Decoders of what comes over a socket: ours, the original's, OpenCluster's, TubeMQ's, HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from tests.fuzz.target import FuzzTarget
from tests.kv.golden_bytes import golden as kv_golden
from tests.topics.all_codecs import CODECS
from tests.topics.all_codecs import golden as topics_golden
from tests.topics.test_rpc import call_of, delimited
from tests.wire import test_client_codec, test_original_codec, test_replica_codec
from waltz_ray.errors import BadPayload, WireError
from waltz_ray.kv.wire import COMMAND_OPCODES, decode_command, decode_reply
from waltz_ray.kv.wire_framer import KvFramer
from waltz_ray.protocol.authentication import DenialCode, Denied, Proof
from waltz_ray.topics import rpc
from waltz_ray.topics.codes import RpcMethod
from waltz_ray.topics.framing import TopicFramer
from waltz_ray.topics.framing import encode_frame as encode_topic_frame
from waltz_ray.topics.wire import decode_request, decode_response
from waltz_ray.wire.authentication import decode_authentication, encode_authentication
from waltz_ray.wire.codec import decode_client
from waltz_ray.wire.framing import MAGIC_REPLICA, GreetedDecoder, Hello, encode_frame, encode_hello
from waltz_ray.wire.http import HttpFramer
from waltz_ray.wire.replica_codec import decode_replica

__all__ = ["WIRES"]

_MOST_BYTES = 1 << 20


class _Cutter(Protocol):
    """Some keep an error for later, with the frames before it."""

    def feed(self, data: bytes, /) -> Sequence[Any]: ...


def _numbered(decode: Callable[[int, bytes], object], numbers: Iterable[int]) -> Callable[[bytes], object]:
    """The first byte says which version, opcode or method the rest is of."""
    known = sorted(numbers)

    def read(data: bytes) -> object:
        return decode(known[data[0] % len(known)], data[1:]) if data else None

    return read


def _behind(numbers: Iterable[int], payloads: Iterable[tuple[int, bytes]]) -> Iterator[bytes]:
    """Samples for ``_numbered``."""
    known = sorted(numbers)
    return (bytes([known.index(number)]) + payload for number, payload in payloads)


def _cut(make: Callable[[], _Cutter]) -> Callable[[bytes], object]:
    """The first byte says in pieces of which size the rest comes: the frames have to be those of the whole."""

    def frames(data: bytes, size: int) -> tuple[list[Any], bool]:
        cutter, found = make(), list[Any]()
        try:
            for begin in range(0, len(data), size):
                found += [_plain(frame) for frame in cutter.feed(data[begin : begin + size])]
        except WireError:
            return found, True
        return found, getattr(cutter, "error", None) is not None

    def read(data: bytes) -> object:
        if not data:
            return None
        whole, pieces = frames(data[1:], len(data)), frames(data[1:], 1 + data[0])
        # An error may keep back frames that came with it, and in pieces it may need some bytes more.
        shorter = min(len(whole[0]), len(pieces[0]))
        assert whole[0][:shorter] == pieces[0][:shorter], "cut differently in pieces"
        if whole[1]:
            raise WireError("refused")
        assert whole == pieces, "refused, or held back, in pieces only"
        return whole

    return read


def _plain(frame: object) -> object:
    return bytes(frame) if isinstance(frame, memoryview) else frame


def _greeted() -> GreetedDecoder:
    return GreetedDecoder(MAGIC_REPLICA, (1, 2), _MOST_BYTES)


_HELLOS = [
    encode_hello(Hello((1, 2), "server 0")) + encode_frame(MAGIC_REPLICA, 2, sample) * 2
    for sample in test_replica_codec.SAMPLES[:3]
]
_VERSIONS = range(6)
_KV = kv_golden().values()
_TOPICS = topics_golden()
_REPLY_OPCODES = sorted({each.head[0] for each in _KV if each.is_reply})
_METHODS = [*map(int, RpcMethod), 99]
_HTTP = [b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n", b"HEAD / HTTP/1.0\n\n", b"POST /status.json HTTP/1.1\r\n\r\n"]


def _answers() -> list[bytes]:
    answer = delimited(
        ("RpcConnHeader", {"flag": 1}),
        ("ResponseHeader", {"status": 0, "serviceType": 3, "protocolVer": 2}),
        ("RspResponseBody", {"method": 13, "data": b"x"}),
    )
    fault = delimited(
        ("RpcConnHeader", {"flag": 1}),
        ("ResponseHeader", {"status": 1}),
        ("RspExceptionBody", {"exceptionName": "a.B", "stackTrace": "c"}),
    )
    return [answer, fault]


def _every_message() -> list[bytes]:
    return [bytes([number % 256]) + content for number in range(len(_METHODS)) for content in _TOPICS.values()][:400]


WIRES = (
    FuzzTarget("client", test_client_codec.decode, (WireError,), lambda: test_client_codec.SAMPLES),
    FuzzTarget(
        "original",
        _numbered(decode_client, _VERSIONS),
        (WireError,),
        lambda: _behind(_VERSIONS, ((v, bytes.fromhex(golden)) for v, _, golden in test_original_codec.CASES)),
    ),
    FuzzTarget("replica", decode_replica, (WireError,), lambda: test_replica_codec.SAMPLES),
    FuzzTarget(
        "authentication",
        decode_authentication,
        (WireError,),
        lambda: [encode_authentication(Proof(bytes(32))), encode_authentication(Denied(DenialCode(1)))],
    ),
    FuzzTarget("frames", _cut(_greeted), (WireError,), lambda: [b"\x06" + each for each in _HELLOS]),
    FuzzTarget("http", _cut(HttpFramer), (WireError,), lambda: [b"\x03" + each for each in _HTTP]),
    FuzzTarget("kv-frames", _cut(KvFramer), (WireError,), lambda: [b"\x05" + each.frame * 2 for each in _KV]),
    FuzzTarget(
        "kv-commands",
        _numbered(decode_command, COMMAND_OPCODES),
        (BadPayload,),
        lambda: _behind(COMMAND_OPCODES, ((g.head[0], g.payload) for g in _KV if g.head[0] in COMMAND_OPCODES)),
    ),
    FuzzTarget(
        "kv-replies",
        _numbered(decode_reply, _REPLY_OPCODES),
        (BadPayload,),
        lambda: _behind(_REPLY_OPCODES, ((g.head[0], g.payload) for g in _KV if g.is_reply)),
    ),
    FuzzTarget(
        "topic-frames",
        _cut(TopicFramer),
        (WireError,),
        lambda: [b"\x07" + encode_topic_frame(7, each) for each in _TOPICS.values() if each],
    ),
    FuzzTarget("topic-calls", rpc.decode_call, (BadPayload,), lambda: [call_of(13), call_of(99, request=b"x")]),
    FuzzTarget("topic-answers", rpc.decode_reply, (BadPayload,), _answers),
    FuzzTarget("topic-requests", _numbered(decode_request, _METHODS), (BadPayload,), _every_message),
    FuzzTarget("topic-responses", _numbered(decode_response, _METHODS), (BadPayload,), _every_message),
    FuzzTarget(
        "topic-messages",
        _numbered(lambda number, data: list(CODECS.values())[number].decode(data), range(len(CODECS))),
        (BadPayload,),
        lambda: [
            bytes([number]) + _TOPICS[f"{name}.{kind}"]
            for number, name in enumerate(CODECS)
            for kind in ("whole", "least")
            if f"{name}.{kind}" in _TOPICS
        ],
    ),
)
