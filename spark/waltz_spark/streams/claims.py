"""A category of a root's ``data/`` is taken by one local service only, whatever it is called and wherever it runs.

Two that took the same minute would publish it twice, each under its own name. So a run of a local service has, beside
its thread's lock, an ephemeral node ``/databus-roots/<root>/<thread>`` with the categories that it takes. ``<root>`` is
not a path, which another machine may see at another place, or have for another disk: it is the name of the one
directory in ``<root>/system/identity/``, made by the first service that ran there.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from contextlib import suppress

from waltz_ray.coordination.api import ZooKeeper, release
from waltz_ray.errors import ConfigError, NodeExists, NoNode
from waltz_spark.streams.files import Files
from waltz_spark.streams.layout import join
from waltz_spark.streams.odd import make_way
from waltz_spark.streams.settings import StreamSettings
from waltz_spark.streams.states import ThreadNode
from waltz_spark.streams.texts import parsed_json

__all__ = ["CLAIMS", "CategoryClaim", "in_flight_elsewhere", "overlap", "root_identity"]

CLAIMS = "/databus-roots"

_IDENTITY = re.compile("[0-9a-f]{32}")


def root_identity(files: Files, root: str) -> str:
    """What the root is called, wherever it is seen; made durably where it has no name yet."""
    directory = join(root, "system", "identity")
    make_way(files, root, directory)
    if not (names := _identities(files, directory)):
        files.make_directories(join(directory, uuid.uuid4().hex))
        names = _identities(files, directory)
    return names[0]  # of two that were made at once both see the same first one from the next run on


def _identities(files: Files, directory: str) -> list[str]:
    return [name for name in files.list(directory) if _IDENTITY.fullmatch(name)]


def overlap(one: Sequence[str], other: Sequence[str]) -> bool:
    """Of categories; () = all there are."""
    return not one or not other or bool(set(one) & set(other))


def in_flight_elsewhere(settings: StreamSettings, services: dict[str, ThreadNode]) -> str:
    """What another local has begun to publish of the same input, which would be published again; "" = nothing."""
    for name, node in services.items():
        path = node.path
        if name == settings.name or node.kind != "local" or path is None or path.src_root != settings.root:
            continue
        if overlap(settings.categories, [path.final_path.split("/")[1]]):
            return (
                f"stream service {settings.name}: {path.commit} of the same root is in flight in thread {name}; carry "
                f"it through first (waltz streams recover --service {name}, with a file that has it)"
            )
    return ""


class CategoryClaim:
    """Of one run of a local service. The run has its thread's lock."""

    def __init__(self, settings: StreamSettings, zookeeper: ZooKeeper) -> None:
        self._settings, self._zookeeper = settings, zookeeper
        self._path = ""

    def take(self, identity: str) -> None:
        """ConfigError if a service of another name takes any of these categories at present."""
        settings, directory = self._settings, f"{CLAIMS}/{identity}"
        self._path = f"{directory}/{settings.node.strip('/').replace('/', ':')}"
        data = json.dumps({"thread": settings.node, "categories": settings.categories}).encode()
        try:
            self._zookeeper.create(self._path, data, ephemeral=True, make_parents=True)
        except NodeExists:
            # An older run's: the lock of the thread is ours, so that one has ended, or will find that it has.
            self._delete()
            self._zookeeper.create(self._path, data, ephemeral=True, make_parents=True)
        for name in self._zookeeper.children(directory):
            other = f"{directory}/{name}"
            if other != self._path and overlap(settings.categories, self._categories(other)):
                raise ConfigError(
                    f"stream service {settings.name}: {name.replace(':', '/')} takes the same categories from "
                    f"{settings.root} at present, and each would publish them; let one of them go, or give each its "
                    "own categories (one that was killed goes with its ZooKeeper session)"
                )

    def release(self) -> None:
        """Idempotent. The session must be the one that took it."""
        if self._path:
            path, self._path = self._path, ""
            release(self._zookeeper, path)

    def _delete(self) -> None:
        with suppress(NoNode):  # its session may end just now
            self._zookeeper.delete(self._path)

    def _categories(self, path: str) -> Sequence[str]:
        try:
            found = parsed_json(self._zookeeper.get(path)[0])["categories"]
        except NoNode:
            return ["."]  # gone since the listing: nobody's category
        except (ValueError, KeyError, TypeError):
            return ()  # not ours, or of another version: all there are
        return found if isinstance(found, list) else ()
