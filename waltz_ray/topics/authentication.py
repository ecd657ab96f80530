"""Who a client is: user name and password, signed with the time. Pure.

The signature is HMAC-SHA1 of user, timestamp and nonce one after the other, under the password, in Base64, escaped
as in a URL. A nonce that comes again within the window is not noticed here: where others can listen, use TLS.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from urllib.parse import quote, unquote

from waltz_ray.errors import InvalidInput
from waltz_ray.topics.messages import AuthenticateInfo

__all__ = ["WINDOW_MS", "signature", "signed", "why_not_authentic"]

WINDOW_MS = 20_000
"""By so much the clock of the signer may differ, in either direction."""

_MOST_CHARS = 3 * 28  # of a signature with each character escaped


def signature(user: str, password: str, timestamp_ms: int, nonce: int) -> str:
    """What proves that its sender has ``password``. InvalidInput if user or password are not Unicode text."""
    return quote(_signature(user, password, timestamp_ms, nonce), safe="")


def _signature(user: str, password: str, timestamp_ms: int, nonce: int) -> str:
    try:
        key, content = password.encode(), f"{user}{timestamp_ms}{nonce}".encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"the name or the password of user {user[:40]!r} is not Unicode text") from None
    return base64.b64encode(hmac.digest(key, content, hashlib.sha1)).decode()


def signed(user: str, password: str, timestamp_ms: int, nonce: int) -> AuthenticateInfo:
    """What a client shows. ``timestamp_ms``: now, since 1970; ``nonce``: any int32, another each time."""
    return AuthenticateInfo(user, timestamp_ms, nonce, "", signature(user, password, timestamp_ms, nonce))


def why_not_authentic(shown: AuthenticateInfo, password: str | None, now_ms: int, window_ms: int = WINDOW_MS) -> str:
    """Empty if it is who it says; else why not, for the answer (``TopicCode.CERTIFICATE_FAILURE``).

    ``password``: the user's, None = there is no such user, which takes as long and says the same as a wrong one. A
    signature may come escaped or not.
    """
    off_ms = shown.timestamp - now_ms
    if abs(off_ms) > window_ms:
        return (
            f"the signature of user {shown.user_name[:40]!r} is {abs(off_ms)} ms {'ahead' if off_ms > 0 else 'old'}, "
            f"{window_ms} are allowed; set the client's clock right"
        )
    wanted = _signature(shown.user_name, password or "", shown.timestamp, shown.nonce)
    escaped = shown.signature if len(shown.signature) <= _MOST_CHARS else ""  # of millions this would take seconds
    found = unquote(escaped).encode(errors="replace")
    if not hmac.compare_digest(found, wanted.encode()) or password is None:
        return f"user {shown.user_name[:40]!r} or its signature is wrong; check name and password"
    return ""
