"""T43: who may do what, and the document that says so."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.simulation.break_rule import break_rule
from waltz_ray.errors import InvalidInput
from waltz_ray.topics import authorization
from waltz_ray.topics.access_document import decode_access, encode_access
from waltz_ray.topics.authorization import (
    ANY,
    AccessRules,
    Right,
    is_guarded,
    refused_consumer,
    refused_producer,
)

RULES = AccessRules(
    True,
    {"alice": "s3cret", "bob": "other"},
    frozenset(
        {
            ("alice", "orders", Right.PRODUCE),
            ("alice", "orders", Right.CONSUME),
            ("bob", ANY, Right.CONSUME),
        }
    ),
    {"bad": frozenset({"orders"}), "worst": frozenset({ANY})},
    frozenset({"orders"}),
    {("picky", "orders"): frozenset({"aaa", "bbb"})},
)


def produced(user: str, topic: str, rules: AccessRules = RULES) -> int:
    refused = refused_producer(rules, user, topic)
    return 200 if refused is None else refused.code


def consumed(user: str, group: str, topic: str, *filters: str, rules: AccessRules = RULES) -> int:
    refused = refused_consumer(rules, user, group, topic, filters)
    return 200 if refused is None else refused.code


def decisions() -> None:
    assert produced("alice", "orders") == 200
    assert produced("alice", "other") == 403
    assert produced("bob", "orders") == 403
    assert produced("", "orders") == 401
    assert produced("eve", "orders") == 415
    assert consumed("alice", "g", "orders") == 200
    assert consumed("alice", "g", "other") == 403
    assert consumed("bob", "g", "other") == 200
    assert consumed("eve", "g", "orders") == 415
    assert consumed("", "g", "orders") == 401
    assert consumed("bob", "bad", "orders") == 450
    assert consumed("bob", "bad", "other") == 200
    assert consumed("bob", "worst", "other") == 450
    assert consumed("bob", "picky", "orders") == 455
    assert consumed("bob", "picky", "orders", "aaa", "ccc") == 455
    assert consumed("bob", "picky", "orders", "aaa") == 200
    assert consumed("bob", "picky", "other") == 200


def test_t43_rights_blacklist_and_filters() -> None:
    decisions()


def test_t43_without_authentication_the_blacklist_and_the_filters_still_hold() -> None:
    rules = replace(RULES, authenticate=False)
    assert produced("", "anything", rules) == 200
    assert consumed("", "g", "orders", rules=rules) == 200
    assert consumed("", "bad", "orders", rules=rules) == 450
    assert consumed("", "picky", "orders", rules=rules) == 455


def test_t43_texts_say_who_may_not_do_what_and_stay_short() -> None:
    refused = refused_consumer(RULES, "bob", "picky", "orders", [f"f{n}" * 100 for n in range(100)])
    assert refused is not None
    assert "picky" in refused.text
    assert "aaa, bbb" in refused.text
    assert len(refused.text) < 500
    refused = refused_producer(RULES, "e" * 10_000, "orders")
    assert refused is not None
    assert len(refused.text) < 200


def test_t43_a_change_holds_from_the_next_request_on() -> None:
    assert produced("alice", "orders") == 200
    after = replace(RULES, rights=frozenset(), blacklist={"g": frozenset({"orders"})})
    assert produced("alice", "orders", after) == 403
    assert consumed("alice", "g", "orders", rules=after) == 450
    assert consumed("alice", "bad", "orders", rules=after) == 403


def test_t41_topics_are_guarded_one_by_one_or_all() -> None:
    assert is_guarded(RULES, "orders")
    assert not is_guarded(RULES, "other")
    assert is_guarded(AccessRules(guarded=frozenset({ANY})), "other")
    assert not is_guarded(AccessRules(), "orders")


def test_t43_the_document_in_zookeeper() -> None:
    assert decode_access(encode_access(RULES)) == RULES
    assert decode_access(b"{}") == AccessRules()
    assert encode_access(RULES) == encode_access(decode_access(encode_access(RULES)))
    assert "s3cret" not in repr(RULES)


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ([], "must be an object"),
        ({"user": {}}, "no field 'user'"),
        ({"authenticate": 1}, "authenticate is true or false"),
        ({"users": {"": "x"}}, "name of a user"),
        ({"users": {"a": 5}}, "password of a"),
        ({"users": {"a": "\ud800"}}, "surrogate"),
        ({"rights": [{"user": "a", "topic": "t", "may": []}]}, "rights, entry 1: there is no user 'a'"),
        ({"users": {"a": "x"}, "rights": [{"user": "a", "topic": "t t", "may": []}]}, "1: topic: 't t' is no topic"),
        ({"users": {"a": "x"}, "rights": [{"user": "a", "topic": "t", "may": ["write"]}]}, "consume, not 'write'"),
        ({"users": {"a": "x"}, "rights": [{"user": "a", "topic": "t"}]}, "entry 1: may must be a list"),
        ({"users": {"a": "x"}, "rights": [{"user": ["a"], "topic": "t"}]}, "no user"),
        ({"blacklist": {"g": "t"}}, "blacklist of g must be a list"),
        ({"guarded": ["x" * 65]}, "is no topic"),
        ({"filters": [{"group": "g", "topic": "*", "choose_from": []}]}, "is no topic"),
        ({"filters": [{"group": "g", "topic": "t", "choose_from": [5]}]}, "a filter must be a text"),
        ({"filters": [{"group": "g", "topic": "t", "choose_from": []}] * 2}, "entry 2: g and t stand twice"),
        ({"filters": [{"group": "g", "topic": "t", "choose_from": ["x"] * 501}]}, "500 are the most"),
    ],
)  # fmt: skip
def test_t43_what_cannot_be_in_the_document_is_named(document: object, named: str) -> None:
    with pytest.raises(InvalidInput, match=named) as refused:
        decode_access(json.dumps(document).encode())
    assert len(str(refused.value)) < 300


def test_t43_the_document_is_bounded() -> None:
    with pytest.raises(InvalidInput, match="are the most"):
        encode_access(AccessRules(users={f"user{n}": "x" * 250 for n in range(4000)}))
    with pytest.raises(InvalidInput, match="there is no user"):
        encode_access(replace(RULES, users={}))
    with pytest.raises(InvalidInput, match="are the most"):
        decode_access(b" " * (1 << 20))


@pytest.mark.parametrize(
    ("rule", "broken"),
    [
        ("has_right", lambda rules, user, topic, right: True),
        ("has_right", lambda rules, user, topic, right: any((user, topic, each) in rules.rights for each in Right)),
        ("is_blacklisted", lambda rules, group, topic: False),
        ("is_blacklisted", lambda rules, group, topic: group in rules.blacklist),
        ("refused_filters", lambda rules, group, topic, filters: None),
        ("refused_user", lambda rules, user: None),
    ],
)
def test_a_broken_rule_of_rights_is_noticed(monkeypatch: pytest.MonkeyPatch, rule: str, broken: object) -> None:
    break_rule(monkeypatch, authorization, rule, broken)
    with pytest.raises(AssertionError):
        decisions()
