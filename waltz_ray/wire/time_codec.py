"""The questions about time of version 5 in bytes (``docs/wire.md``, "Version 5", types 50 to 53)."""

from __future__ import annotations

import struct

from waltz_ray.errors import WireError
from waltz_ray.protocol.messages.client import FirstIdAtRequest, FirstIdAtResponse, TimesRequest, TimesResponse
from waltz_ray.wire.client_codec import batch_row
from waltz_ray.wire.primitives import BytesLike, Reader, Writer
from waltz_ray.wire.time_columns import read_times, time_bytes

__all__ = ["TIME_QUESTIONS"]

# Heads are written with their type byte and read after it.
_TIMES, _TIMES_IN = struct.Struct(">Biiqq"), struct.Struct(">iiqq")
_FIRST, _FIRST_IN = struct.Struct(">Biiq"), struct.Struct(">iiq")
_ANSWER, _ANSWER_IN = struct.Struct(">Bi?q"), struct.Struct(">i?q")


def _read_times_request(reader: Reader) -> TimesRequest:
    request = TimesRequest(*reader.unpack(_TIMES_IN))
    if not 0 <= request.first_id <= request.end_id:
        reader.fail(f"impossible range [{request.first_id}, {request.end_id})")
    return request


def _write_times_request(request: TimesRequest) -> list[BytesLike]:
    return [_TIMES.pack(50, request.request_id, request.partition_id, request.first_id, request.end_id)]


def _read_times_response(reader: Reader) -> TimesResponse:
    request_id, ok, end_id = reader.unpack(_ANSWER_IN)
    if not ok:
        return TimesResponse(request_id, end_id, None, reader.read_string())
    return TimesResponse(request_id, end_id, read_times(reader), None)


def _write_times_response(response: TimesResponse) -> list[BytesLike]:
    head = _ANSWER.pack(51, response.request_id, response.times is not None, response.end_id)
    if response.times is not None:
        return [head + time_bytes(response.times)]
    return [_with_error(head, response.error)]


def _read_first_response(reader: Reader) -> FirstIdAtResponse:
    request_id, ok, first_id = reader.unpack(_ANSWER_IN)
    if ok:
        return FirstIdAtResponse(request_id, first_id, None)
    return FirstIdAtResponse(request_id, None, reader.read_string())


def _write_first_response(response: FirstIdAtResponse) -> list[BytesLike]:
    found = response.first_id
    head = _ANSWER.pack(53, response.request_id, found is not None, -1 if found is None else found)
    return [head if found is not None else _with_error(head, response.error)]


def _with_error(head: bytes, error: str | None) -> bytes:
    if error is None:
        raise WireError("an answer needs a result or an error")
    writer = Writer(head)
    writer.write_string(error)
    return writer.to_bytes()


TIME_QUESTIONS = (
    batch_row(50, "TIMES_REQUEST", TimesRequest, _read_times_request, _write_times_request),
    batch_row(51, "TIMES_RESPONSE", TimesResponse, _read_times_response, _write_times_response),
    batch_row(
        52,
        "FIRST_ID_AT_REQUEST",
        FirstIdAtRequest,
        lambda reader: FirstIdAtRequest(*reader.unpack(_FIRST_IN)),
        lambda request: [_FIRST.pack(52, request.request_id, request.partition_id, request.time_ms)],
    ),
    batch_row(53, "FIRST_ID_AT_RESPONSE", FirstIdAtResponse, _read_first_response, _write_first_response),
)
