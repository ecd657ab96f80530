from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waltz_spark.streams import layout
from waltz_spark.streams.announce import Announcement, decode_announcement, encode_announcement
from waltz_spark.streams.layout import PublishedPath, commit_of, decode_marker, encode_marker, parse_published
from waltz_spark.streams.settings import Source, StreamSettings
from waltz_spark.streams.states import (
    APPLIED_LIMIT,
    RECOVERY,
    TABLE,
    Action,
    PathInFlight,
    StreamState,
    ThreadNode,
    decode_node,
    encode_node,
    parse_state,
)

from waltz_ray.errors import ConfigError, CoordinationError, InvalidInput

MINUTE = datetime(2026, 11, 21, 15, 5, tzinfo=timezone.utc)
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,8}", fullmatch=True)
HOSTS = st.lists(NAMES, min_size=1, max_size=4).map(".".join)
TIMES = st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31), timezones=st.just(timezone.utc))
MINUTES = TIMES.map(layout.minute_of)
PATHS = st.builds(PublishedPath, st.sampled_from(["streams_local", "streams"]), NAMES, MINUTES, NAMES, HOSTS)


@given(PATHS)
def test_paths_and_announcements_there_and_back(path: PublishedPath) -> None:
    assert parse_published(path.relative) == path
    announcement = Announcement("tokyo", path)
    assert decode_announcement(commit_of(path), encode_announcement(announcement)) == announcement


@given(PATHS, PATHS)
def test_a_commit_has_one_path_in_each_stream(one: PublishedPath, other: PublishedPath) -> None:
    same = one.to_stream("streams") == other.to_stream("streams")
    assert (commit_of(one) == commit_of(other)) == same


def test_names() -> None:
    path = PublishedPath("streams", "bank", MINUTE, "tokyo", "c1")
    assert path.on("/r/") == "/r/streams/bank/2026/11/21/15/05/tokyo.c1"
    assert commit_of(path) == "202611211505.bank.tokyo.c1"
    assert layout.minute_name(datetime(2026, 11, 21, 17, 5, 9, tzinfo=timezone(timedelta(hours=2)))) == "202611211505"
    assert layout.parse_minute("202611211505.done") == MINUTE
    assert layout.data_path("/", "bank", "c1") == "/data/bank/c1"
    assert layout.hours_before(MINUTE, 2) == datetime(2026, 11, 21, 13, tzinfo=timezone.utc)
    assert layout.trash_path("/r", MINUTE, "t", "c") == "/r/system/trash/2026112115/t/c"


@pytest.mark.parametrize("name", ["", "_x", ".x", "a.b", "a/b", "a b", "ä"])
def test_bad_names(name: str) -> None:
    with pytest.raises(InvalidInput, match="category"):
        layout.data_path("/r", name, "c1")


@pytest.mark.parametrize("name", ["", ".x", "a.", "a..b", "a.-b", "a/b", "a b", "..", "a.b\n"])
def test_bad_collectors(name: str) -> None:
    with pytest.raises(InvalidInput, match="collector"):
        layout.data_path("/r", "bank", name)


@pytest.mark.parametrize(
    "name", ["", "2026.x", "202613011505.x", "20261121150 .x", "²02611211505.x", "x202611211505", "196912312359"]
)
def test_bad_minutes(name: str) -> None:
    with pytest.raises(InvalidInput, match="minute"):
        layout.parse_minute(name)


@pytest.mark.parametrize(
    "path",
    [
        "streams/bank/2026/11/21/15/05",
        "other/b/2026/11/21/15/05/t.c",
        "streams/b/2026/13/21/15/05/t.c",
        "streams/b/x/t.c",
    ],
)
def test_bad_published_paths(path: str) -> None:
    with pytest.raises(InvalidInput):
        parse_published(path)


def test_a_time_without_zone_is_refused() -> None:
    with pytest.raises(InvalidInput, match="time zone"):
        layout.minute_name(datetime(2026, 11, 21, 15, 5))


def test_markers() -> None:
    content = encode_marker(MINUTE, ["202611211505.b", "202611211505.a"], {"ranges": [[0, 1, 2]]})
    assert decode_marker("202611211505.done", content) == ["202611211505.a", "202611211505.b"]
    assert json.loads(content)["ranges"] == [[0, 1, 2]]
    assert decode_marker("202611211505.done", encode_marker(MINUTE, [])) == []


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"version":2,"files":[]}', b'{"version":1}', b'{"version":1,"files":[1]}']
    + [
        json.dumps({"version": 1, "files": files}).encode()
        for files in (["x"], ["202611211504.a"], ["202611211505.done"])
    ]
    + [json.dumps({"version": 1, "files": ["202611211505.a/../b"]}).encode()]
    + [json.dumps({"version": 1, "files": ["202611211505.a"] * 2}).encode()],
)
def test_damaged_markers(content: bytes) -> None:
    with pytest.raises(InvalidInput):
        decode_marker("202611211505.done", content)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"version":1,"producer":"t","path":"x"}'])
def test_damaged_announcements(content: bytes) -> None:
    with pytest.raises(InvalidInput, match="damaged"):
        decode_announcement("202611211505.bank.tokyo.c1", content)


def test_an_announcement_of_something_else() -> None:
    other = encode_announcement(Announcement("t", PublishedPath("streams", "bank", MINUTE, "tokyo", "c2")))
    with pytest.raises(InvalidInput, match="another commit"):
        decode_announcement("202611211505.bank.tokyo.c1", other)


def test_the_table() -> None:
    state, seen = StreamState.START, [StreamState.START]
    while state is not StreamState.SUCCESS:
        state = TABLE[state].next
        seen.append(state)
    assert seen == list(StreamState)
    assert {state for state in RECOVERY if RECOVERY[state] != TABLE[state]} == {StreamState.START}
    look = RECOVERY[StreamState.START]
    assert (look.action, look.next, look.otherwise) == (Action.LOOK, StreamState.MOVED, StreamState.SUCCESS)


@pytest.mark.parametrize(
    ("name", "state"),
    [(state.value, state) for state in StreamState]
    + [(name, StreamState.MOVED) for name in ("MV_COMPLETE", "MOVE_COMPLETE", "TRANS_MOVE_COMPLETE")]
    + [
        ("COMMIT_START", StreamState.START),
        ("CNSMR_COMPLETE", StreamState.ANNOUNCED),
        ("TRASH_COMPLETE", StreamState.TRASHED),
    ],
)
def test_spellings_of_states(name: str, state: StreamState) -> None:
    assert parse_state(name) is state


FLIGHT = PathInFlight("c", "/s", "/s/src", ("a", "b"), "/r/tmp", "streams/x", "/s/trash", ("m",), "tokyo")


@pytest.mark.parametrize("state", list(StreamState))
def test_nodes_there_and_back(state: StreamState) -> None:
    node = ThreadNode(holder="h", kind="merged", root="/r", consumers=("m",)).started(FLIGHT).at(state, "now")
    assert decode_node("/databus/x", encode_node(node)) == node
    assert (node.path is None) == (state is StreamState.SUCCESS)
    assert node.has_applied("tokyo", "c") == (state is StreamState.SUCCESS)


def test_a_discarded_path_is_not_remembered() -> None:
    node = ThreadNode().started(FLIGHT).discarded()
    assert (node.path, node.commits, node.last, node.applied) == (None, 0, None, {})


def test_the_memory_is_bounded() -> None:
    node = ThreadNode()
    for number in range(3 * APPLIED_LIMIT):
        node = node.remembering("tokyo", str(number))
    assert len(node.applied["tokyo"]) == APPLIED_LIMIT
    assert node.has_applied("tokyo", str(3 * APPLIED_LIMIT - 1))
    assert not node.has_applied("osaka", str(3 * APPLIED_LIMIT - 1))


@pytest.mark.parametrize("content", [b"", b"{}", b'{"version": 1}', b'{"path": null, "applied": {"tokyo": ["c"]}}'])
def test_a_node_without_state_has_nothing_to_recover(content: bytes) -> None:
    node = decode_node("/databus/x", content)
    assert (node.state, node.path) == (StreamState.SUCCESS, None)
    assert node.has_applied("tokyo", "c") == (b"applied" in content)


def test_too_large_for_a_node() -> None:
    many = tuple(f"202611211505.{number:060d}" for number in range(20_000))
    with pytest.raises(InvalidInput, match="too many"):
        encode_node(ThreadNode().started(replace(FLIGHT, names=many)))


WHOLE = json.loads(encode_node(ThreadNode().started(FLIGHT)))
CHANGES: list[dict[str, Any]] = [
    {"state": None},
    {"version": 2},
    {"state": "COMMITTED"},
    {"state": 7},
    {"path": None},
    {"state": "SUCCESS_COMMIT"},
    {"path": {}},
    {"path": {**WHOLE["path"], "names": "a"}},
    {"path": {**WHOLE["path"], "src": None}},
    {"applied": 5},
    {"last": {}},
]


@pytest.mark.parametrize(
    "content",
    [b" ", b"null", encode_node(ThreadNode().started(FLIGHT))[:-9], b'{"version": 2}', b'{"kind": "collector"}']
    + [json.dumps({**WHOLE, **change}).encode() for change in CHANGES],
)
def test_damaged_nodes_are_for_people(content: bytes) -> None:
    with pytest.raises(CoordinationError, match=r"/databus/tokyo.*damaged"):
        decode_node("/databus/tokyo", content)


LOCAL = StreamSettings("local", "tokyo", "/r", consumers=("all",))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "other"}, "kind"),
        ({"name": "a.b"}, "name"),
        ({"root": ""}, "root"),
        ({"sources": (Source("x", "/x"),)}, "no sources"),
        ({"kind": "merged"}, "at least one"),
        ({"kind": "mirror", "sources": (Source("x", "/x"), Source("y", "/y"))}, "exactly one"),
        ({"kind": "merged", "sources": (Source("x", "/x"), Source("x", "/y"))}, "twice"),
        ({"kind": "mirror", "sources": (Source("tokyo", "/x"),)}, "itself"),
        ({"kind": "mirror", "sources": (Source("x", ""),)}, "root"),
        ({"consumers": ("a", "a")}, "twice"),
        ({"consumers": ("a/b",)}, "consumer"),
        ({"categories": ("",)}, "category"),
        ({"layout": "other"}, "layout must be parts or document, not 'other'"),
        ({"retention_hours": 0}, "retention_hours"),
        ({"retention_hours": 10**9}, "retention_hours must be 1 to 1000000"),
        ({"interval_s": math.nan}, "interval_s must be more than 0, and at most 3600000000, not nan"),
        ({"interval_s": math.inf}, "interval_s must be more than 0, and at most"),
        ({"holes_after_s": math.nan}, "holes_after_s must be 0 to 3600000000, not nan"),
        ({"holes_after_s": 1e300}, "holes_after_s must be 0 to"),
        ({"plain_rest_s": math.nan}, "plain_rest_s must be 0 to"),
        ({"trash_retention_hours": 0}, "trash_retention_hours"),
        ({"interval_s": 0.0}, "interval_s"),
        ({"zookeeper_root": "databus"}, "zookeeper_root"),
    ],
)
def test_settings_that_cannot_be(change: dict[str, Any], message: str) -> None:
    assert LOCAL.validate() is LOCAL
    with pytest.raises(ConfigError, match=message):
        replace(LOCAL, **change).validate()
