"""Why something is not done: a code of the protocol, which its clients act on, and a text for whoever reads it."""

from __future__ import annotations

from typing import Final

from waltz_ray.protocol.value import value

__all__ = [
    "BAD_REQUEST",
    "CERTIFICATE_FAILURE",
    "CONTENT_FORBIDDEN",
    "DUPLICATE_PARTITION",
    "FORBIDDEN",
    "GROUP_FORBIDDEN",
    "NOT_FOUND",
    "NO_NODE",
    "OCCUPIED",
    "OVERFLOW",
    "SPEED_LIMIT",
    "SUCCESS",
    "UNAUTHORIZED",
    "UNAVAILABLE",
    "Refusal",
]

SUCCESS: Final = 200
BAD_REQUEST: Final = 400
UNAUTHORIZED: Final = 401
FORBIDDEN: Final = 403
NOT_FOUND: Final = 404
OCCUPIED: Final = 410
NO_NODE: Final = 411
DUPLICATE_PARTITION: Final = 412
CERTIFICATE_FAILURE: Final = 415
OVERFLOW: Final = 419
GROUP_FORBIDDEN: Final = 450
SPEED_LIMIT: Final = 452
CONTENT_FORBIDDEN: Final = 455
UNAVAILABLE: Final = 503


@value()
class Refusal:
    """``code``: one of those above; ``text``: what is refused, to whom, and what to do."""

    code: int
    text: str
