"""What actors of the cluster show that are clients of it (key/value, topics): that they know its secret.

A token, as other clients have one, but made anew for each connection and good for a minute: it travels inside of TLS to
a server whose certificate was checked, and is of no use to who finds it later. The secret does not follow from it.
"""

from __future__ import annotations

import hmac
import time

from waltz_ray.protocol.authentication import Secret

__all__ = ["MEMBER_TOKEN_MS", "is_member_token", "member_token"]

MEMBER_TOKEN_MS = 60_000
"""For so long it is good; clocks of nodes may differ by as much."""

_MARK = "waltz-member"


def member_token(secret: Secret, now_ms: int | None = None) -> str:
    """For a connection that is being made now. ``now_ms``: since 1970."""
    until_ms = _now_ms(now_ms) + MEMBER_TOKEN_MS
    return f"{_MARK}.{until_ms}.{secret.member_mac(until_ms).hex()}"


def is_member_token(secret: Secret, token: str, now_ms: int | None = None) -> bool:
    """Whether who shows it knows the secret."""
    parts = token.split(".")
    if len(parts) != 3 or parts[0] != _MARK or not (parts[1].isascii() and parts[1].isdigit() and len(parts[1]) < 19):
        return False
    until_ms, now = int(parts[1]), _now_ms(now_ms)
    right = secret.member_mac(until_ms).hex().encode()
    fresh = now - MEMBER_TOKEN_MS <= until_ms <= now + 2 * MEMBER_TOKEN_MS
    return hmac.compare_digest(right, parts[2].encode("utf-8", "surrogatepass")) and fresh


def _now_ms(now_ms: int | None) -> int:
    return time.time_ns() // 1_000_000 if now_ms is None else now_ms
