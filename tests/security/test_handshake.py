"""The proof between a replica and who opens a connection to it: its bytes, and what each forgery comes to."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.security.keys import SECRET
from waltz_ray.errors import WireError
from waltz_ray.protocol.authentication import (
    NEVER,
    NONCE_BYTES,
    Accepted,
    AcceptingHandshake,
    AuthenticationMessage,
    Challenge,
    Credential,
    DenialCode,
    Denied,
    Introduction,
    OpeningHandshake,
    Proof,
    Role,
    Secret,
    may_ask,
)
from waltz_ray.protocol.messages.replica import REPLICA_TYPES, ReplicaRequest
from waltz_ray.wire.authentication import HandshakeInBytes, decode_authentication, encode_authentication

OTHER = Secret(b"\xaa" * 32)
ONE, TWO = b"\x01" * NONCE_BYTES, b"\x02" * NONCE_BYTES
NOW = 1_700_000_000_000

GOLDEN: dict[str, tuple[AuthenticationMessage, str]] = {
    "introduction": (Introduction(Role.SERVER, NEVER, 7, ONE), "01 01 ffffffffffffffff 00000007" + "01" * 32),
    "ticket": (Introduction(Role.READER, NOW, 0, TWO), "01 02 0000018bcfe56800 00000000" + "02" * 32),
    "challenge": (Challenge(TWO), "02" + "02" * 32),
    "proof": (Proof(ONE), "03" + "01" * 32),
    "accepted": (Accepted(TWO), "04" + "02" * 32),
    "wrong proof": (Denied(DenialCode.WRONG_PROOF), "05 01"),
    "expired": (Denied(DenialCode.EXPIRED), "05 02"),
    "other replica": (Denied(DenialCode.OTHER_REPLICA), "05 03"),
    "no TLS": (Denied(DenialCode.NO_TLS), "05 04"),
}


def opener(
    credential: Credential | None = None, replica_id: int = 7, nonce: bytes = ONE, channel: bytes = b""
) -> OpeningHandshake:
    return OpeningHandshake(credential or SECRET.credential(Role.SERVER), replica_id, nonce, channel)


def replica(
    secret: Secret = SECRET, replica_id: int = 7, nonce: bytes = TWO, channel: bytes = b"", now_ms: int = NOW
) -> AcceptingHandshake:
    return AcceptingHandshake(secret.credential, replica_id, nonce, channel, now_ms)


def said(one: OpeningHandshake, other: AcceptingHandshake) -> list[AuthenticationMessage]:
    """All that is said until one of them has nothing to say."""
    words: list[AuthenticationMessage] = [one.begin()]
    while True:
        side = other if len(words) % 2 else one
        answer = side.step(words[-1])
        if answer is None:
            return words
        words.append(answer)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_bytes(name: str) -> None:
    message, golden = GOLDEN[name]
    assert encode_authentication(message) == bytes.fromhex(golden)
    assert decode_authentication(bytes.fromhex(golden)) == message


def test_golden_macs() -> None:
    """Computed from docs/wire.md, "Authentication", by other code than ours."""
    words = said(opener(), replica())
    assert words[2:] == [
        Proof(bytes.fromhex("2c31b460a0edbba29d33361d9ca604e669f75f2cb8a42a51445fa1358ae65a26")),
        Accepted(bytes.fromhex("91d5ef653a17ecae26a77662b79360f22bcc59de072f04e4cd0f83a07a81e874")),
    ]


@pytest.mark.parametrize(("role", "expires_ms"), [(Role.SERVER, NEVER), (Role.READER, NOW + 1)])
def test_who_knows_the_secret_is_believed_and_believes(role: Role, expires_ms: int) -> None:
    one, other = opener(SECRET.credential(role, expires_ms)), replica()
    assert [type(word) for word in said(one, other)] == [Introduction, Challenge, Proof, Accepted]
    assert (one.done, one.failure, other.done, other.failure, other.role) == (True, "", True, "", role)


def test_who_has_another_secret_is_denied_and_learns_no_mac() -> None:
    one, other = opener(OTHER.credential(Role.SERVER)), replica()
    words = said(one, other)
    assert words[-1] == Denied(DenialCode.WRONG_PROOF)
    assert not one.done
    assert not other.done
    assert "compare their secret files" in one.failure
    assert "compare their secret files" in other.failure
    assert not any(isinstance(word, Accepted) for word in words)


def test_a_replica_without_the_secret_is_not_believed() -> None:
    one = opener()
    proof = one.step(Challenge(TWO))
    assert isinstance(proof, Proof)
    for mac in (b"\x00" * 32, proof.mac, SECRET.credential(Role.READER).mac(b"waltz replica 1", b"")):
        impostor = opener()
        impostor.step(Challenge(TWO))
        assert impostor.step(Accepted(mac)) is None
        assert not impostor.done, "the second one is the opener's own MAC, sent back"
        assert "none of its replicas" in impostor.failure


def test_an_openers_mac_reflected_to_a_replica_proves_nothing() -> None:
    """Somebody without the key has a server open to it, and passes on what that says, with the roles turned round."""
    accepted = said(opener(), replica())[-1]
    assert isinstance(accepted, Accepted)
    other = replica()
    other.step(opener().begin())
    assert other.step(Proof(accepted.mac)) == Denied(DenialCode.WRONG_PROOF)


def test_a_replayed_conversation_proves_nothing() -> None:
    introduction, _, proof, _ = said(opener(), replica())
    other = replica(nonce=b"\x03" * 32)
    other.step(introduction)
    assert other.step(proof) == Denied(DenialCode.WRONG_PROOF)
    one = opener(nonce=b"\x04" * 32)
    one.step(Challenge(TWO))
    one.step(said(opener(), replica())[-1])
    assert not one.done


@pytest.mark.parametrize(
    "change",
    [
        Introduction(Role.READER, NEVER, 7, ONE),
        Introduction(Role.SERVER, NOW + 5, 7, ONE),
        Introduction(Role.SERVER, NEVER, 7, b"\x09" * 32),
    ],
    ids=["role", "end", "nonce"],
)
def test_what_was_said_cannot_be_changed_on_the_way(change: Introduction) -> None:
    """Not even downwards."""
    one, other = opener(), replica()
    challenge = other.step(change)
    assert isinstance(challenge, Challenge)
    proof = one.step(challenge)
    assert isinstance(proof, Proof)
    assert other.step(proof) == Denied(DenialCode.WRONG_PROOF)


def test_a_readers_ticket_is_not_a_servers() -> None:
    ticket = SECRET.credential(Role.READER, NOW + 5)
    forged = Credential(Role.SERVER, NOW + 5, ticket._key)
    longer = Credential(Role.READER, NOW + 6, ticket._key)
    for credential in (forged, longer):
        assert said(opener(credential), replica())[-1] == Denied(DenialCode.WRONG_PROOF)


def test_a_ticket_ends() -> None:
    ticket = SECRET.credential(Role.READER, NOW)
    assert said(opener(ticket), replica(now_ms=NOW))[-1] == Denied(DenialCode.EXPIRED)
    assert isinstance(said(opener(ticket), replica(now_ms=NOW - 1))[-1], Accepted)


def test_another_replica_than_was_meant_is_noticed() -> None:
    """Two places that lead to one disk would count as two copies."""
    one = opener(replica_id=1)
    assert said(one, replica(replica_id=2))[-1] == Denied(DenialCode.OTHER_REPLICA)
    assert "another replica" in one.failure


def test_both_have_to_see_the_same_channel() -> None:
    assert isinstance(said(opener(channel=b"a"), replica(channel=b"a"))[-1], Accepted)
    assert said(opener(channel=b"a"), replica(channel=b"b"))[-1] == Denied(DenialCode.WRONG_PROOF)


# ---- any order, any bytes --------------------------------------------------------------------------------------


def _words() -> Iterator[AuthenticationMessage]:
    good = said(opener(), replica())
    yield from good
    yield Proof(b"\x00" * 32)
    yield Accepted(b"\x00" * 32)
    yield from map(Denied, DenialCode)
    yield Introduction(Role.READER, 0, 7, ONE)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_no_order_of_words_but_one_is_believed(length: int) -> None:
    words = list(_words())
    introduction, _, proof, _ = words[:4]
    for heard in product(words, repeat=length):
        other = replica()
        for word in heard:
            if other.failure or other.done:
                break
            other.step(word)
        assert other.done == (heard[:2] == (introduction, proof)), heard


def test_an_opener_believes_nobody_in_another_order() -> None:
    words = list(_words())
    _, challenge, _, accepted = words[:4]
    for heard in product(words, repeat=2):
        one = opener()
        for word in heard:
            if one.failure or one.done:
                break
            one.step(word)
        assert one.done == (heard == (challenge, accepted)), heard
        assert bool(one.failure) == (not one.done), heard


def test_after_the_end_nothing_is_taken() -> None:
    other = replica()
    words = said(opener(), other)
    assert other.step(words[2]) is None
    assert "no place" in other.failure
    denied = replica()
    denied.step(words[0])
    denied.step(Proof(b"\x00" * 32))
    assert denied.step(words[2]) is None
    assert not denied.done


@given(st.binary(max_size=100))
def test_any_bytes_are_a_message_or_an_error(payload: bytes) -> None:
    for side in (HandshakeInBytes(opener()), HandshakeInBytes(replica())):
        with contextlib.suppress(WireError):
            side.take(payload)
        assert not side.done


@pytest.mark.parametrize("name", GOLDEN)
def test_truncated_and_longer_ones_are_errors(name: str) -> None:
    payload = encode_authentication(GOLDEN[name][0])
    for wrong in (*(payload[:size] for size in range(len(payload))), payload + b"\x00"):
        with pytest.raises(WireError):
            decode_authentication(wrong)


@pytest.mark.parametrize("payload", ["00", "06", "01 00" + "00" * 44, "01 03" + "00" * 44, "05 00", "05 05"])
def test_unknown_types_roles_and_codes_are_errors(payload: str) -> None:
    with pytest.raises(WireError, match="unknown"):
        decode_authentication(bytes.fromhex(payload))


# ---- rights ------------------------------------------------------------------------------------------------------


def test_a_reader_may_ask_what_changes_nothing() -> None:
    requests: set[type[ReplicaRequest]] = set(ReplicaRequest.__args__)
    assert requests <= set(REPLICA_TYPES)
    allowed = {request.__name__ for request in requests if may_ask(Role.READER, request)}
    assert allowed == {"State", "Read", "ReadTimes", "FindTime", "FindExcess"}
    assert all(may_ask(Role.SERVER, request) for request in requests)


# ---- secrets stay where they are -----------------------------------------------------------------------------------


def test_secrets_are_not_shown_and_not_pickled() -> None:
    server, endless = SECRET.credential(Role.SERVER, NOW), SECRET.credential(Role.READER)
    for one in (SECRET, server, endless):
        with pytest.raises(TypeError, match="leave"):
            pickle.dumps(one)
    for one in (SECRET, server, endless, SECRET.credential(Role.READER, NOW)):
        assert bytes(range(32)).hex() not in repr(one)
        assert repr(getattr(one, "_key", b"no")) not in repr(one)


def test_a_ticket_may_travel() -> None:
    ticket = pickle.loads(pickle.dumps(SECRET.credential(Role.READER, NOW + 5)))
    assert isinstance(said(opener(ticket), replica())[-1], Accepted)
