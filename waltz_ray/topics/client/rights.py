"""Who a client is, for masters and slots: its signature, and the tokens that it was given for it."""

from __future__ import annotations

import os
import time

from waltz_ray.topics.authentication import signed
from waltz_ray.topics.messages import AuthorizedInfo, MasterAuthorizedInfo, MasterCertificateInfo

__all__ = ["TopicRights"]


class TopicRights:
    """Of one producer or consumer. ``user`` "": nobody."""

    def __init__(self, user: str, password: str) -> None:
        self._user, self._password = user, password
        self._given: MasterAuthorizedInfo | None = None
        self._sign = True

    @property
    def signs(self) -> bool:
        """What is shown next is a signature."""
        return self._sign or self._given is None or not self._given.auth_authorized_token

    def for_master(self) -> MasterCertificateInfo | None:
        """To be shown to a master: a signature at first and when it asks for one, else the token."""
        if not self._user:
            return None
        if self._given is not None and not self.signs:
            return MasterCertificateInfo(None, self._given.auth_authorized_token)
        nonce = int.from_bytes(os.urandom(4), "big", signed=True)
        return MasterCertificateInfo(signed(self._user, self._password, time.time_ns() // 1_000_000, nonce))

    def for_slot(self) -> AuthorizedInfo | None:
        """To be shown to a slot."""
        given = self._given
        return None if given is None else AuthorizedInfo(given.visit_authorized_token, given.auth_authorized_token)

    def adopt(self, given: MasterAuthorizedInfo | None, require_auth: bool | None = None) -> None:
        """What a master has answered: other tokens, and whether it wants a signature next time."""
        if given is not None:
            before = self._given
            token = given.auth_authorized_token or (None if before is None else before.auth_authorized_token)
            self._given = MasterAuthorizedInfo(given.visit_authorized_token, token)
        self._sign = bool(require_auth)

    def sign_again(self) -> None:
        """What was shown is not taken (any more)."""
        self._sign = True
