"""The rights of clients in ZooKeeper: one node, ``/<cluster>/store/access``, which operators replace as a whole."""

from __future__ import annotations

from collections.abc import Callable

from waltz_ray.coordination.api import Watch, ZooKeeper
from waltz_ray.errors import InvalidInput, NodeExists, NoNode, VersionConflict
from waltz_ray.protocol.access import SpaceRules
from waltz_ray.wire.access_document import decode_access_rules

__all__ = ["AccessStore"]


class AccessStore:
    """Of ``cluster``. Holds no state. Every call may raise ZooKeeperUnreachable."""

    def __init__(self, zookeeper: ZooKeeper, cluster: str) -> None:
        self._zookeeper = zookeeper
        self._path = f"/{cluster}/store/access"

    def document(self) -> tuple[bytes, int]:
        """Its bytes and their version; (b"", -1): there is none, and everybody may everything."""
        try:
            return self._zookeeper.get(self._path)
        except NoNode:
            return b"", -1

    def rules(self) -> SpaceRules | None:
        """What holds; None: there are none. InvalidInput if it makes no sense."""
        data, version = self.document()
        return None if version < 0 else decode_access_rules(data)

    def tls_only(self) -> bool:
        """Whether clients have to speak TLS, as far as it makes sense."""
        try:
            rules = self.rules()
        except InvalidInput:
            return False  # servers refuse, and say why
        return rules is not None and rules.tls_only

    def replace(self, data: bytes, version: int) -> bool:
        """Replace it where it has that version (-1: where there is none); False: it has another."""
        try:
            if version < 0:
                self._zookeeper.create(self._path, data, make_parents=True)
            else:
                self._zookeeper.set(self._path, data, version)
        except (NodeExists, VersionConflict, NoNode):
            return False
        return True

    def remove(self, version: int) -> bool:
        """Take it away where it has that version: from then on everybody may everything."""
        try:
            self._zookeeper.delete(self._path, version)
        except (VersionConflict, NoNode):
            return False
        return True

    def watch(self, callback: Callable[[bytes | None], None]) -> Watch:
        """``callback`` with its bytes, now and after each change; None: there are none."""
        return self._zookeeper.watch_data(self._path, lambda data, version: callback(data))
