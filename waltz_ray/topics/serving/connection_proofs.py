"""Which users were proved over which connection of a slot's port: pulls and confirmations carry no proof themselves."""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["ConnectionProofs"]

_CONNECTIONS = 8192  # twice what a port has by default
_USERS = 64  # of one connection


class ConnectionProofs:
    """A bounded memory, the oldest proofs go first: who is not remembered is told to register again, and does."""

    def __init__(self) -> None:
        self._users: OrderedDict[int, OrderedDict[str, str]] = OrderedDict()

    def shown(self, connection: int, user: str, password: str) -> None:
        """``user``: "" is nobody. ``password``: under which it was proved."""
        if not user:
            return
        users = self._users.setdefault(connection, OrderedDict())
        self._users.move_to_end(connection)
        users[user] = password
        users.move_to_end(user)
        if len(users) > _USERS:
            users.popitem(last=False)
        if len(self._users) > _CONNECTIONS:
            self._users.popitem(last=False)

    def has(self, connection: int, user: str, password: str | None) -> bool:
        """Whether it was shown there; of nobody nothing has to be. ``password``: that of the user now, None = it is
        gone: what it may then, rights say."""
        users = self._users.get(connection)
        shown = None if users is None else users.get(user)
        return not user or (shown is not None and password in (None, shown))
