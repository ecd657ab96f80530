"""What operators write, and what stands in ZooKeeper: whatever it is, it is taken or refused with one line."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waltz_ray.errors import InvalidInput
from waltz_ray.topics.access_document import decode_access
from waltz_ray.topics.client.settings import TopicClientConfig
from waltz_ray.topics.flow_rules import parse_flow_rules
from waltz_ray.topics.flow_table import decode_flow_table
from waltz_ray.topics.tokens import decode_visit_tokens

DECODERS: list[Callable[[bytes], object]] = [decode_access, parse_flow_rules, decode_flow_table, decode_visit_tokens]

RULES: list[dict[str, Any]] = [
    {"type": 0, "rule": [{"start": "08:00", "end": "17:59", "dltInM": 1024, "limitInM": 20, "freqInMs": 1000}]},
    {"type": 1, "rule": [{"zeroCnt": 3, "freqInMs": 300}]},
    {"type": 3, "rule": [{"normFreqInMs": 0, "filterFreqInMs": 100, "minDataFilterFreqInMs": 400}]},
]
WHOLE: list[Any] = [
    RULES,
    {"zone": "+01:00", "rules": RULES},
    {"default": RULES, "groups": {"g": {"zone": "UTC", "rules": RULES}}},
    {"current": 5, "previous": 4, "since_ms": 7},
    {
        "authenticate": True,
        "users": {"a": "x"},
        "rights": [{"user": "a", "topic": "*", "may": ["produce"]}],
        "blacklist": {"g": ["t"]},
        "guarded": ["t"],
        "filters": [{"group": "g", "topic": "t", "choose_from": ["f"]}],
    },
]
ODD: list[Any] = [None, True, -1, 0, 1.5, 1 << 80, 10**3000, float("nan"), "", "x" * 3000, "\ud800", [], {}, ["t"] * 3]

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
NAMES = st.sampled_from(
    ["type", "rule", "zone", "rules", "users", "rights", "user", "topic", "may", "filters", "groups"]
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=20
)


def taken_or_refused(data: bytes) -> None:
    for decode in DECODERS:
        text = complaint(decode, data)
        assert len(text) < 1000
        assert "\n" not in text
        assert text.encode().decode() == text


def complaint(decode: Callable[[bytes], object], data: bytes) -> str:
    """Empty if there is none."""
    try:
        decode(data)
    except InvalidInput as refused:
        return str(refused) or "\n"
    return ""


@settings(max_examples=300, deadline=None)
@given(VALUES)
def test_any_json(value: object) -> None:
    taken_or_refused(json.dumps(value).encode())


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes(data: bytes) -> None:
    taken_or_refused(data)


def changed(value: Any, chance: random.Random) -> Any:
    """One place of it, anywhere, is something else."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        name = chance.choice(sorted(value))
        if chance.random() < 0.1:
            return {(f"{name}?" if key == name else key): each for key, each in value.items()}
        return {**value, name: changed(value[name], chance)}
    if isinstance(value, list) and value and chance.random() < 0.85:
        at = chance.randrange(len(value))
        if chance.random() < 0.1:
            return [*value, *value]
        return [*value[:at], changed(value[at], chance), *value[at + 1 :]]
    return chance.choice(ODD)


@pytest.mark.parametrize("seed", range(20))
def test_whole_documents_with_one_thing_changed(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(100):
        value = changed(chance.choice(WHOLE), chance)
        taken_or_refused(json.dumps(value).encode())


def test_names_that_no_text_can_have() -> None:
    for name in ("users", "blacklist", "groups", "\ud800"):
        taken_or_refused(json.dumps({name: {"\ud800": 5}}).encode())


def test_whole_documents_are_taken() -> None:
    assert parse_flow_rules(json.dumps(WHOLE[0]))
    assert parse_flow_rules(json.dumps(WHOLE[1]))
    assert decode_flow_table(json.dumps(WHOLE[2]).encode()).groups
    assert decode_visit_tokens(json.dumps(WHOLE[3]).encode()).current == 5
    assert decode_access(json.dumps(WHOLE[4]).encode()).authenticate


@pytest.mark.parametrize("password", [271828, "", "hush" * 100, "hush\ud800", ["hush"]])
def test_what_is_wrong_with_a_password_is_said_without_it(password: object) -> None:
    with pytest.raises(InvalidInput, match="the password of alice") as caught:
        decode_access(json.dumps({"users": {"alice": password}}).encode())
    assert not any(shown in str(caught.value) for shown in ("hush", "271828", "list"))


def test_a_client_s_settings_do_not_show_its_password() -> None:
    assert "hush" not in repr(TopicClientConfig(user="alice", password="hush"))
