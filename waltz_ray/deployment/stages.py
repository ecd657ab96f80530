"""How the settings of a cluster that serves become others: in stages, each of which is a rolling restart. Pure.

While processes are started again one after the other, those with the settings before and after a stage talk to each
other. So what one begins to do all others must know already: a port takes TLS before anybody speaks it, and everybody
speaks it before a port takes nothing else; and the other way round where TLS is given up. An interruption leaves a
stage half done, which the same command finishes before it begins the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from waltz_ray.config import ClusterConfig

__all__ = ["SECTIONS", "SettingsStage", "can_change", "impossible", "stages"]

SECTIONS = {
    "storage": ("replica", "server"),
    "server": ("server", "kv", "topic"),
    "kv": ("kv", "topic"),
    "topics": ("topic",),
    "http": (),
}
"""Section of the settings -> the actors that read it when they start; the manager reads all."""

_NOT_SETTINGS = ("kv.actors", "topics.actors")  # how many there are is kept elsewhere, and only grows


@dataclass(frozen=True)
class SettingsStage:
    """``config``: as it is to be kept; ``kinds``: of the actors that are started again then, in no order."""

    config: ClusterConfig
    kinds: frozenset[str]


def can_change(path: str) -> bool:
    """Whether the setting at ``path`` (``server.port``) can be another one later."""
    return path.partition(".")[0] in SECTIONS and path not in _NOT_SETTINGS


def stages(before: ClusterConfig, after: ClusterConfig) -> Iterator[SettingsStage]:
    """From ``before`` to ``after``, which differ in ``SECTIONS`` alone; none if they are equal."""
    held = before
    for step in (_takes_plain_again, _speaks_plain_again, _all_but_who_speaks_what, _speaks_tls, _as_wanted):
        config = step(held, after)
        kinds = {kind for name, kinds in SECTIONS.items() if _differ(held, config, name) for kind in kinds}
        if config != held:
            yield SettingsStage(config, frozenset(kinds | {"cluster-manager"}))
        held = config


def impossible(before: ClusterConfig, after: ClusterConfig) -> Iterator[tuple[str, str]]:
    """(Setting, why) of what no stages lead to: for some time not everybody would understand everybody."""
    for name in ("storage", "server"):
        old, new = getattr(before, name), getattr(after, name)
        authorities = old.tls_authority and new.tls_authority and old.tls_authority != new.tls_authority
        if authorities and old.tls_certificate != new.tls_certificate:
            yield (
                f"{name}.tls_authority",
                "with another certificate at the same time who has the old one would not believe who has the new one: "
                "put both authorities into the file, then exchange the certificate, which is read again",
            )
    kept = before.server.tls_authority and after.server.tls_authority
    if kept and bool(before.kv.tls_certificate) != bool(after.kv.tls_certificate):
        yield (
            "kv.tls_certificate",
            "key/value actors speak TLS to each other if there is server.tls_authority: take that away first, and give "
            "it again with this or after it",
        )


def _differ(one: ClusterConfig, other: ClusterConfig, section: str) -> bool:
    return bool(getattr(one, section) != getattr(other, section))


def _takes_plain_again(held: ClusterConfig, after: ClusterConfig) -> ClusterConfig:
    return _with(held, only=held.storage.tls_only and after.storage.tls_only)


def _speaks_plain_again(held: ClusterConfig, after: ClusterConfig) -> ClusterConfig:
    of_replicas = held.storage.tls_authority if after.storage.tls_authority else ""
    return _with(held, of_replicas, held.server.tls_authority if after.server.tls_authority else "")


def _all_but_who_speaks_what(held: ClusterConfig, after: ClusterConfig) -> ClusterConfig:
    storage, server = held.storage, held.server
    return _with(after, storage.tls_authority, server.tls_authority, storage.tls_only)


def _speaks_tls(held: ClusterConfig, after: ClusterConfig) -> ClusterConfig:
    return _with(held, after.storage.tls_authority, after.server.tls_authority)


def _as_wanted(held: ClusterConfig, after: ClusterConfig) -> ClusterConfig:
    return after


def _with(
    config: ClusterConfig, of_replicas: str | None = None, of_servers: str | None = None, only: bool | None = None
) -> ClusterConfig:
    """With these authorities, and this for ``tls_only``; None: as it is."""
    given: dict[str, Any] = {"tls_authority": of_replicas, "tls_only": only}
    storage = replace(config.storage, **{name: value for name, value in given.items() if value is not None})
    server = config.server if of_servers is None else replace(config.server, tls_authority=of_servers)
    return replace(config, storage=storage, server=server)
