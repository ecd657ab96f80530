"""What of a cluster would listen where others than its own machine can reach it, and what of it would ask nobody who he
is, or let what is said there be read."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from waltz_ray.config import ClusterConfig
from waltz_ray.errors import ConfigError
from waltz_ray.protocol.access import SpaceRules

__all__ = ["Guards", "check_addresses", "exposed", "is_loopback_host", "lacking"]

_RIGHTS = "rights of clients with tls_only (ClusterConfig.rights_file, waltz up --rights, waltz access set)"


@dataclass(frozen=True)
class Guards:
    """What says who may do what, and is no setting. ``rights``: of clients, None = there are none;
    ``topics_authenticate``: the topics' access rules say so."""

    rights: SpaceRules | None = None
    topics_authenticate: bool = False


def is_loopback_host(host: str) -> bool:
    """Whether only this machine reaches what listens at ``host``. A name that is not "localhost" may be anything."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def exposed(config: ClusterConfig, nodes: Iterable[str]) -> dict[str, str]:
    """Who would listen beyond loopback -> where. ``nodes``: addresses of the Ray nodes, which is where everything
    listens that was given no address of its own."""
    elsewhere = ", ".join(sorted({node for node in nodes if not is_loopback_host(node)}))
    given = {
        "replicas": "",
        "servers": config.server.host,
        "key/value actors": config.kv.host if config.kv.actors or config.topics.actors else None,
        "topic actors": config.topics.host if config.topics.actors else None,
        "the embedded ZooKeeper": None if config.zookeeper else "",
        "the manager's HTTP port": config.http.host if config.http.enabled else None,
    }
    places = {who: host or elsewhere for who, host in given.items() if host is not None}
    return {who: place for who, place in places.items() if place and not is_loopback_host(place)}


def lacking(config: ClusterConfig, guards: Guards) -> dict[str, str]:
    """Who takes plain connections, or comers without asking who they are -> what has to be given so that he does not.

    Replicas ask always. Rights that let whoever comes over TLS do something say so on purpose.
    """
    has_rights = guards.rights is not None and guards.rights.tls_only
    topics_ask = "access rules of topics with authenticate (waltz topic access, before there are topic actors)"
    wanted = {
        "replicas": [(config.storage.tls_only, "StorageConfig.tls_only (waltz up --tls-only)")],
        "servers": [(bool(config.server.tls_certificate), "ServerConfig.tls_certificate"), (has_rights, _RIGHTS)],
        "key/value actors": [(bool(config.kv.tls_certificate), "KvConfig.tls_certificate"), (has_rights, _RIGHTS)],
        "topic actors": [
            (bool(config.topics.tls_certificate), "TopicConfig.tls_certificate"),
            (guards.topics_authenticate, topics_ask),
        ],
        "the embedded ZooKeeper": [(False, "an ensemble in its place, as it speaks plain (ClusterConfig.zookeeper)")],
        "the manager's HTTP port": [
            (bool(config.http.tls_certificate), "HttpConfig.tls_certificate"),
            (has_rights, _RIGHTS),
        ],
    }
    missing = {who: [what for there, what in needs if not there] for who, needs in wanted.items()}
    return {who: " and ".join(what) for who, what in missing.items() if what}


def check_addresses(config: ClusterConfig, nodes: Iterable[str], insecure: bool, guards: Guards) -> None:
    """ConfigError, in one line, if strangers could reach a port that asks nobody who he is, or speaks plain, and nobody
    has said that this is meant."""
    if insecure:
        return
    without = lacking(config, guards)
    found = {who: place for who, place in exposed(config, nodes).items() if who in without}
    if found:
        who, places = ", ".join(found), ", ".join(sorted(set(found.values())))
        needs: dict[str, list[str]] = {}
        for each in found:
            needs.setdefault(without[each], []).append(each)
        told = "; ".join(f"{', '.join(of)}: {what}" for what, of in needs.items())
        raise ConfigError(
            f"cluster {config.name!r} would listen on {places} ({who}) without TLS or without asking who comes, where "
            f"whoever reaches it can append and read; keep it on 127.0.0.1, or give what is missing ({told}), or, if "
            "that network is closed to all others, say so with: waltz up --insecure"
        )
