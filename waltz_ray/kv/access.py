"""Which right each command of a kv port needs in its space. Pure. The rights themselves: ``protocol/access.py``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from waltz_ray.kv.messages import Opcode
from waltz_ray.protocol.access import NOTHING, Comer, SpaceRight, SpaceRules, why_refused, why_unknown

__all__ = ["KV_NEEDS", "OF_MEMBERS", "why_command_refused"]

_READ, _APPEND = frozenset((SpaceRight.READ,)), frozenset((SpaceRight.APPEND,))

OF_MEMBERS: Final = frozenset((int(Opcode.SHUTTINGDOWN), int(Opcode.NEWSERVER), int(Opcode.APPLIED)))
"""What only actors say to each other."""

KV_NEEDS: Final[Mapping[int, frozenset[SpaceRight]]] = {
    Opcode.HELLO: _READ | _APPEND,
    Opcode.CAPABILITIES: NOTHING,
    Opcode.GOODBYE: NOTHING,
    Opcode.PING: NOTHING,
    Opcode.SERVERLIST: NOTHING,
    Opcode.HASHMASKS: NOTHING,
    Opcode.HASHMASK: NOTHING,
    Opcode.SHOW_TOKEN: NOTHING,
    Opcode.SPACE: NOTHING,
    Opcode.LOCK: _APPEND,
    Opcode.UNLOCK: _APPEND,
    Opcode.SET_INT: _APPEND,
    Opcode.SET_LONG: _APPEND,
    Opcode.SET_STRING: _APPEND,
    Opcode.GET_INT: _READ,
    Opcode.GET_LONG: _READ,
    Opcode.GET_STRING: _READ,
    Opcode.GET_TYPE: _READ,
    Opcode.PUT: _APPEND,
    Opcode.GET_MANY: _READ,
    Opcode.SCAN: _READ,
    Opcode.LOCK_NATIVE: _APPEND,
    Opcode.UNLOCK_NATIVE: _APPEND,
    Opcode.RENEW: _APPEND,
}
"""Opcode -> one of these rights is needed. NOTHING: what is only acked, and changes and tells nothing."""


def why_command_refused(rules: SpaceRules, comer: Comer, space: str, opcode: int) -> tuple[str, str] | None:
    """(reason in a word, in a line for people) why ``comer`` may not send the command; None: it may."""
    if opcode in OF_MEMBERS:
        if comer.member:
            return None
        return why_unknown(rules, comer) or ("not_member", "actors of the cluster say this to each other, and no other")
    rights = KV_NEEDS[opcode]
    return why_refused(rules, comer, space, rights) if rights else None
