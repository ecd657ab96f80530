"""``SpaceRules`` as the JSON that stands in ZooKeeper, checked (docs/security.md, "Rights of clients").

::

    {"tls_only": true,
     "clients": {"ann": {}, "loader": {"tokens": ["<SHA-256 of a token, as waltz access token prints it>"]}},
     "rights": [{"client": "ann", "space": "orders", "may": ["read", "append"]}]}

``tls_only`` may be missing. ``"*"`` is all spaces, or, in place of a client, whoever comes. ``monitor`` is given for
all spaces, and for none alone.
"""

from __future__ import annotations

import json
import re
from typing import Any

from waltz_ray.errors import InvalidInput
from waltz_ray.protocol.access import ANY, SpaceRight, SpaceRules
from waltz_ray.protocol.json_text import known_fields, list_in, loaded, object_in, text_in
from waltz_ray.protocol.spaces import checked_space_name

__all__ = ["MOST_BYTES", "decode_access_rules", "encode_access_rules"]

MOST_BYTES = 768 * 1024
"""Of the 1 MiB that a ZooKeeper node may have."""

_WHAT = "the rights of clients"
_ENTRIES = 20_000
_TOKENS = 16  # of one client: the one in use, and the next
_DIGEST = re.compile("[0-9a-f]{64}")
_RIGHTS = [each.value for each in SpaceRight]


def encode_access_rules(rules: SpaceRules) -> bytes:
    """The node's bytes. InvalidInput if that could not be read again."""
    tokens: dict[str, list[str]] = {client: [] for client in sorted(rules.clients)}
    for digest, client in sorted(rules.tokens.items()):
        tokens.setdefault(client, []).append(digest)
    document = {
        "tls_only": rules.tls_only,
        "clients": {client: {"tokens": digests} if digests else {} for client, digests in tokens.items()},
        "rights": [
            {"client": client, "space": space, "may": [right.value for right in SpaceRight if right in rights]}
            for (client, space), rights in sorted(rules.rights.items())
        ],
    }
    raw = json.dumps(document, separators=(",", ":")).encode()
    decode_access_rules(raw)
    return raw


def decode_access_rules(data: bytes) -> SpaceRules:
    """InvalidInput names the field and the entry that cannot be."""
    document = object_in(loaded(data, _WHAT, MOST_BYTES), _WHAT)
    known_fields(document, _WHAT, ("tls_only", "clients", "rights"))
    tls_only = document.get("tls_only", False)
    if not isinstance(tls_only, bool):
        raise InvalidInput(f"{_WHAT}: tls_only is true or false, not {str(tls_only)[:40]!r}")
    clients = object_in(document.get("clients", {}), f"{_WHAT}: clients")
    tokens: dict[str, str] = {}
    for name, entry in clients.items():
        text_in(name, f"{_WHAT}: the name of a client", 64)
        where = f"{_WHAT}: client {name:.40}"
        if name == ANY:
            raise InvalidInput(f"{where}: that is whoever comes, who has no token; it needs no entry in clients")
        fields = object_in(entry, where)
        known_fields(fields, where, ("tokens",))
        for digest in list_in(fields.get("tokens", []), f"{where}: tokens", _TOKENS):
            if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
                raise InvalidInput(f"{where}: tokens holds the digests of tokens; make one: waltz access token {name}")
            if tokens.setdefault(digest, name) != name:
                raise InvalidInput(f"{where}: it has a token of client {tokens[digest]:.40}; make another one")
    return SpaceRules(frozenset(clients), tokens, _rights(document, frozenset(clients)), tls_only)


def _rights(document: dict[str, Any], clients: frozenset[str]) -> dict[tuple[str, str], frozenset[SpaceRight]]:
    found: dict[tuple[str, str], frozenset[SpaceRight]] = {}
    for number, entry in enumerate(list_in(document.get("rights", []), f"{_WHAT}: rights", _ENTRIES), 1):
        where = f"{_WHAT}: rights, entry {number}"
        fields = object_in(entry, where)
        known_fields(fields, where, ("client", "space", "may"))
        client, space = fields.get("client"), fields.get("space")
        if not isinstance(client, str) or (client != ANY and client not in clients):
            raise InvalidInput(
                f"{where}: there is no client {str(client)[:40]!r}: add it to clients, or take the entry out"
            )
        if space != ANY:
            space = checked_space_name(space)
        may: set[SpaceRight] = set(found.get((client, space), ()))
        for right in list_in(fields.get("may"), f"{where}: may", len(_RIGHTS)):
            if right not in _RIGHTS:
                raise InvalidInput(f"{where}: a client may {', '.join(_RIGHTS)}, not {str(right)[:40]!r}")
            may.add(SpaceRight(right))
        if SpaceRight.MONITOR in may and space != ANY:
            raise InvalidInput(f'{where}: monitor is of the whole cluster, so its space is "*", not {space:.40}')
        found[client, space] = frozenset(may)
    return found
