"""What may stand in a deployment file: the settings of ``config.py``, the Ray to run on, and spaces.

The keys at the top are the fields of ``ClusterConfig``, each section the fields of its class there (``server:`` those
of ``ServerConfig``), with their meanings, units, defaults and bounds: nothing of it is said a second time. What is left
out is the default of a new cluster, and of one that is there already left as it is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_type_hints

from waltz_ray.config import ClusterConfig
from waltz_ray.deployment.yaml_reader import YamlReader
from waltz_ray.errors import ConfigError, InvalidInput
from waltz_ray.protocol.spaces import (
    DEFAULT_SPACE,
    SETTINGS,
    changed_settings,
    checked_count,
    checked_kind,
    checked_space_name,
    first_settings,
)
from waltz_ray.small_files import read_small_file

__all__ = ["Deployment", "RayConfig", "SpaceConfig", "parse", "read"]

_RESERVED = {
    "security": "there is no such section: the cluster's secret is secret_file, TLS of servers server.tls_certificate, "
    "server.tls_key and server.tls_clients, of replicas storage.tls_certificate, storage.tls_key and "
    "storage.tls_authority, of topics topics.tls_certificate and topics.tls_key",
    "tls": "TLS is of who listens: server.tls_certificate, server.tls_key and server.tls_clients, "
    "storage.tls_certificate, storage.tls_key and storage.tls_authority, topics.tls_certificate and "
    "topics.tls_key",
}


_LEAST_OF_USE = {
    "storage.segment_size_bytes": (1 << 20, "each segment is three files, which every start opens"),
    "server.checkpoint_interval": (1_000, "each checkpoint is a session of its own, and is written to ZooKeeper"),
    "server.progress_bytes": (1 << 16, "so often a replica that catches up is written about in ZooKeeper"),
}
"""What a cluster that serves has to have at the least; the classes take less, for tests, and for what was made so."""


@dataclass(frozen=True)
class RayConfig:
    """The Ray that the cluster runs on."""

    address: str = "auto"
    """``host:port`` of its head; "auto" = the one that the job or this machine belongs to; "" = one of our own, on this
    machine only, as of ``waltz up``."""

    deadline_s: float = 300.0
    """Seconds until Ray, ZooKeeper, all partitions, layers and spaces have to serve."""

    def __post_init__(self) -> None:
        if not 1 <= self.deadline_s <= 86_400:
            raise ConfigError(f"RayConfig.deadline_s must be a number from 1 to 86400, not {self.deadline_s!r}")


@dataclass(frozen=True)
class SpaceConfig:
    """A space (docs/spaces.md). None of a setting takes it away; one that is not in the file is left as it is."""

    kind: str = "log"
    """``log``, ``kv`` or ``topic``; fixed for ever."""

    partitions: int | None = None
    """How many; fixed for ever. Of kind ``kv`` a power of two, 16 by default; of others it has to be said."""

    retention_ms: int | None = None
    """How long records are kept at the least, in milliseconds; none = for ever (docs/retention.md)."""

    retention_bytes: int | None = None
    """How many bytes of each partition are kept at the least; none = all."""

    compact: int | None = None
    """1: the space's layer says what may be forgotten, as of kind ``kv`` by default; 0: retention does; of
    kind ``kv`` all is kept then."""

    max_message_bytes: int | None = None
    """Of kind ``topic``: a longer message is refused; none = what ``topics.max_message_bytes`` says."""

    def __post_init__(self) -> None:
        checked_kind(self.kind)
        if self.partitions is not None:
            checked_count(self.kind, self.partitions)
        changed_settings({}, self.settings(SETTINGS), self.kind)

    def settings(self, names: Any) -> dict[str, int | None]:
        """Those settings of the space."""
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Deployment:
    """``lines``: the line of each key that the file has, by its path (``server.port``)."""

    source: str
    cluster: ClusterConfig
    ray: RayConfig = RayConfig()
    spaces: Mapping[str, SpaceConfig] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)

    def says(self, path: str) -> bool:
        """Whether the file has that key."""
        return path in self.lines

    def space_settings(self, name: str) -> dict[str, int | None]:
        """What the file says of a space's settings, and nothing else."""
        return self.spaces[name].settings([each for each in SETTINGS if self.says(f"spaces.{name}.{each}")])


def read(path: str | os.PathLike[str]) -> Deployment:
    """The deployment in a file. ConfigError names the line; InvalidInput if the file cannot be read."""
    try:
        text = read_small_file(path).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: this is not UTF-8 (byte {error.start}); save it as that") from error
    return parse(text, str(path))


def parse(text: str, source: str) -> Deployment:
    """The deployment in ``text``, which errors call ``source``. ConfigError names the line."""
    reader = YamlReader(source, _RESERVED)
    root = reader.root(text)
    hints = get_type_hints(ClusterConfig)
    kinds = {each.name: hints[each.name] for each in fields(ClusterConfig)}
    values = reader.values(root, kinds | {"ray": RayConfig, "spaces": Mapping[str, SpaceConfig]})
    ray, spaces = values.pop("ray", RayConfig()), values.pop("spaces", {})
    if values.get("disks") and "replicas" not in values:
        values["replicas"] = len(values["disks"])
    cluster = reader.built(ClusterConfig, root, values)
    if not os.path.isabs(cluster.directory):
        line = reader.lines.get("directory", 1)
        raise ConfigError(
            f"{source}:{line}: directory has to be an absolute path, on every storage node, not {cluster.directory!r}"
        )
    for name, space in spaces.items():
        _check_space(name, space, reader)
    _check_use(cluster, reader)
    return Deployment(source, cluster, ray, spaces, reader.lines)


def _check_space(name: str, space: SpaceConfig, reader: YamlReader) -> None:
    path = f"spaces.{name}"
    given = [each.name for each in fields(SpaceConfig) if f"{path}.{each.name}" in reader.lines]
    try:
        checked_space_name(name)
        if name != DEFAULT_SPACE:
            checked_count(space.kind, space.partitions)
            first_settings(space.kind, space.settings(set(given) & set(SETTINGS)))
        elif {"kind", "partitions"} & set(given):
            raise InvalidInput("it is of kind log, and has the partitions that `partitions` at the top says")
    except InvalidInput as error:
        raise ConfigError(f"{reader.source}:{reader.lines[path]}: {path}: {error}") from error


def _check_use(cluster: ClusterConfig, reader: YamlReader) -> None:
    for path, (least, why) in _LEAST_OF_USE.items():
        section, _, name = path.partition(".")
        value = getattr(getattr(cluster, section), name)
        if path in reader.lines and value < least:
            raise ConfigError(
                f"{reader.source}:{reader.lines[path]}: {path} has to be {least} at the least, not {value}: {why}"
            )
