"""Which user a client of the master belongs to: nobody else speaks in its name while it is there."""

from __future__ import annotations

from collections.abc import Collection

from waltz_ray.topics.codes import TopicCode
from waltz_ray.topics.refusals import Refusal

__all__ = ["ClientOwners", "belongs_to_another"]


def belongs_to_another(client: str) -> Refusal:
    """What is said to another one."""
    text = f"client {client:.200} was registered by another user: take another ID"
    return Refusal(TopicCode.CERTIFICATE_FAILURE, text)


class ClientOwners:
    """As large as the master's own memory of clients: ``keep`` drops those that it has forgotten."""

    def __init__(self) -> None:
        self._users: dict[str, str] = {}

    def refused(self, client: str, user: str) -> Refusal | None:
        """Why this user may not speak for ``client``. "" is nobody, of whom nothing was asked."""
        return belongs_to_another(client) if user and self._users.get(client, user) != user else None

    def told(self, client: str, user: str) -> None:
        """The master has taken a request of the client's, which that user has sent."""
        if user:
            self._users[client] = user

    def forget(self, client: str) -> None:
        """It has closed. Idempotent."""
        self._users.pop(client, None)

    def keep(self, clients: Collection[str]) -> None:
        """These are all that there are."""
        for gone in self._users.keys() - clients:
            del self._users[gone]
