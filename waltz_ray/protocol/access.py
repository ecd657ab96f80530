"""Who may do what with the partitions of which space, and what each message of the client protocol needs. Pure.

``SpaceRules`` is one value, which an operator replaces as a whole; whoever asks gives the one that holds now. None of
it counts in a cluster that has none: then everybody may do everything that clients can.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import field, replace

from waltz_ray.protocol.messages import client as batches
from waltz_ray.protocol.messages import original
from waltz_ray.protocol.records import AppendBatch
from waltz_ray.protocol.value import value

__all__ = [
    "ANY",
    "NOBODY",
    "NOTHING",
    "SEES_CLUSTER",
    "SpaceRules",
    "Comer",
    "SpaceRight",
    "digest_of",
    "has_right",
    "is_of_clients",
    "having_shown",
    "needed",
    "why_refused",
    "why_unknown",
]

ANY = "*"
"""In place of a space: all of them. In place of a client: whoever comes, also without a name."""

_TOKEN_LABEL = b"waltz client token 1"


class SpaceRight(enum.Enum):
    """What a client may do in a space. None includes another."""

    READ = "read"
    """Records, times, and the feed of everybody's."""
    APPEND = "append"
    """Propose transactions, and learn their fates."""
    ADMIN = "admin"
    """Say which server its partitions are preferred on."""
    MONITOR = "monitor"
    """See the state of the cluster at the manager's HTTP port; it is of the whole cluster, and so given for ANY."""


@value()
class SpaceRules:
    """``tokens``: digest (``digest_of``) -> client. ``rights``: (client, space) -> what it may there; both may be ANY.
    ``tls_only``: who comes without TLS may nothing."""

    clients: frozenset[str] = frozenset()
    tokens: Mapping[str, str] = field(default_factory=dict)
    rights: Mapping[tuple[str, str], frozenset[SpaceRight]] = field(default_factory=dict)
    tls_only: bool = False


@value()
class Comer:
    """Who is at the other end of a connection. ``name``: of its certificate, or whose token it has shown; "" = none.
    ``member``: it belongs to the cluster, and may everything. ``token``: the digest of the one it has shown, "" = none;
    it is remembered, for a token counts only as long as it is in the rules."""

    name: str = ""
    tls: bool = False
    member: bool = False
    token: str = ""


NOBODY = Comer()
NOTHING: frozenset[SpaceRight] = frozenset()
"""What a message needs that changes nothing and tells nothing: no right."""

SEES_CLUSTER = frozenset((SpaceRight.ADMIN, SpaceRight.MONITOR))
"""One of these, in all spaces at once, is needed for what the manager's HTTP port tells beyond yes and no."""

_READ, _APPEND, _ADMIN = frozenset((SpaceRight.READ,)), frozenset((SpaceRight.APPEND,)), frozenset((SpaceRight.ADMIN,))
_ANY_RIGHT = _READ | _APPEND | _ADMIN

_NEEDS: Mapping[type, frozenset[SpaceRight]] = {
    batches.ShowToken: NOTHING,
    batches.FeedCredit: NOTHING,
    batches.Unmount: NOTHING,
    batches.ChannelClosed: NOTHING,
    AppendBatch: _APPEND,
    batches.DataRangeRequest: _READ,
    batches.TimesRequest: _READ,
    batches.FirstIdAtRequest: _READ,
    batches.PartitionStateRequest: _ANY_RIGHT,
    batches.HindranceRequest: _ANY_RIGHT,
    original.MountRequest: _READ,
    original.FeedRequest: _READ,
    original.AppendRequest: _APPEND,
    original.FlushRequest: _APPEND,
    original.DataRequest: _READ,
    original.HighWaterMarkRequest: _ANY_RIGHT,
    original.CheckConnectivityRequest: _ANY_RIGHT,
    original.AssignmentRequest: _ANY_RIGHT,
    original.HealthRequest: _ANY_RIGHT,
    original.AddPreferredRequest: _ADMIN,
    original.RemovePreferredRequest: _ADMIN,
}
_FEEDS = {
    batches.FeedMode.NONE: _APPEND,
    batches.FeedMode.OWN: frozenset((SpaceRight.READ, SpaceRight.APPEND)),
    batches.FeedMode.HEADERS: _READ,
    batches.FeedMode.RECORDS: _READ,
}


def digest_of(token: str) -> str:
    """What is kept of a token: nothing that it could be found by, as it is 32 random bytes."""
    return hashlib.sha256(_TOKEN_LABEL + token.encode("utf-8", "surrogatepass")).hexdigest()


def having_shown(comer: Comer, token: str, rules: SpaceRules | None) -> Comer:
    """Who ``comer`` is once he has shown ``token``: whose it is by ``rules``; nobody if it is nobody's."""
    digest = digest_of(token)
    name = None if rules is None else rules.tokens.get(digest)
    return replace(comer, name=name or comer.name, member=False, token=digest)


def needed(message: object) -> frozenset[SpaceRight] | None:
    """One of these rights is needed for ``message``, NOTHING = none is; None: no client may ever send it."""
    if message.__class__ is batches.Mount:
        assert isinstance(message, batches.Mount)
        return _FEEDS[message.feed]
    if message.__class__ is batches.PartitionStateRequest:
        assert isinstance(message, batches.PartitionStateRequest)
        if message.partition_id < 0:  # of none: a sign of life, which the manager asks for
            return NOTHING
    return _NEEDS.get(message.__class__)


def is_of_clients(kind: type) -> bool:
    """Whether there is a client that may send messages of that class."""
    return kind in _NEEDS or kind in (batches.Mount, batches.InChannel)


def why_unknown(rules: SpaceRules, comer: Comer) -> tuple[str, str] | None:
    """(reason in a word, in a line) why ``comer`` may nothing here, whatever it asks for; None: it depends."""
    if comer.member:
        return None
    if rules.tls_only and not comer.tls:
        return "no_tls", "this port is for TLS only: connect with the authority of its certificate (tls_authority)"
    if comer.token and rules.tokens.get(comer.token) != comer.name:  # it never was one, or is none any more
        return "wrong_token", "the token is nobody's here: ask the operator for another one"
    if comer.name and comer.name not in rules.clients:
        return "unknown_client", f"client {comer.name!r:.80} is not known here: ask the operator to add it"
    return None


def has_right(rules: SpaceRules, comer: Comer, space: str, rights: Iterable[SpaceRight]) -> bool:
    """Whether ``comer``, who is known, has one of ``rights`` in ``space``; ANY: in all spaces at once, which takes a
    right that was given so. "" is in any space, whichever."""
    if comer.member:
        return True
    wanted = frozenset(rights)
    if space == "":
        return any(wanted & given for (name, _), given in rules.rights.items() if name in (comer.name, ANY))
    names, spaces = {comer.name, ANY} - {""}, {space, ANY}
    return any(wanted & rules.rights.get((name, where), NOTHING) for name in names for where in spaces)


def why_refused(rules: SpaceRules, comer: Comer, space: str, rights: frozenset[SpaceRight]) -> tuple[str, str] | None:
    """(reason in a word, in a line for people) why what needs one of ``rights`` in ``space`` is refused; None: it is
    not."""
    if unknown := why_unknown(rules, comer):
        return unknown
    if not rights or has_right(rules, comer, space, rights):
        return None
    what = " or ".join(right.value for right in SpaceRight if right in rights)
    where = {"": "any space", ANY: "all spaces"}.get(space, f"space {space!r}")
    if not comer.name:
        return "nobody", f"who comes without a name may not {what} in {where}: show a certificate or a token"
    return "no_right", f"client {comer.name!r:.80} may not {what} in {where}: ask the operator for the right"
