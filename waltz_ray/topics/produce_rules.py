"""Whether a message may be appended as it was sent, and what is kept of it. Pure."""

from __future__ import annotations

from waltz_ray.errors import BadPayload
from waltz_ray.topics.codes import TopicCode
from waltz_ray.topics.messages_producer import SendMessageRequestP2B
from waltz_ray.topics.payload import check_sum, check_sum_fits, unpacked_payload
from waltz_ray.topics.records import MAX_TYPE_BYTES, TopicMessage
from waltz_ray.topics.refusals import Refusal

__all__ = ["message_of", "why_no_message"]


def why_no_message(request: SendMessageRequestP2B, most_bytes: int) -> Refusal | None:
    """Why what was sent is no message; ``most_bytes``: of its data, attributes and all."""
    size = len(request.data)
    if not size:
        return Refusal(TopicCode.BAD_REQUEST, "the message has no data: send at least a byte")
    if size > most_bytes:
        text = f"the message has {size} bytes, {most_bytes} are the most: send it in parts"
        return Refusal(TopicCode.BAD_REQUEST, text)
    if not check_sum_fits(request.data, request.check_sum):
        text = f"the checksum of the message is {check_sum(request.data)}, not {request.check_sum}: send it again"
        return Refusal(TopicCode.FORBIDDEN, text)
    try:
        unpacked_payload(request.data, request.flag)
    except BadPayload as error:
        return Refusal(TopicCode.BAD_REQUEST, str(error))
    for field, what, most in ((request.msg_type, "type", MAX_TYPE_BYTES), (request.msg_time, "time", 255)):
        if field is not None and len(field.encode(errors="replace")) > most:
            return Refusal(TopicCode.BAD_REQUEST, f"the {what} of the message is longer than {most} bytes")
    return None


def message_of(request: SendMessageRequestP2B, append_ms: int) -> TopicMessage:
    """What is kept of it. ``append_ms``: now, since 1970. The checksum is the right one, whatever was claimed."""
    return TopicMessage(
        request.data,
        request.flag,
        check_sum(request.data),
        request.sent_addr,
        append_ms,
        request.msg_type or "",
        request.msg_time or "",
    )
