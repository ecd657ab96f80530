"""How a replica and who opens a connection to it prove to each other that they know the cluster's secret.

Pure: nonces, the time and what is known of the channel are given. Four messages, behind the HELLOs and before others:

    opener                                   replica
      Introduction(role, expires, replica, nonce) ->
                                          <- Challenge(nonce)
      Proof(mac)                             ->
                                          <- Accepted(mac)   or   Denied(code), and the end

A MAC is HMAC-SHA256 over everything that was said, and which side says it: so none can be sent back to its author, and
none is of use in another connection. Its key is derived from the secret, the role and the time it ends. Who has only
that key (a *ticket*) can prove that role until then, and learns nothing of the secret. A replica proves nothing to
anybody who has not proved to know the key first.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from waltz_ray.protocol.messages.replica import FindExcess, FindTime, Read, ReadTimes, ReplicaRequest, State
from waltz_ray.protocol.value import value

__all__ = [
    "NEVER",
    "NONCE_BYTES",
    "SECRET_BYTES",
    "Accepted",
    "AcceptingHandshake",
    "AuthenticationMessage",
    "Challenge",
    "Credential",
    "Denied",
    "DenialCode",
    "Introduction",
    "OpeningHandshake",
    "Proof",
    "Role",
    "Secret",
    "is_proof",
    "may_ask",
    "ticket_is_valid",
]

SECRET_BYTES = NONCE_BYTES = PROOF_BYTES = 32
NEVER = -1
"""Of a credential that does not end: one that was made of the secret for use on the spot."""

_KEY_LABEL, _OPENER_LABEL, _REPLICA_LABEL = b"waltz replica key 1", b"waltz opener 1", b"waltz replica 1"
_MEMBER_LABEL = b"waltz member token 1"
_SAID = struct.Struct(">Bqi")
_READS: tuple[type[ReplicaRequest], ...] = (State, Read, ReadTimes, FindTime, FindExcess)


class Role(IntEnum):
    """What somebody may do at a replica, once that is proved."""

    SERVER = 1  # everything
    READER = 2  # what changes nothing


class DenialCode(IntEnum):
    """Why a replica does not go on."""

    WRONG_PROOF = 1
    EXPIRED = 2  # the ticket has ended, by the replica's clock
    OTHER_REPLICA = 3  # another one than was meant listens here
    NO_TLS = 4  # it takes TLS only


_DENIALS = {
    DenialCode.WRONG_PROOF: "the proof is wrong, so the two sides have different secrets: compare their secret files",
    DenialCode.EXPIRED: "the ticket has ended: plan the read again, which makes a new one",
    DenialCode.OTHER_REPLICA: "another replica listens there than was meant",
    DenialCode.NO_TLS: "it takes TLS only, which is spoken where StorageConfig.tls_authority says whom to trust",
}


@value()
class Introduction:
    """``role`` until ``expires_ms`` (ms since 1970, NEVER), to replica ``replica_id``."""

    role: Role
    expires_ms: int
    replica_id: int
    nonce: bytes


@value()
class Challenge:
    """The replica's nonce."""

    nonce: bytes


@value()
class Proof:
    """The opener's MAC."""

    mac: bytes


@value()
class Accepted:
    """The replica's MAC: the opener is believed, and may believe the replica."""

    mac: bytes


@value()
class Denied:
    """The opener is not believed; the connection ends."""

    code: DenialCode


AuthenticationMessage = Introduction | Challenge | Proof | Accepted | Denied


class Credential:
    """The key of one role until ``expires_ms`` (NEVER: it does not end). It is not shown by ``repr``.

    One that ends, for readers, is a ticket: it may be handed on. Any other never leaves its process.
    """

    __slots__ = ("_key", "expires_ms", "role")

    def __init__(self, role: Role, expires_ms: int, key: bytes) -> None:
        self.role, self.expires_ms, self._key = role, expires_ms, key

    def mac(self, label: bytes, said: bytes) -> bytes:
        """Of ``said``, by the side that ``label`` names."""
        return hmac.digest(self._key, label + said, "sha256")

    def __repr__(self) -> str:
        return f"Credential({self.role.name}, expires_ms={self.expires_ms})"

    def __reduce__(self) -> tuple[Any, ...]:
        if self.role is not Role.READER or self.expires_ms == NEVER:
            raise TypeError("only a ticket (of a reader, and one that ends) may leave its process")
        return Credential, (self.role, self.expires_ms, self._key)


class Secret:
    """The cluster's secret. It is not shown by ``repr``, and never pickled."""

    __slots__ = ("_value",)

    def __init__(self, secret: bytes) -> None:
        """ValueError if it is not of ``SECRET_BYTES``."""
        if len(secret) != SECRET_BYTES:
            raise ValueError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
        self._value = secret

    def credential(self, role: Role, expires_ms: int = NEVER) -> Credential:
        """What proves ``role`` until then."""
        key = hmac.digest(self._value, _KEY_LABEL + struct.pack(">Bq", role, expires_ms), "sha256")
        return Credential(role, expires_ms, key)

    def member_mac(self, until_ms: int) -> bytes:
        """What proves, until then, that somebody knows the secret: to servers, of their clients."""
        return hmac.digest(self._value, _MEMBER_LABEL + struct.pack(">q", until_ms), "sha256")

    def __repr__(self) -> str:
        return "Secret(...)"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("the cluster's secret never leaves its process")


# ---- rules -------------------------------------------------------------------------------------------------------


def is_proof(expected: bytes, given: bytes) -> bool:
    """Whether a MAC is right. How long this takes says nothing about where it is wrong."""
    return hmac.compare_digest(expected, given)


def ticket_is_valid(expires_ms: int, now_ms: int) -> bool:
    """Whether what ends then is still good."""
    return expires_ms == NEVER or now_ms < expires_ms


def may_ask(role: Role, request: type[ReplicaRequest]) -> bool:
    """Whether who has proved ``role`` may ask a replica this."""
    return role is Role.SERVER or request in _READS


def _said(introduction: Introduction, replica_nonce: bytes, channel: bytes) -> bytes:
    """All that both sides have seen. Every part has a fixed length, but for the last one."""
    fixed = _SAID.pack(introduction.role, introduction.expires_ms, introduction.replica_id)
    return fixed + introduction.nonce + replica_nonce + channel


# ---- machines ----------------------------------------------------------------------------------------------------


class OpeningHandshake:
    """Of who has opened the connection. ``channel``: what both sides know of the encryption below, "" = none."""

    def __init__(self, credential: Credential, replica_id: int, nonce: bytes, channel: bytes = b"") -> None:
        self.done = False
        """The replica has proved to know the key."""
        self.failure = ""
        """Why nothing more may be said."""
        self._credential, self._channel = credential, channel
        self._introduction = Introduction(credential.role, credential.expires_ms, replica_id, nonce)
        self._said: bytes | None = None  # from the challenge on

    def begin(self) -> Introduction:
        """What is said first."""
        return self._introduction

    def step(self, message: AuthenticationMessage) -> Proof | None:
        """What is to be said now. See ``done`` and ``failure`` after each."""
        if isinstance(message, Challenge) and self._said is None:
            self._said = _said(self._introduction, message.nonce, self._channel)
            return Proof(self._credential.mac(_OPENER_LABEL, self._said))
        if isinstance(message, Denied):
            self.failure = f"it denies access: {_DENIALS[message.code]}"
        elif not isinstance(message, Accepted) or self._said is None:
            self.failure = f"{type(message).__name__} came where it has no place"
        elif not is_proof(self._credential.mac(_REPLICA_LABEL, self._said), message.mac):
            self.failure = "what listens there does not know this cluster's secret: it is none of its replicas"
        else:
            self.done = True
        return None


class AcceptingHandshake:
    """Of replica ``replica_id``. ``now_ms``: its clock when the connection was made."""

    def __init__(
        self,
        credential_of: Callable[[Role, int], Credential],
        replica_id: int,
        nonce: bytes,
        channel: bytes,
        now_ms: int,
        tls_only: bool = False,
    ) -> None:
        """``credential_of``: ``Secret.credential``. ``tls_only``: without a channel nobody is believed."""
        self.done = False
        """The opener has proved its role."""
        self.failure = ""
        self.role, self.expires_ms = Role.READER, NEVER
        """What was proved, once ``done``, and until when it counts."""
        self._credential_of, self._replica_id, self._nonce = credential_of, replica_id, nonce
        self._channel, self._now_ms = channel, now_ms
        self._lacks_tls = tls_only and not channel
        self._introduction: Introduction | None = None

    def begin(self) -> None:
        """The opener speaks first."""

    def step(self, message: AuthenticationMessage) -> Challenge | Accepted | Denied | None:
        """What is to be said now; after a ``failure`` it is the last thing."""
        introduction = self._introduction
        if isinstance(message, Introduction) and introduction is None:
            return self._introduced(message)
        if not isinstance(message, Proof) or introduction is None or self.done or self.failure:
            self.failure = self.failure or f"{type(message).__name__} came where it has no place"
            return None
        credential = self._credential_of(introduction.role, introduction.expires_ms)
        said = _said(introduction, self._nonce, self._channel)
        if not is_proof(credential.mac(_OPENER_LABEL, said), message.mac):
            return self._deny(DenialCode.WRONG_PROOF)
        self.done, self.role, self.expires_ms = True, introduction.role, introduction.expires_ms
        return Accepted(credential.mac(_REPLICA_LABEL, said))

    def _introduced(self, introduction: Introduction) -> Challenge | Denied:
        if self._lacks_tls:
            return self._deny(DenialCode.NO_TLS)
        if introduction.replica_id != self._replica_id:
            return self._deny(DenialCode.OTHER_REPLICA)
        if not ticket_is_valid(introduction.expires_ms, self._now_ms):
            return self._deny(DenialCode.EXPIRED)
        self._introduction = introduction
        return Challenge(self._nonce)

    def _deny(self, code: DenialCode) -> Denied:
        self.failure = f"access denied: {_DENIALS[code]}"
        return Denied(code)
