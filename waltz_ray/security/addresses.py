"""What of a cluster would listen where others than its own machine can reach it."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from waltz_ray.config import ClusterConfig
from waltz_ray.errors import ConfigError

__all__ = ["check_addresses", "exposed", "is_loopback_host"]


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
        "key/value actors": config.kv.host if config.kv.actors else None,
        "topic actors": config.topics.host if config.topics.actors else None,
        "the embedded ZooKeeper": None if config.zookeeper else "",
        "the manager's HTTP port": config.http.host if config.http.enabled else None,
    }
    places = {who: host or elsewhere for who, host in given.items() if host is not None}
    return {who: place for who, place in places.items() if place and not is_loopback_host(place)}


def check_addresses(config: ClusterConfig, nodes: Iterable[str], insecure: bool) -> None:
    """ConfigError, in one line, if strangers could reach a port that asks nobody who he is, and nobody has said that
    this is meant."""
    found = {} if insecure else exposed(config, nodes)
    if found:
        who, places = ", ".join(found), ", ".join(sorted(set(found.values())))
        raise ConfigError(
            f"cluster {config.name!r} would listen on {places} ({who}), where whoever reaches it can append and read, "
            "for these ports have no TLS and ask nobody who he is; keep it on 127.0.0.1, or, if that network is closed "
            "to all others, say so with: waltz up --insecure"
        )
