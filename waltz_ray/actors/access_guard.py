"""The rights of clients at the door of a server: what holds now, and of each connection who comes, and what it may.

A connection is asked for its right once for each kind of message and partition; what was granted is remembered until
the rights change. Where a cluster has no rights, connections have no ``ConnectionAccess`` at all.

A document that makes no sense changes nothing, and the log says so. If there never was one that did, nobody may do
anything: it is not for us to guess what it was to forbid.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np

from waltz_ray.coordination.api import Watch
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.errors import InvalidInput, SecretUnusable
from waltz_ray.net.tls import certificate_name
from waltz_ray.protocol.access import (
    ANY,
    Comer,
    SpaceRight,
    SpaceRules,
    having_shown,
    needed,
    why_refused,
)
from waltz_ray.protocol.authentication import Secret
from waltz_ray.protocol.messages.client import ChannelClosed, Mount, NotAllowed, Rejected, RejectionCode, ShowToken
from waltz_ray.protocol.messages.original import (
    AddPreferredRequest,
    AssignmentRequest,
    CheckConnectivityRequest,
    DataRequest,
    DataResponse,
    HealthRequest,
    RemovePreferredRequest,
)
from waltz_ray.protocol.records import AppendBatch
from waltz_ray.protocol.spaces import Space, SpaceTable
from waltz_ray.runtime.seldom import Seldom
from waltz_ray.security.member_token import is_member_token
from waltz_ray.wire.access_document import decode_access_rules
from waltz_ray.wire.codec import ClientMessage

__all__ = ["MOST_REFUSALS", "PLAIN_TOKEN", "AccessGuard", "ConnectionAccess", "comer_at", "refusal"]

log = logging.getLogger(__name__)

MOST_REFUSALS = 256
"""Of one connection: then it is closed (docs/wire.md, "Rules")."""

_LOG_EVERY_S = 10.0
_IN_NONE = "(none)"
_NAME_PARTITIONS = (AddPreferredRequest, RemovePreferredRequest)

InLoop = Callable[[Callable[..., None]], Callable[..., None]]
"""The same call, to be made from another thread."""
PLAIN_TOKEN = "a token is taken over TLS only: connect so, and get another one, for this one could be read on its way"
_first = attrgetter("first")
_NO_NUMBERS = np.zeros(0, dtype=np.int32)


def comer_at(transport: asyncio.BaseTransport | None) -> Comer:
    """Who is at the other end, as far as TLS tells."""
    about = transport.get_extra_info if transport is not None else lambda name: None
    tls = about("ssl_object") is not None
    return Comer(certificate_name(about("peercert")) if tls else "", tls)


class AccessGuard:
    """Of one server. What is not said to block runs in its loop."""

    def __init__(self, name: str, store: ClusterStore, secret: Callable[[], Secret] | None = None) -> None:
        """``name``: the server's, for the log. ``secret``: the cluster's, which its own actors prove to know."""
        self.refused: Counter[str] = Counter()
        """How often, by reason."""
        self.rules: SpaceRules | None = None
        """None: there are none, and everybody may everything."""
        self._name, self._store, self._secret = name, store, secret
        self._spaces: list[Space] = []  # those that were not deleted, in the order of their partitions
        self._partitions = 0
        self._told: dict[str, Seldom] = {}

    # ---- these block: they are for a thread

    def read(self) -> None:
        """What holds now; before anybody may come."""
        data, version = self._store.access.document()
        self.take_spaces(self._store.spaces.table())
        self.take_rules(None if version < 0 else data)

    def watch(self, in_loop: InLoop, changed: Callable[[], None]) -> list[Watch]:
        """Follow what is changed; ``changed`` is called in the loop then."""

        def rules(data: bytes | None) -> None:
            before = self.rules
            self.take_rules(data)
            if self.rules != before:
                changed()

        return [self._store.access.watch(in_loop(rules)), self._store.spaces.watch(in_loop(self.take_spaces))]

    # ----

    def take_rules(self, data: bytes | None) -> None:
        """The node holds ``data``; None: there is none."""
        if data is None:
            self.rules = None
            return
        try:
            self.rules = decode_access_rules(data)
        except InvalidInput as error:
            log.error("%s: what ZooKeeper has of rights changes nothing: %s", self._name, error)
            if self.rules is None:
                self.rules = SpaceRules()

    def take_spaces(self, table: SpaceTable) -> None:
        self._spaces, self._partitions = table.present(), table.partitions

    def having_shown(self, comer: Comer, token: str) -> Comer:
        """Who ``comer`` is from now on."""
        if self._is_member(token):
            return replace(comer, member=True, token="")
        return having_shown(comer, token, self.rules)

    def _is_member(self, token: str) -> bool:
        """Whether an actor of this cluster has made it."""
        try:
            return self._secret is not None and is_member_token(self._secret(), token)
        except SecretUnusable as error:
            log.error("%s: nobody can be believed to be of this cluster: %s", self._name, error)
            return False

    def space_of(self, partition_id: int) -> str:
        """The name of its space; one that no space can have if it is in none."""
        number = bisect_right(self._spaces, partition_id, key=_first) - 1
        inside = number >= 0 and partition_id in self._spaces[number].partitions
        return self._spaces[number].name if inside else _IN_NONE

    def spaces_of(self, partitions: Sequence[int]) -> tuple[str, ...]:
        """The names of all their spaces, as ``space_of`` has them; () if there are no ``partitions``. Who asks may be a
        stranger and name millions: more than the cluster has are in none, and nobody looks at them."""
        if len(partitions) > self._partitions:
            return (_IN_NONE,)
        return tuple(sorted({self.space_of(partition_id) for partition_id in set(partitions)}))

    def count(self, reason: str, peer: str, why: str) -> None:
        """Something was refused: counted, and told seldom."""
        self.refused[reason] += 1
        times = self._told.setdefault(reason, Seldom(_LOG_EVERY_S)).due()
        if times:
            log.warning("%s: refused %s: %s%s", self._name, peer, why, f" ({times} times)" if times > 1 else "")


class ConnectionAccess:
    """Of one connection, while there are rights."""

    def __init__(self, guard: AccessGuard, comer: Comer, peer: str) -> None:
        self.comer = comer
        self.refusals = 0
        self._guard, self._peer = guard, peer
        self._granted: dict[tuple[Any, ...], tuple[frozenset[SpaceRight], tuple[str, ...]]] = {}

    def show(self, token: str) -> None:
        """It says who it is, over TLS, in place of what was known."""
        self._granted.clear()
        self.comer = self._guard.having_shown(self.comer, token)

    def why_not(self, message: ClientMessage) -> str | None:
        """Why it is refused, which is counted; None: it is not. Of what no client may send nothing is said here."""
        rights, rules = needed(message), self._guard.rules
        if isinstance(message, ShowToken) and not self.comer.tls:
            return self._refused(message, "plain_token", PLAIN_TOKEN)
        if not rights or rules is None:
            return None
        key = _key(message)
        if key in self._granted and not isinstance(message, _NAME_PARTITIONS):
            return None
        spaces = self._spaces(message)
        for space in spaces:
            if found := why_refused(rules, self.comer, space, rights):
                return self._refused(message, *found)
        if _IN_NONE not in spaces and not isinstance(message, _NAME_PARTITIONS):  # a peer could name any number
            self._granted[key] = rights, spaces
        return None

    def _refused(self, message: ClientMessage, reason: str, why: str) -> str:
        self.refusals += 1
        self._guard.count(reason, self._peer, f"{type(message).__name__}: {why}")
        return why

    def _spaces(self, message: ClientMessage) -> tuple[str, ...]:
        if isinstance(message, AddPreferredRequest | RemovePreferredRequest):
            return self._guard.spaces_of(message.partitions) or (ANY,)
        partition_id = _partition_of(message)
        return ("",) if partition_id is None else (self._guard.space_of(partition_id),)

    def lost(self) -> str | None:
        """Why what was granted before is not any more, now that the rights have changed."""
        rules = self._guard.rules
        for rights, spaces in self._granted.values() if rules is not None else ():
            for space in spaces:
                assert rules is not None
                if found := why_refused(rules, self.comer, space, rights):
                    self._guard.count(found[0], self._peer, found[1])
                    return found[1]
        return None


_OF_NO_PARTITION = (CheckConnectivityRequest, AssignmentRequest, HealthRequest, ShowToken, ChannelClosed)


def _partition_of(message: Any) -> int | None:
    """None: it is about none."""
    if message.__class__ in _OF_NO_PARTITION:
        return None
    partition_id = getattr(message, "partition_id", None)
    return int(message.req_id.partition_id if partition_id is None else partition_id)


def _key(message: Any) -> tuple[Any, ...]:
    """What is the same for all messages that need the same right."""
    feed = message.feed if isinstance(message, Mount) else None
    return message.__class__, _partition_of(message), feed


def refusal(message: ClientMessage, why: str, batches: bool) -> ClientMessage | None:
    """What ``message`` is answered that is not allowed; None: in that version there is no such answer, so the
    connection ends. ``batches``: it is of version 5 or later."""
    if isinstance(message, DataRequest):
        return DataResponse(message.req_id, message.transaction_id, None, 0, why)
    if not batches:
        return None
    if isinstance(message, Mount):
        return Rejected(message.req_id.partition_id, -1, RejectionCode.NOT_ALLOWED, _NO_NUMBERS, why)
    if isinstance(message, AppendBatch):
        return Rejected(message.partition_id, -1, RejectionCode.NOT_ALLOWED, message.sequence_numbers, why)
    partition_id = _partition_of(message)
    return NotAllowed(getattr(message, "request_id", -1), -1 if partition_id is None else partition_id, why)
