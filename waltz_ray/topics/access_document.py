"""``AccessRules`` as the JSON that stands in ZooKeeper, checked. Pure.

::

    {"authenticate": true,
     "users": {"alice": "her password"},
     "rights": [{"user": "alice", "topic": "orders", "may": ["produce", "consume"]}],
     "blacklist": {"a_group": ["orders"]},
     "guarded": ["orders"],
     "filters": [{"group": "a_group", "topic": "orders", "choose_from": ["aaa", "bbb"]}]}

Each field may be missing. ``"*"`` is all topics, in ``rights``, ``blacklist`` and ``guarded``.
"""

from __future__ import annotations

import json
import re
from typing import Any

from waltz_ray.errors import InvalidInput
from waltz_ray.protocol.json_text import known_fields, list_in, loaded, object_in, text_in
from waltz_ray.topics.authorization import ANY, AccessRules, Right

__all__ = ["MOST_BYTES", "decode_access", "encode_access"]

MOST_BYTES = 768 * 1024
"""Of the 1 MiB that a ZooKeeper node may have."""

_ENTRIES = 20_000
_FILTERS = 500
_TOPIC = re.compile("[_A-Za-z0-9-]{1,64}")
_RIGHTS = [each.value for each in Right]


def encode_access(rules: AccessRules) -> bytes:
    """The node's bytes. InvalidInput if that could not be read again: too large, or a right of an unknown user."""
    rights: dict[tuple[str, str], list[str]] = {}
    for user, topic, right in sorted(rules.rights, key=lambda each: (each[0], each[1], each[2].value)):
        rights.setdefault((user, topic), []).append(right.value)
    document = {
        "authenticate": rules.authenticate,
        "users": dict(sorted(rules.users.items())),
        "rights": [{"user": user, "topic": topic, "may": may} for (user, topic), may in rights.items()],
        "blacklist": {group: sorted(topics) for group, topics in sorted(rules.blacklist.items())},
        "guarded": sorted(rules.guarded),
        "filters": [
            {"group": group, "topic": topic, "choose_from": sorted(allowed)}
            for (group, topic), allowed in sorted(rules.filters.items())
        ],
    }
    raw = json.dumps(document, separators=(",", ":")).encode()
    decode_access(raw)
    return raw


def decode_access(data: bytes) -> AccessRules:
    """InvalidInput names the field and the entry that cannot be."""
    what = "the access rules"
    document = object_in(loaded(data, what, MOST_BYTES), what)
    known_fields(document, what, ("authenticate", "users", "rights", "blacklist", "guarded", "filters"))
    authenticate = document.get("authenticate", False)
    if not isinstance(authenticate, bool):
        raise InvalidInput(f"{what}: authenticate is true or false, not {str(authenticate)[:40]!r}")
    users = {
        text_in(user, f"{what}: the name of a user", 256): _password(password, f"{what}: the password of {user:.40}")
        for user, password in object_in(document.get("users", {}), f"{what}: users").items()
    }
    return AccessRules(
        authenticate,
        users,
        frozenset(_rights(document, what, users)),
        {
            _group(group, f"{what}: blacklist"): _topics(topics, f"{what}: blacklist of {group:.40}")
            for group, topics in object_in(document.get("blacklist", {}), f"{what}: blacklist").items()
        },
        _topics(document.get("guarded", []), f"{what}: guarded"),
        dict(_filters(document, what)),
    )


def _password(value: Any, where: str) -> str:
    return text_in(value, where, 256, secret=True)  # complaints are in logs and in the status


def _rights(document: dict[str, Any], what: str, users: dict[str, str]) -> list[tuple[str, str, Right]]:
    found: list[tuple[str, str, Right]] = []
    for number, entry in enumerate(list_in(document.get("rights", []), f"{what}: rights", _ENTRIES), 1):
        where = f"{what}: rights, entry {number}"
        fields = object_in(entry, where)
        known_fields(fields, where, ("user", "topic", "may"))
        user, topic = fields.get("user"), _topic(fields.get("topic"), f"{where}: topic")
        if not isinstance(user, str) or user not in users:
            raise InvalidInput(
                f"{where}: there is no user {str(user)[:40]!r}: add them to users, or take the entry out"
            )
        for right in list_in(fields.get("may"), f"{where}: may", 2):
            if right not in _RIGHTS:
                raise InvalidInput(f"{where}: a user may {' and '.join(_RIGHTS)}, not {str(right)[:40]!r}")
            found.append((user, topic, Right(right)))
    return found


def _filters(document: dict[str, Any], what: str) -> list[tuple[tuple[str, str], frozenset[str]]]:
    found: list[tuple[tuple[str, str], frozenset[str]]] = []
    seen: set[tuple[str, str]] = set()
    for number, entry in enumerate(list_in(document.get("filters", []), f"{what}: filters", _ENTRIES), 1):
        where = f"{what}: filters, entry {number}"
        fields = object_in(entry, where)
        known_fields(fields, where, ("group", "topic", "choose_from"))
        pair = _group(fields.get("group"), where), _topic(fields.get("topic"), f"{where}: topic", any_too=False)
        if pair in seen:
            raise InvalidInput(f"{where}: {pair[0]:.40} and {pair[1]} stand twice; put the filters into one entry")
        seen.add(pair)
        allowed = list_in(fields.get("choose_from"), f"{where}: choose_from", _FILTERS)
        found.append((pair, frozenset(text_in(each, f"{where}: a filter", 256) for each in allowed)))
    return found


def _topics(topics: Any, where: str) -> frozenset[str]:
    return frozenset(_topic(each, where) for each in list_in(topics, where, _ENTRIES))


def _topic(name: Any, where: str, any_too: bool = True) -> str:
    if isinstance(name, str) and (_TOPIC.fullmatch(name) or (any_too and name == ANY)):
        return name
    raise InvalidInput(f"{where}: {str(name)[:40]!r} is no topic: 1 to 64 letters, digits, _ and -")


def _group(name: Any, where: str) -> str:
    return text_in(name, f"{where}: the name of a group", 1_024)
