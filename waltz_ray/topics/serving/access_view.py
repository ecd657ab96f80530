"""Rights, tokens and flow rules as they stand in ZooKeeper, live: what is changed there holds from the next request on.

A document that makes no sense changes nothing, and ``problem`` says so. If there never was one that did, nobody is let
in: it is not for us to guess what it was to forbid.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable
from dataclasses import replace

from waltz_ray.coordination.api import Watch
from waltz_ray.coordination.topic_store import TopicStore
from waltz_ray.errors import InvalidInput
from waltz_ray.topics.access import TopicAccess
from waltz_ray.topics.access_document import decode_access
from waltz_ray.topics.authorization import AccessRules
from waltz_ray.topics.flow_table import FlowTable, decode_flow_table
from waltz_ray.topics.tokens import (
    VisitTokens,
    decode_secrets,
    decode_visit_tokens,
    encode_visit_tokens,
    is_due,
    rotated,
)

__all__ = ["AccessView"]

log = logging.getLogger(__name__)

_NOBODY = AccessRules(authenticate=True)
_NAMES = ("access", "flow", "visit", "secrets")


class AccessView:
    """``post`` has something called in the event loop; ``flow_changed`` is called there after the rules have changed.
    What is in this class runs there, unless it says that it blocks."""

    def __init__(
        self, store: TopicStore, post: Callable[..., None], flow_changed: Callable[[], None] = lambda: None
    ) -> None:
        self.now = TopicAccess(_NOBODY)
        self.flow = FlowTable()
        self.problems: dict[str, str] = {}
        """By document: why it is not what counts."""
        self._store, self._post, self._flow_changed = store, post, flow_changed

    @property
    def problem(self) -> str:
        """For people; "": all is well."""
        return "; ".join(f"{name}: {why}" for name, why in sorted(self.problems.items()))

    # ---- these block: they are for a thread

    def watch(self) -> list[Watch]:
        """Follow the documents, and make the secrets, if nobody has."""
        data, version = self._store.document("secrets")
        if not data:
            fresh = {"current": secrets.token_hex(32), "previous": ""}
            self._store.set_document("secrets", json.dumps(fresh).encode(), version)
        return [self._store.watch_document(name, self._told(name)) for name in _NAMES]

    def read(self) -> None:
        """Look again now."""
        for name in _NAMES:
            self._told(name)(self._store.document(name)[0])

    def rotate(self, now_ms: int) -> None:
        """Of the master: a new visit token, if it is time for one."""
        data, version = self._store.document("visit")
        before: VisitTokens | None = None
        if data:
            before = decode_visit_tokens(data)
            if not is_due(before, now_ms):
                return
        fresh = encode_visit_tokens(rotated(before, 1 + secrets.randbelow((1 << 63) - 1), now_ms))
        self._store.set_document("visit", fresh, version)

    # ----

    def _told(self, name: str) -> Callable[[bytes], None]:
        return lambda data: self._post(self._seen, name, data)

    def _seen(self, name: str, data: bytes) -> None:
        try:
            self._take(name, data)
            self.problems.pop(name, None)
        except (InvalidInput, ValueError, KeyError, TypeError) as error:
            self.problems[name] = str(error)
            log.error("topics: what ZooKeeper has of %s changes nothing: %s", name, error)

    def _take(self, name: str, data: bytes) -> None:
        match name:
            case "access":
                self.now = replace(self.now, rules=decode_access(data) if data else AccessRules())
            case "visit":
                self.now = replace(self.now, visit=decode_visit_tokens(data) if data else VisitTokens(0))
            case "secrets":
                self.now = replace(self.now, secrets=decode_secrets(data))
            case "flow":
                self.flow = decode_flow_table(data) if data else FlowTable()
                self._flow_changed()
