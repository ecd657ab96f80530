"""Tokens: that a client has been at the master (visit), and that it has proved who it is (authentication). Pure.

Visit tokens are one number for all clients, made anew from time to time by the master and kept in ZooKeeper; brokers
take the current and the one before, so that clients that have not had a heartbeat since are not refused. A broker to
which both are unknown should look at ZooKeeper again before it refuses: it may be behind. A topic for which going past
the master is no concern (the default) takes any token, 0 included: a client of the protocol sends 0 although it was
issued another.

Authentication tokens say themselves whose they are and until when, under a secret that the masters share, and the
user's password: every master and broker can check one without a table, and a changed password ends it. They are not
bound to an address. Where the signature of a password itself comes from: the protocol's ``authInfo``.

Secrets, random numbers and the time (Unix, milliseconds) are given in.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import field

from waltz_ray.errors import InvalidInput
from waltz_ray.protocol.json_text import int_in, known_fields, loaded, object_in
from waltz_ray.protocol.value import value
from waltz_ray.topics.codes import TopicCode
from waltz_ray.topics.refusals import Refusal

__all__ = [
    "LIFE_MS",
    "ROTATE_MS",
    "AuthSecrets",
    "KnownUser",
    "VisitTokens",
    "check_auth_token",
    "decode_secrets",
    "decode_visit_tokens",
    "encode_visit_tokens",
    "is_a_token",
    "is_due",
    "issue_auth_token",
    "issued_visit_token",
    "refused_visit",
    "rotated",
    "should_renew",
]

ROTATE_MS = 3_600_000
"""A visit token is current so long, and accepted for as long again."""

LIFE_MS = 3_600_000
"""An authentication token is valid so long; from half of it on, its client is asked to prove who it is again."""

_MOST_TOKEN = (1 << 63) - 1
_TEXT_CHARS = 2_048
_NODE_BYTES = 1_024


@value()
class VisitTokens:
    """``previous`` 0: there is none. ``since_ms``: when ``current`` was made."""

    current: int
    previous: int = 0
    since_ms: int = 0


def rotated(tokens: VisitTokens | None, fresh: int, now_ms: int) -> VisitTokens:
    """With ``fresh`` (random, 1 to 2**63 - 1) as the current one; None: the first. InvalidInput if it is no other than
    those there are: draw again."""
    previous = 0 if tokens is None else tokens.current
    if not 0 < fresh <= _MOST_TOKEN or (tokens is not None and fresh in (tokens.current, tokens.previous)):
        raise InvalidInput("a visit token is a new random number from 1 to 2**63 - 1: draw another")
    return VisitTokens(fresh, previous, now_ms)


def is_due(tokens: VisitTokens, now_ms: int) -> bool:
    """Whether it is time for another. One from the future is of a clock that was ahead: it does not wait for that."""
    return abs(now_ms - tokens.since_ms) >= ROTATE_MS


def issued_visit_token(tokens: VisitTokens, guarded: bool) -> int:
    """What the master tells a client; 0 if no topic is guarded against going past the master."""
    return tokens.current if guarded else 0


def is_a_token(tokens: VisitTokens, token: int) -> bool:
    """Whether the master has issued it lately."""
    return token != 0 and token in (tokens.current, tokens.previous)


def refused_visit(tokens: VisitTokens, token: int, guarded: bool, client: str) -> Refusal | None:
    """Why a client that shows ``token`` (0 = none) may not use a topic; ``guarded``: the topic wants one."""
    if not guarded or is_a_token(tokens, token):
        return None
    return Refusal(
        TopicCode.UNAUTHORIZED, f"client {client!r:.200} has no current visit token: register with the master first"
    )


def encode_visit_tokens(tokens: VisitTokens) -> bytes:
    """As they stand in ZooKeeper."""
    fields = {"current": tokens.current, "previous": tokens.previous, "since_ms": tokens.since_ms}
    return json.dumps(fields).encode()


def decode_visit_tokens(data: bytes) -> VisitTokens:
    """InvalidInput if they are none."""
    what = "the visit tokens"
    fields = object_in(loaded(data, what, _NODE_BYTES), what)
    known_fields(fields, what, ("current", "previous", "since_ms"))
    current = int_in(fields, "current", what, 1, _MOST_TOKEN)
    previous = int_in(fields, "previous", what, 0, _MOST_TOKEN)
    return VisitTokens(current, previous, int_in(fields, "since_ms", what, 0, _MOST_TOKEN))


@value()
class AuthSecrets:
    """Random bytes that the masters and brokers of a cluster share; ``previous``: those before them, empty = none."""

    current: bytes = field(repr=False)
    previous: bytes = field(default=b"", repr=False)


def decode_secrets(data: bytes) -> AuthSecrets:
    """As they stand in ZooKeeper; b"": nobody has made any. InvalidInput if they are none."""
    try:
        fields = json.loads(data) if data else {"current": "", "previous": ""}
        return AuthSecrets(bytes.fromhex(fields["current"]), bytes.fromhex(fields["previous"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidInput(f"the secrets of topics make no sense: {error}") from error


@value()
class KnownUser:
    """Whose a token is. ``renew``: ask for name and signature with the next request (requireAuth)."""

    name: str
    renew: bool


def issue_auth_token(secrets: AuthSecrets, user: str, password: str, now_ms: int) -> str:
    """A token for ``user``, who has just proved it by signature."""
    until_ms = now_ms + LIFE_MS
    name = base64.urlsafe_b64encode(user.encode()).decode()
    return f"{name}.{until_ms}.{_mac(secrets.current, user, password, until_ms)}"


def check_auth_token(
    secrets: AuthSecrets, token: str, passwords: Mapping[str, str], now_ms: int
) -> KnownUser | Refusal:
    """Whose token it is; refused if it is over, made up, or of a user who is gone or has another password now."""
    parts = token.split(".") if len(token) <= _TEXT_CHARS else []
    if len(parts) != 3 or not (parts[1].isascii() and parts[1].isdigit() and len(parts[1]) <= 18):
        return _no("it is no token of ours")
    try:
        user = base64.b64decode(parts[0], altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        return _no("it names no user")
    until_ms = int(parts[1])
    password = passwords.get(user)
    given = parts[2].encode("utf-8", "surrogatepass")
    for secret in (secrets.current, secrets.previous):
        if password is not None and secret:
            right = _mac(secret, user, password, until_ms).encode()
            if hmac.compare_digest(right, given):
                if now_ms >= until_ms:
                    return _no("it is over")
                if until_ms - now_ms > 2 * LIFE_MS:
                    return _no("it is good for too long: the clock of who has issued it was ahead")
                return KnownUser(user, should_renew(until_ms, now_ms) or secret != secrets.current)
    return _no("it was not issued here, or its user or password has changed")


def should_renew(until_ms: int, now_ms: int) -> bool:
    """Whether less than half of a token's life is left."""
    return 2 * (until_ms - now_ms) < LIFE_MS


def _mac(secret: bytes, user: str, password: str, until_ms: int) -> str:
    parts = (user.encode(), password.encode(), str(until_ms).encode())
    text = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.new(secret, text, hashlib.sha256).hexdigest()


def _no(why: str) -> Refusal:
    return Refusal(
        TopicCode.CERTIFICATE_FAILURE, f"the authentication token is not accepted: {why}; sign with the password again"
    )
