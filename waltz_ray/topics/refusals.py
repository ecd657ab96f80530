"""Why something is not done: a code of the protocol, which its clients act on, and a text for people. Pure."""

from __future__ import annotations

from waltz_ray.protocol.value import value
from waltz_ray.topics.codes import TopicCode

__all__ = ["Refusal"]


@value()
class Refusal:
    """``text``: what is refused, to whom, and what to do."""

    code: TopicCode
    text: str
