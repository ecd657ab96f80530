"""Who a client is and what it may, at the moment it asks: rules, tokens and secrets, as one value. Pure.

Masters are shown a signature, or the token that was given for one; brokers are shown tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import field

from waltz_ray.protocol.value import value
from waltz_ray.topics.authentication import why_not_authentic
from waltz_ray.topics.authorization import AccessRules, is_guarded, refused_consumer, refused_producer, refused_user
from waltz_ray.topics.codes import TopicCode
from waltz_ray.topics.messages import AuthorizedInfo, MasterAuthorizedInfo, MasterCertificateInfo
from waltz_ray.topics.refusals import Refusal
from waltz_ray.topics.tokens import (
    AuthSecrets,
    VisitTokens,
    check_auth_token,
    issue_auth_token,
    issued_visit_token,
    refused_visit,
)

__all__ = ["KnownClient", "TopicAccess", "authorized", "known_at_broker", "known_at_master", "refused_topics"]


@value()
class TopicAccess:
    """What holds now."""

    rules: AccessRules = field(default_factory=AccessRules)
    visit: VisitTokens = field(default_factory=lambda: VisitTokens(0))
    secrets: AuthSecrets = field(default_factory=lambda: AuthSecrets(b""))


@value()
class KnownClient:
    """``user``: "" where nobody is asked. ``signed``: it has shown a signature; ``renew``: ask it for one."""

    user: str = ""
    signed: bool = False
    renew: bool = False


def known_at_master(access: TopicAccess, shown: MasterCertificateInfo | None, now_ms: int) -> KnownClient | Refusal:
    """Who a client of a master is. ``now_ms``: Unix time."""
    if not access.rules.authenticate:
        return KnownClient()
    if shown is not None and shown.auth_info is not None:
        user = shown.auth_info.user_name
        if why := why_not_authentic(shown.auth_info, access.rules.users.get(user), now_ms):
            return Refusal(TopicCode.CERTIFICATE_FAILURE, why)
        return KnownClient(user, signed=True)
    return _by_token(access, None if shown is None else shown.authorized_token, now_ms)


def known_at_broker(
    access: TopicAccess, shown: AuthorizedInfo | None, topics: Iterable[str], client: str, now_ms: int
) -> KnownClient | Refusal:
    """Who a client of a broker is, and whether it has been at the master, where one of the topics asks for that."""
    guarded = any(is_guarded(access.rules, topic) for topic in topics)
    visit = 0 if shown is None else shown.visit_authorized_token
    if refused := refused_visit(access.visit, visit, guarded, client):
        return refused
    if not access.rules.authenticate:
        return KnownClient()
    return _by_token(access, None if shown is None else shown.auth_authorized_token, now_ms)


def _by_token(access: TopicAccess, token: str | None, now_ms: int) -> KnownClient | Refusal:
    if not token:
        refused = refused_user(access.rules, "")
        assert refused is not None
        return refused
    found = check_auth_token(access.secrets, token, access.rules.users, now_ms)
    return found if isinstance(found, Refusal) else KnownClient(found.name, renew=found.renew)


def refused_topics(
    access: TopicAccess, client: KnownClient, topics: Iterable[str], group: str = "", filters: Collection[str] = ()
) -> Refusal | None:
    """Why a client may not produce to all of these topics, or, in a ``group``, not consume them with these filters."""
    for topic in sorted(topics):
        if group:
            refused = refused_consumer(access.rules, client.user, group, topic, filters)
        else:
            refused = refused_producer(access.rules, client.user, topic)
        if refused is not None:
            return refused
    return None


def authorized(access: TopicAccess, client: KnownClient, topics: Iterable[str], now_ms: int) -> MasterAuthorizedInfo:
    """What a master gives a client to show: a visit token where a topic of its asks for that, and, to who has signed,
    a token instead of the signature."""
    guarded = any(is_guarded(access.rules, topic) for topic in topics)
    token: str | None = None
    if client.signed:
        token = issue_auth_token(access.secrets, client.user, access.rules.users[client.user], now_ms)
    return MasterAuthorizedInfo(issued_visit_token(access.visit, guarded), token)
