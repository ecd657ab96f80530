"""Visit tokens and authentication tokens."""

from __future__ import annotations

import pytest

from tests.simulation.break_rule import break_rule
from waltz_ray.errors import InvalidInput
from waltz_ray.topics import tokens
from waltz_ray.topics.codes import TopicCode
from waltz_ray.topics.refusals import Refusal
from waltz_ray.topics.tokens import (
    LIFE_MS,
    ROTATE_MS,
    AuthSecrets,
    KnownUser,
    check_auth_token,
    decode_visit_tokens,
    encode_visit_tokens,
    is_due,
    issue_auth_token,
    issued_visit_token,
    refused_visit,
    rotated,
)

NOW = 1_700_000_000_000
SECRETS = AuthSecrets(b"one secret of 32 bytes and more..")
PASSWORDS = {"alice": "s3cret", "bob": "other", "zoë ü.": "x"}


def visits() -> None:
    first = rotated(None, 99, NOW)
    second = rotated(first, 100, NOW + ROTATE_MS)
    third = rotated(second, 101, NOW + 2 * ROTATE_MS)
    for held, taken in ((first, {99}), (second, {99, 100}), (third, {100, 101})):
        for token in (0, 98, 99, 100, 101):
            refused = refused_visit(held, token, True, "a client")
            assert (refused is None) == (token in taken), (held, token)
            assert refused is None or refused.code == TopicCode.UNAUTHORIZED


def test_t41_brokers_take_the_current_visit_token_and_the_one_before() -> None:
    visits()


def test_t41_visit_tokens_rotate_by_time_and_are_never_the_same() -> None:
    held = rotated(None, 99, NOW)
    assert not is_due(held, NOW + ROTATE_MS - 1)
    assert is_due(held, NOW + ROTATE_MS)
    assert not is_due(held, NOW - ROTATE_MS + 1), "clocks differ"
    assert is_due(held, NOW - ROTATE_MS), "that of a master was ahead when it was made"
    held = rotated(held, 100, NOW)
    for fresh in (0, -1, 99, 100, 1 << 63):
        with pytest.raises(InvalidInput, match="draw another"):
            rotated(held, fresh, NOW)


def test_t20_a_producer_that_was_not_at_the_master_is_refused_if_the_topic_is_guarded() -> None:
    """And by default none is, as a client of the protocol sends 0 whatever it was issued (D14)."""
    held = rotated(None, 99, NOW)
    refused = refused_visit(held, 0, True, "PRODUCER_1")
    assert refused is not None
    assert refused.code == TopicCode.UNAUTHORIZED
    assert "PRODUCER_1" in refused.text
    assert refused_visit(held, 0, False, "PRODUCER_1") is None
    assert issued_visit_token(held, True) == 99
    assert issued_visit_token(held, False) == 0


def test_t41_visit_tokens_in_zookeeper() -> None:
    held = rotated(rotated(None, (1 << 63) - 1, NOW), 5, NOW + 1)
    assert decode_visit_tokens(encode_visit_tokens(held)) == held
    for wrong in (b"", b"[]", b'{"current":0,"previous":0,"since_ms":0}', b'{"current":1}', b"x" * 2000):
        with pytest.raises(InvalidInput, match="visit tokens"):
            decode_visit_tokens(wrong)


@pytest.mark.parametrize("user", PASSWORDS)
def test_t42_a_token_is_carried_and_says_whose_it_is(user: str) -> None:
    token = issue_auth_token(SECRETS, user, PASSWORDS[user], NOW)
    assert check_auth_token(SECRETS, token, PASSWORDS, NOW) == KnownUser(user, False)


def test_t42_a_token_is_asked_to_be_renewed_and_ends() -> None:
    token = issue_auth_token(SECRETS, "alice", "s3cret", NOW)
    assert check_auth_token(SECRETS, token, PASSWORDS, NOW + LIFE_MS // 2) == KnownUser("alice", False)
    assert check_auth_token(SECRETS, token, PASSWORDS, NOW + LIFE_MS // 2 + 1) == KnownUser("alice", True)
    assert check_auth_token(SECRETS, token, PASSWORDS, NOW + LIFE_MS - 1) == KnownUser("alice", True)
    over = check_auth_token(SECRETS, token, PASSWORDS, NOW + LIFE_MS)
    assert isinstance(over, Refusal)
    assert over.code == TopicCode.CERTIFICATE_FAILURE
    assert check_auth_token(SECRETS, token, PASSWORDS, NOW - LIFE_MS) == KnownUser("alice", False), "clocks differ"
    ahead = check_auth_token(SECRETS, token, PASSWORDS, NOW - LIFE_MS - 1)
    assert isinstance(ahead, Refusal)
    assert "was ahead; sign with the password again" in ahead.text


def test_t42_a_new_secret_takes_the_tokens_of_the_former_and_asks_for_a_signature() -> None:
    token = issue_auth_token(SECRETS, "alice", "s3cret", NOW)
    following = AuthSecrets(b"another secret", SECRETS.current)
    assert check_auth_token(following, token, PASSWORDS, NOW) == KnownUser("alice", True)
    later = check_auth_token(AuthSecrets(b"a third", following.current), token, PASSWORDS, NOW)
    assert isinstance(later, Refusal)


def test_t42_made_up_tokens_are_refused_and_so_are_those_of_a_changed_password() -> None:
    token = issue_auth_token(SECRETS, "alice", "s3cret", NOW)
    name, until, mac = token.split(".")
    other = issue_auth_token(SECRETS, "bob", "other", NOW).split(".")[0]
    made_up = (
        "", "..", "a.b", f"{name}.{until}", f"{name}.{int(until) + 1}.{mac}", f"{other}.{until}.{mac}",
        f"{name}.{until}.{mac[:-1]}", f"{name}.{until}.", f"{name}.-5.{mac}", f"{name}.{'9' * 400}.{mac}",
        f"{name}.٣.{mac}", f"!!.{until}.{mac}", f"/w==.{until}.{mac}", f"{name}.{until}.\ud800é", "x" * 5000,
    )  # fmt: skip
    for wrong in made_up:
        refused = check_auth_token(SECRETS, wrong, PASSWORDS, NOW)
        assert isinstance(refused, Refusal), wrong
        assert refused.code == TopicCode.CERTIFICATE_FAILURE
        assert "s3cret" not in refused.text
    for passwords in ({}, {**PASSWORDS, "alice": "changed"}):
        assert isinstance(check_auth_token(SECRETS, token, passwords, NOW), Refusal)
    assert "secret" not in repr(SECRETS)


@pytest.mark.parametrize("broken", [lambda held, token: token == held.current, lambda held, token: token != 0])
def test_a_broken_rule_of_tokens_is_noticed(monkeypatch: pytest.MonkeyPatch, broken: object) -> None:
    break_rule(monkeypatch, tokens, "is_a_token", broken)
    with pytest.raises(AssertionError):
        visits()
