"""The rights of clients: the document, who comes, and what a server does when they change."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest

from tests.actors.bench_server import GENERATION, Door
from tests.actors.test_feed_pace import in_loop, until
from tests.security.keys import SECRET
from tests.security.rights import RULES, TOKEN, Comes, door_of, guarded_server
from waltz_ray.actors.access_guard import MOST_REFUSALS
from waltz_ray.actors.server import Server
from waltz_ray.errors import InvalidInput
from waltz_ray.protocol.access import ANY, NOBODY, Comer, SpaceRight, SpaceRules, digest_of, has_right, why_refused
from waltz_ray.protocol.authentication import Secret
from waltz_ray.protocol.ids import ReqId
from waltz_ray.protocol.messages.client import (
    ErrorMessage,
    FeedMode,
    Mount,
    NotAllowed,
    PartitionStateRequest,
    ShowToken,
)
from waltz_ray.protocol.messages.original import AddPreferredRequest
from waltz_ray.protocol.spaces import Space, SpaceState, SpaceTable
from waltz_ray.security.member_token import MEMBER_TOKEN_MS, is_member_token, member_token
from waltz_ray.wire.access_document import decode_access_rules, encode_access_rules
from waltz_ray.wire.codec import ClientMessage

READ, APPEND = frozenset({SpaceRight.READ}), frozenset({SpaceRight.APPEND})
STATE = PartitionStateRequest(6, 0)
DIGEST = "ab" * 32


def change(server: Server, rules: SpaceRules | None) -> None:
    """As ZooKeeper tells it."""
    assert server.guard is not None
    server.guard.take_rules(None if rules is None else encode_access_rules(rules))
    server._on_rights()


async def answers(door: Door, count: int) -> list[ClientMessage]:
    """The first so many; what is asked is answered in the background, what is refused at once."""
    await until(lambda: len(door.told()) >= count)
    return door.told()


async def kinds(door: Door, count: int) -> list[str]:
    return sorted(type(each).__name__ for each in await answers(door, count))


# ---- the document


def test_a_document_is_read_as_it_was_written() -> None:
    everybody = replace(RULES, tls_only=True, rights={**RULES.rights, (ANY, ANY): READ})
    assert decode_access_rules(encode_access_rules(everybody)) == everybody
    assert decode_access_rules(b"{}") == SpaceRules()


@pytest.mark.parametrize(
    ("document", "error"),
    [
        ([], "must be an object"),
        ({"clients": {}, "right": []}, "has no field 'right'; it has: clients, rights, tls_only"),
        ({"tls_only": 1}, "tls_only is true or false"),
        ({"clients": {"*": {}}}, "that is whoever comes"),
        ({"clients": {"ann": {"token": "x"}}}, "client ann has no field 'token'; it has: tokens"),
        ({"clients": {"ann": {"tokens": ["a secret"]}}}, "make one: waltz access token ann"),
        ({"clients": {"ann": {"tokens": [DIGEST]}, "bob": {"tokens": [DIGEST]}}}, "a token of client ann"),
        ({"rights": [{"client": "ann", "space": "log", "may": ["read"]}]}, "entry 1: there is no client 'ann'"),
        ({"rights": [{"client": "*", "space": "Log!", "may": ["read"]}]}, "cannot name a space"),
        ({"rights": [{"client": "*", "space": "log", "may": ["monitor"]}]}, 'so its space is "*", not log'),
        (
            {"rights": [{"client": "*", "space": "log", "may": ["write"]}]},
            "may read, append, admin, monitor, not 'write'",
        ),
    ],
)
def test_a_document_that_makes_no_sense_is_refused_with_the_place(document: object, error: str) -> None:
    with pytest.raises(InvalidInput, match=error.replace("*", r"\*")):
        decode_access_rules(json.dumps(document).encode())


def test_rights_in_one_entry_or_several_are_the_same() -> None:
    entries = [{"client": "*", "space": "log", "may": [right]} for right in ("read", "append")]
    assert decode_access_rules(json.dumps({"rights": entries}).encode()).rights == {(ANY, "log"): READ | APPEND}


# ---- rules


def test_a_right_is_of_its_space_or_of_all() -> None:
    ann = Comer("ann", tls=True)
    rules = SpaceRules(frozenset({"ann"}), {}, {("ann", "a"): READ, ("ann", "b"): APPEND})
    assert has_right(rules, ann, "a", READ)
    assert not has_right(rules, ann, "b", READ)
    assert not has_right(rules, ann, "c", READ)
    assert has_right(rules, ann, "", READ)
    assert not has_right(rules, ann, ANY, READ)
    everywhere = replace(rules, rights={("ann", ANY): READ})
    assert has_right(everywhere, ann, "c", READ)
    assert has_right(everywhere, ann, ANY, READ)


def test_what_whoever_comes_may_everybody_known_may() -> None:
    rules = SpaceRules(frozenset({"ann"}), {}, {(ANY, "a"): READ})
    assert has_right(rules, NOBODY, "a", READ)
    assert has_right(rules, Comer("ann"), "a", READ)
    assert why_refused(rules, Comer("eve", tls=True), "a", READ) == (
        "unknown_client",
        "client 'eve' is not known here: ask the operator to add it",
    )


@pytest.mark.parametrize(
    ("comer", "reason", "line"),
    [
        (NOBODY, "nobody", "may not append in space 'log': show a certificate or a token"),
        (Comer("reader", tls=True), "no_right", "client 'reader' may not append in space 'log': ask the operator"),
        (Comer("eve", tls=True), "unknown_client", "client 'eve' is not known here"),
        (Comer("loader", tls=True, token=digest_of("guessed")), "wrong_token", "the token is nobody's here"),
    ],
)
def test_every_refusal_says_what_where_and_what_to_do(comer: Comer, reason: str, line: str) -> None:
    found = why_refused(RULES, comer, "log", APPEND)
    assert found is not None
    assert found[0] == reason
    assert line in found[1]


def test_tls_only_refuses_who_comes_without_whatever_it_may() -> None:
    open_to_all = SpaceRules(rights={(ANY, ANY): READ | APPEND}, tls_only=True)
    assert why_refused(open_to_all, Comer(tls=True), "log", APPEND) is None
    found = why_refused(open_to_all, NOBODY, "log", APPEND)
    assert found is not None
    assert found[0] == "no_tls"
    assert why_refused(open_to_all, Comer(member=True), "log", APPEND) is None


# ---- tokens


@in_loop
async def test_a_token_says_who_comes() -> None:
    server = guarded_server()
    door = door_of(server, Comes())
    door.send(STATE, ShowToken(TOKEN), STATE)
    assert await kinds(door, 2) == ["NotAllowed", "PartitionStateResponse"]


@in_loop
async def test_a_token_that_is_nobodys_takes_the_certificate_s_rights_away_until_a_right_one_comes() -> None:
    server = guarded_server()
    door = door_of(server, Comes("reader"))
    door.send(STATE, ShowToken("guessed"), STATE, ShowToken(TOKEN), STATE)
    assert await kinds(door, 3) == ["NotAllowed", "PartitionStateResponse", "PartitionStateResponse"]
    assert server.status().measures is not None
    assert server.status().measures.access_refused == {"wrong_token": 1}  # type: ignore[union-attr]


def test_a_member_s_token_is_of_this_secret_and_for_a_minute() -> None:
    now = 1_700_000_000_000
    token = member_token(SECRET, now)
    assert is_member_token(SECRET, token, now)
    assert is_member_token(SECRET, token, now - MEMBER_TOKEN_MS)
    assert not is_member_token(SECRET, token, now + 3 * MEMBER_TOKEN_MS)
    assert not is_member_token(Secret(bytes(32)), token, now)
    mark, until_ms, mac = token.split(".")
    wrong = ["", TOKEN, f"{mark}.x.{mac}", f"{mark}.\u0661.{mac}"]
    assert not is_member_token(SECRET, f"{mark}.{int(until_ms) + 1}.{mac}", now)
    assert not any(is_member_token(SECRET, each, now) for each in wrong)


@pytest.mark.parametrize("tls", [True, False])
@in_loop
async def test_an_actor_of_the_cluster_may_everything_over_tls(tls: bool) -> None:
    server = guarded_server()
    door = door_of(server, Comes(tls=tls))
    door.send(ShowToken(member_token(SECRET)), STATE)
    expected = ["PartitionStateResponse"] if tls else ["NotAllowed", "NotAllowed"]
    assert await kinds(door, len(expected)) == expected


@in_loop
async def test_what_comes_through_the_cluster_s_ray_may_everything() -> None:
    server = guarded_server(replace(RULES, tls_only=True))
    door = door_of(server, Comes(tls=False, member=True))
    door.send(STATE)
    assert await kinds(door, 1) == ["PartitionStateResponse"]


# ---- a server whose rights change


@in_loop
async def test_a_right_that_is_given_holds_from_the_next_message_on() -> None:
    server = guarded_server()
    door = door_of(server, Comes("eve"))
    door.send(STATE)
    change(server, replace(RULES, clients=RULES.clients | {"eve"}, rights={("eve", "log"): READ}))
    door.send(STATE)
    assert await kinds(door, 2) == ["NotAllowed", "PartitionStateResponse"]


@in_loop
async def test_a_right_that_is_taken_ends_the_connections_that_have_used_it() -> None:
    server = guarded_server()
    used, unused = door_of(server, Comes("reader")), door_of(server, Comes("appender"))
    used.send(Mount(ReqId(7, GENERATION, 0, 1), -1, FeedMode.RECORDS, 1 << 20))
    change(server, SpaceRules(frozenset({"reader", "appender"})))
    [*_, last] = used.told()
    assert isinstance(last, ErrorMessage)
    assert "client 'reader' may not read in space 'log'" in last.message
    assert used.wire.ended == "closed"
    assert not unused.wire.ended


@pytest.mark.parametrize("tokens", [{}, {digest_of(TOKEN): "appender"}], ids=["withdrawn", "given_to_another"])
@in_loop
async def test_a_token_that_is_nobodys_any_more_ends_the_connections_that_have_shown_it(tokens: dict[str, str]) -> None:
    server = guarded_server()
    used, idle = door_of(server, Comes()), door_of(server, Comes())
    for door in (used, idle):
        door.send(ShowToken(TOKEN))
    used.send(STATE)
    assert await kinds(used, 1) == ["PartitionStateResponse"]
    change(server, replace(RULES, tokens=tokens))
    [*_, last] = used.told()
    assert isinstance(last, ErrorMessage)
    assert "the token is nobody's here" in last.message
    assert used.wire.ended == "closed"
    idle.send(STATE)
    assert await kinds(idle, 1) == ["NotAllowed"]


@in_loop
async def test_who_was_there_before_there_were_rights_has_to_come_again() -> None:
    server = guarded_server(rules=None)
    door = door_of(server, Comes("reader"))
    door.send(STATE)
    assert await kinds(door, 1) == ["PartitionStateResponse"]
    change(server, RULES)
    [_, last] = door.told()
    assert isinstance(last, ErrorMessage)
    assert door.wire.ended == "closed"


@in_loop
async def test_rights_that_are_taken_away_as_a_whole_let_everybody_in() -> None:
    server = guarded_server()
    door = door_of(server, Comes(tls=False))
    change(server, None)
    door.send(STATE)
    assert await kinds(door, 1) == ["PartitionStateResponse"]


@in_loop
async def test_a_document_that_makes_no_sense_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    server = guarded_server()
    assert server.guard is not None
    server.guard.take_rules(b"{")
    assert server.guard.rules == RULES
    assert "server 1: what ZooKeeper has of rights changes nothing" in caplog.text
    server.guard.take_rules(None)
    server.guard.take_rules(b"{")
    door = door_of(server, Comes("reader"))
    door.send(STATE)
    assert isinstance(door.told()[-1], NotAllowed), "who cannot tell what is forbidden lets nobody in"


@pytest.mark.usefixtures("whole_turns")
@in_loop
async def test_refusals_are_counted_and_told_seldom(caplog: pytest.LogCaptureFixture) -> None:
    server = guarded_server()
    with caplog.at_level(logging.WARNING):
        door = door_of(server, Comes())
        door.send(*[STATE] * 50)
    lines = [each for each in caplog.messages if "refused" in each]
    assert lines == [
        "server 1: refused 10.0.0.1:4711: PartitionStateRequest: who comes without a name may not read or append or "
        "admin in space 'log': show a certificate or a token"
    ]
    measures = server.status().measures
    assert measures is not None
    assert measures.access_refused == {"nobody": 50}


@pytest.mark.usefixtures("whole_turns")
@in_loop
async def test_who_goes_on_asking_what_is_refused_is_closed() -> None:
    server = guarded_server()
    door = door_of(server, Comes())
    door.send(*[STATE] * MOST_REFUSALS)
    before = door.wire.ended
    door.send(STATE)
    assert (before, door.wire.ended) == ("", "closed")


@pytest.mark.usefixtures("whole_turns")
@in_loop
async def test_what_is_remembered_of_a_connection_is_bounded() -> None:
    server = guarded_server(replace(RULES, rights={("ann", ANY): frozenset(SpaceRight)}, clients=frozenset({"ann"})))
    door = door_of(server, Comes("ann"))
    door.send(*[PartitionStateRequest(number, number) for number in range(500)])
    door.send(*[AddPreferredRequest(ReqId(1, 1, 0, 1), (number,)) for number in range(500)])
    access = door.connection._access
    assert access is not None
    assert len(access._granted) <= server.partitions * 2


class CountingSpaces(SpaceTable):
    """Counts how often somebody asks which spaces there are."""

    asked = 0

    def present(self) -> list[Space]:
        type(self).asked += 1
        return super().present()


@in_loop
async def test_millions_of_partitions_that_a_stranger_names_are_not_looked_at_one_by_one() -> None:
    server = guarded_server()
    assert server.guard is not None
    table = server.store.spaces.table()
    server.guard.take_spaces(CountingSpaces(table.partitions, table.spaces))
    door = door_of(server, Comes(tls=False))
    for partitions in (range(3), range(100_000), [0] * 100_000):
        door.send(AddPreferredRequest(ReqId(1, 1, 0, 1), tuple(partitions)))
    assert [type(each).__name__ for each in door.told()] == ["NotAllowed"] * 3
    assert CountingSpaces.asked <= 3


@in_loop
async def test_the_spaces_of_partitions_are_those_of_each() -> None:
    guard = guarded_server().guard
    assert guard is not None
    made = [Space("a", "log", 0, 2, SpaceState.READY), Space("c", "log", 5, 3, SpaceState.READY)]
    gone = Space("b", "log", 2, 3, SpaceState.GONE)
    guard.take_spaces(SpaceTable(8, {each.name: each for each in (made[1], gone, made[0])}))
    for partition_id in (-1, 0, 1, 2, 4, 5, 7, 8, 2**31 - 1):
        assert guard.spaces_of((partition_id,)) == (guard.space_of(partition_id),)
    assert guard.spaces_of((7, 0, 1)) == ("a", "c")
    assert guard.spaces_of((7, 0, 3)) == ("(none)", "a", "c")
    assert guard.spaces_of(()) == ()
