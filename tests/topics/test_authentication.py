"""Signatures of users."""

from __future__ import annotations

import hmac
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import pytest

from waltz_ray.errors import InvalidInput
from waltz_ray.topics import authentication
from waltz_ray.topics.authentication import signature, signed, why_not_authentic
from waltz_ray.topics.messages import AuthenticateInfo

NOW = 1_700_000_000_123
VECTOR = "i0%2BbLP5Ixvnhq4dAyeJ%2FW3UlDag%3D"
ALICE = signed("alice", "s3cret", NOW, 42)


def test_t40_the_vector() -> None:
    """T40: as the Java class makes it."""
    assert signature("alice", "s3cret", NOW, 42) == VECTOR
    assert AuthenticateInfo("alice", NOW, 42, "", VECTOR) == ALICE
    assert why_not_authentic(ALICE, "s3cret", NOW) == ""


def test_t40_it_may_come_escaped_or_not() -> None:
    shown = AuthenticateInfo("alice", NOW, 42, None, "i0+bLP5Ixvnhq4dAyeJ/W3UlDag=")
    assert why_not_authentic(shown, "s3cret", NOW) == ""


@pytest.mark.parametrize(
    ("off_ms", "why"),
    [
        (0, ""),
        (20_000, ""),
        (-20_000, ""),
        (20_001, "20001 ms old"),
        (-20_001, "20001 ms ahead"),
        (-(1 << 62), "ms ahead"),
    ],
)
def test_t40_the_window(off_ms: int, why: str) -> None:
    """T40: 20 s either way, however well it is signed."""
    said = why_not_authentic(ALICE, "s3cret", NOW + off_ms)
    assert (why in said) if why else said == ""
    assert why_not_authentic(ALICE, "s3cret", NOW + 500, window_ms=499) != ""


@pytest.mark.parametrize(
    "shown",
    [
        AuthenticateInfo("bob", NOW, 42, "", VECTOR),
        AuthenticateInfo("alice", NOW + 1, 42, "", VECTOR),
        AuthenticateInfo("alice", NOW, 43, "", VECTOR),
        AuthenticateInfo("alice", NOW, 42, "", VECTOR[:-3]),
        AuthenticateInfo("alice", NOW, 42, "", ""),
        AuthenticateInfo("alice", NOW, 42, "", "ä\ud800%zz"),
        signed("alice", "another", NOW, 42),
        signed("alice", "", NOW, 42),
    ],
)
def test_t40_what_is_refused(shown: AuthenticateInfo) -> None:
    """T40: and it is not said whether the name or the password is wrong."""
    said = why_not_authentic(shown, "s3cret", NOW)
    assert said == f"user {shown.user_name!r} or its signature is wrong; check name and password"
    assert why_not_authentic(shown, None, NOW) == said


def test_t40_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """T40: all of it, also of a user that there is not."""
    compared: list[tuple[Any, Any]] = []
    real = hmac.compare_digest

    def watched(one: Any, other: Any) -> bool:
        compared.append((one, other))
        return real(one, other)

    monkeypatch.setattr(hmac, "compare_digest", watched)
    assert why_not_authentic(ALICE, "s3cret", NOW) == ""
    assert why_not_authentic(ALICE, None, NOW) != ""
    assert why_not_authentic(signed("alice", "", NOW, 42), None, NOW) != ""
    assert len(compared) == 3


def test_what_cannot_be_signed() -> None:
    with pytest.raises(InvalidInput, match="is not Unicode text"):
        signature("alice", "\ud800", NOW, 1)


def test_a_signature_of_millions_is_not_even_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """By strangers: it would hold up all that the actor serves for seconds."""
    read: list[int] = []

    def counted(text: str) -> str:
        read.append(len(text))
        return unquote(text)

    monkeypatch.setattr(authentication, "unquote", counted)
    right = signed("alice", "s3cret", 1000, 42)
    every = "".join(f"%{ord(each):02X}" for each in unquote(right.signature))
    assert why_not_authentic(replace(right, signature=every), "s3cret", 1000) == ""
    assert why_not_authentic(replace(right, signature=f"{every}%41"), "s3cret", 1000) != ""
    assert why_not_authentic(replace(right, signature="%41" * 1_000_000), "s3cret", 1000) != ""
    assert max(read) == 84
