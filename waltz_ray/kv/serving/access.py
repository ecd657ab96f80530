"""Who is at the other end of a connection to a kv port, and what it may, while there are rights of clients.

A command's right is looked for once; what was granted is remembered until the rights change.
"""

from __future__ import annotations

from collections import Counter

from waltz_ray.actors.access_guard import PLAIN_TOKEN, AccessGuard
from waltz_ray.kv.access import why_command_refused
from waltz_ray.kv.messages import Opcode
from waltz_ray.protocol.access import Comer, why_unknown

__all__ = ["KvAccess"]


class KvAccess:
    """Of one connection. Where a cluster has no rights, connections have none of it."""

    def __init__(self, guard: AccessGuard, comer: Comer, space: str, peer: str, refused: Counter[str]) -> None:
        """``refused``: of the port, by reason; it is counted there, too."""
        self.comer = comer
        self.refusals = 0
        self._guard, self._space, self._peer, self._refused = guard, space, peer, refused
        self._granted: set[int] = set()

    def why_not(self, opcode: int) -> str | None:
        """Why the command is refused, which is counted; None: it is not."""
        if opcode in self._granted:
            return None
        rules = self._guard.rules
        found = why_command_refused(rules, self.comer, self._space, opcode) if rules is not None else None
        if found is None:
            self._granted.add(opcode)
            return None
        return self._refusal(opcode, *found)

    def show(self, token: str) -> str | None:
        """It says who it is, in place of what was known. Why that is refused; None: it is believed."""
        self._granted.clear()
        if not self.comer.tls:
            return self._refusal(Opcode.SHOW_TOKEN, "plain_token", PLAIN_TOKEN)
        rules = self._guard.rules
        self.comer = self._guard.having_shown(self.comer, token)
        unknown = None if rules is None else why_unknown(rules, self.comer)
        return None if unknown is None else self._refusal(Opcode.SHOW_TOKEN, *unknown)

    def lost(self) -> str | None:
        """Why what was granted before is not any more, now that the rights have changed."""
        granted, self._granted = self._granted, set()
        return next((why for opcode in sorted(granted) if (why := self.why_not(opcode))), None)

    def _refusal(self, opcode: int, reason: str, why: str) -> str:
        self.refusals += 1
        self._refused[reason] += 1
        self._guard.count(reason, self._peer, f"{Opcode(opcode).name.lower()}({int(opcode)}): {why}")
        return why
