"""Who may produce to and consume from which topic. Pure.

A configuration, ``AccessRules``, is one value: whoever asks gives the one that holds now, so that a change holds from
the next request on, also for clients that are registered already. It lives in ZooKeeper as JSON, where it is replaced
as a whole by compare-and-set. The passwords are in there as they are, since the protocol's signatures are made with
them: the node is to be readable by the cluster alone.

What is refused, in the order in which it is asked, and the protocol's code for it:

==== ==========================================================================================
415  the name or the proof given is wrong: no such user, no right signature, no valid token
401  nothing was given, where users have to say who they are; or no visit token (``tokens.py``)
450  the group is on the blacklist, of this topic or of all
403  the user has not the right to produce, or to consume, there
455  the group may consume the topic only with some filters, and has asked for others or none
==== ==========================================================================================

Users and rights count only where ``authenticate`` is on; the blacklist and the filters always.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import field

from waltz_ray.protocol.value import value
from waltz_ray.topics.codes import TopicCode
from waltz_ray.topics.refusals import Refusal

__all__ = [
    "ANY",
    "AccessRules",
    "Right",
    "has_right",
    "is_blacklisted",
    "is_guarded",
    "refused_consumer",
    "refused_filters",
    "refused_group",
    "refused_producer",
    "refused_user",
]

ANY = "*"
"""In place of a topic: all of them."""


class Right(enum.Enum):
    """What a user may do with a topic."""

    PRODUCE = "produce"
    CONSUME = "consume"


@value()
class AccessRules:
    """``users``: name -> password. ``rights``: (user, topic, right). ``blacklist``: group -> topics it may not consume.
    ``guarded``: topics for which clients must have been at the master (``tokens.py``). In these three a topic may be
    ANY. ``filters``: (group, topic) -> the filters it has to choose from."""

    authenticate: bool = False
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    rights: frozenset[tuple[str, str, Right]] = frozenset()
    blacklist: Mapping[str, frozenset[str]] = field(default_factory=dict)
    guarded: frozenset[str] = frozenset()
    filters: Mapping[tuple[str, str], frozenset[str]] = field(default_factory=dict)


def is_guarded(rules: AccessRules, topic: str) -> bool:
    """Whether the topic is closed to clients that have not been at the master."""
    return topic in rules.guarded or ANY in rules.guarded


def refused_user(rules: AccessRules, user: str) -> Refusal | None:
    """Why there is nobody of the name ``user`` whose signature could be right; "" = none was given."""
    if not rules.authenticate:
        return None
    if not user:
        return Refusal(TopicCode.UNAUTHORIZED, "this cluster asks for a user's name and signature (authInfo)")
    if user not in rules.users:
        # Not that there is no such user: whoever asks may be guessing.
        return Refusal(TopicCode.CERTIFICATE_FAILURE, f"user {user!r:.80} or the signature is not right")
    return None


def has_right(rules: AccessRules, user: str, topic: str, right: Right) -> bool:
    """Whether users need no rights here, or this one has it."""
    if not rules.authenticate:
        return True
    return (user, topic, right) in rules.rights or (user, ANY, right) in rules.rights


def is_blacklisted(rules: AccessRules, group: str, topic: str) -> bool:
    """Whether the group may not consume the topic, whoever asks."""
    topics = rules.blacklist.get(group, frozenset())
    return topic in topics or ANY in topics


def refused_group(rules: AccessRules, group: str, topic: str) -> Refusal | None:
    """Why the group may not even pull any more, though it has registered."""
    if not is_blacklisted(rules, group, topic):
        return None
    return Refusal(TopicCode.GROUP_FORBIDDEN, f"group {group!r:.80} is on the blacklist of topic {topic!r:.80}")


def refused_filters(rules: AccessRules, group: str, topic: str, filters: Collection[str]) -> Refusal | None:
    """Why the group may not consume with these filters; none at all means everything."""
    allowed = rules.filters.get((group, topic))
    if allowed is None:
        return None
    if not filters:
        return Refusal(
            TopicCode.CONTENT_FORBIDDEN,
            f"group {group!r:.80} may consume topic {topic!r:.80} with filters only: choose from {_named(allowed)}",
        )
    others = frozenset(filters) - allowed
    if others:
        asked = f"{_named(others)} of topic {topic!r:.80}"
        text = f"group {group!r:.80} may not consume {asked}: choose from {_named(allowed)}"
        return Refusal(TopicCode.CONTENT_FORBIDDEN, text)
    return None


def refused_producer(rules: AccessRules, user: str, topic: str) -> Refusal | None:
    """Why ``user`` (proved to be that; "" = nobody) may not produce to ``topic``."""
    if refused := refused_user(rules, user):
        return refused
    if not has_right(rules, user, topic, Right.PRODUCE):
        return Refusal(
            TopicCode.FORBIDDEN, f"user {user!r:.80} may not produce to topic {topic!r:.80}: ask for the right"
        )
    return None


def refused_consumer(rules: AccessRules, user: str, group: str, topic: str, filters: Collection[str]) -> Refusal | None:
    """Why ``user`` (as above), in ``group``, may not consume ``topic`` with these filters."""
    if refused := refused_user(rules, user):
        return refused
    if refused := refused_group(rules, group, topic):
        return refused
    if not has_right(rules, user, topic, Right.CONSUME):
        return Refusal(TopicCode.FORBIDDEN, f"user {user!r:.80} may not consume topic {topic!r:.80}: ask for the right")
    return refused_filters(rules, group, topic, filters)


def _named(filters: Collection[str]) -> str:
    """Some of them, for a text that stays short."""
    shown = ", ".join(f"{each:.40}" for each in sorted(filters)[:5])
    return shown if len(filters) <= 5 else f"{shown} and {len(filters) - 5} more"
