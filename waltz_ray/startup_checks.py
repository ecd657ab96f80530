"""What is looked at before a cluster listens, or listens otherwise, and what ``waltz up`` warns of."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from waltz_ray.config import PORTS_OF_AN_ACTOR, SECTIONS, ClusterConfig
from waltz_ray.errors import ConfigError
from waltz_ray.guarding import guards_of_file, guards_with_rights
from waltz_ray.net.tls import check_believed, client_context, server_context
from waltz_ray.runtime.status import ActorState, ClusterStatus
from waltz_ray.security.addresses import check_addresses
from waltz_ray.security.client_rights import check_rights_can_hold, read_rights

__all__ = [
    "check_files",
    "check_layers_come_in",
    "check_ports",
    "check_settings",
    "tls_files",
    "troubles",
    "unused_settings",
]

_CHANGED_BY = "waltz apply changes settings of a cluster that runs (docs/deployment.md)"

_LAST_PORT = 65_535
_OWN_ADDRESS = "127.0.0.1"
"""Of the node of a Ray that is started for the cluster."""
_TLS_FILES = ("tls_certificate", "tls_key", "tls_clients", "tls_authority")


def check_files(config: ClusterConfig, here: bool) -> None:
    """ConfigError or InvalidInput if files are named that no process of the cluster will find, whose directories are
    not the caller's; and, where all of them will be on this machine (``here``), if a file cannot be used.

    Else they would try to begin again and again, and the cluster not be up before somebody looks why."""
    if config.secret_file and not os.path.isabs(config.secret_file):
        raise ConfigError(f"secret_file must be an absolute path, not {config.secret_file!r}")
    for section in SECTIONS:
        part = getattr(config, section)
        files = {name: getattr(part, name, "") for name in _TLS_FILES}
        for name, path in files.items():
            if path and not os.path.isabs(path):
                raise ConfigError(f"{section}.{name} must be an absolute path, the same on every node, not {path!r}")
        if here:
            _check_tls(section, files)
    if here:
        _check_certificates(config)
    if here and config.rights_file:
        read_rights(Path(config.rights_file))


def tls_files(config: ClusterConfig) -> list[str]:
    """Every path that is set for TLS, "" where none is: equal lists are of the same files."""
    return [getattr(getattr(config, section), name, "") for section in SECTIONS for name in _TLS_FILES]


def _check_tls(section: str, files: Mapping[str, str]) -> None:
    authority = files["tls_authority"]
    try:
        if files["tls_certificate"]:
            server_context(files["tls_certificate"], files["tls_key"], files["tls_clients"] or None)
        if authority:
            client_context(authority)
    except OSError as error:  # which ssl.SSLError is
        named = ", ".join(filter(None, files.values()))
        raise ConfigError(
            f"the files of {section} for TLS ({named}) cannot be used: {error.strerror or error}; they have to be PEM "
            "files (waltz certs make)"
        ) from error


def _check_certificates(config: ClusterConfig) -> None:
    """ConfigError if the cluster's own processes would not believe each other by their certificates."""
    server, kv = config.server, config.kv
    for section, part, authority, host in (
        ("storage", config.storage, config.storage.tls_authority, ""),
        ("server", server, server.tls_authority, server.host),
        ("kv", kv, server.tls_authority if kv.actors else "", kv.host),
    ):
        at = host or _OWN_ADDRESS
        try:
            if part.tls_certificate and authority:
                check_believed(part.tls_certificate, part.tls_key, authority, at)
        except OSError as error:
            why = getattr(error, "verify_message", "") or error.strerror or error
            raise ConfigError(
                f"the certificate of {section} ({part.tls_certificate}) would not be believed at {at}: {why}; it has "
                f"to be good now, from the authority ({authority}), and name that address"
            ) from error


def check_layers_come_in(config: ClusterConfig) -> None:
    """ConfigError if servers would refuse the cluster's own clients of them, which have no certificates."""
    server = config.server
    wants_certificates = bool(server.tls_clients) and not server.tls_certificates_optional
    if (config.kv.actors or config.topics.actors) and server.tls_authority and wants_certificates:
        raise ConfigError(
            "key/value and topic actors come to servers with TLS (tls_authority) and a token, and would be refused for "
            "lack of a certificate: with tls_clients give tls_certificates_optional (waltz up --tls-tokens), too"
        )


def check_ports(config: ClusterConfig) -> None:
    """ConfigError if an actor of a layer would have a port that there is not: those of each begin where those of the
    one before it end."""
    for name, first, actors, each in (
        ("KvConfig.port", config.kv.port, config.kv.actors, 1),
        ("TopicConfig.master_port", config.topics.master_port, config.topics.actors, 1),
        ("TopicConfig.broker_port", config.topics.broker_port, config.topics.actors, PORTS_OF_AN_ACTOR),
    ):
        last = first + each * actors - 1
        if first and last > _LAST_PORT:
            raise ConfigError(
                f"{name} {first} is too high: {actors} actors have ports up to {last}, and {_LAST_PORT} is the last "
                "there is; begin lower, or give 0 for any free ones"
            )


def check_settings(
    wanted: ClusterConfig, zookeeper: str, nodes: Iterable[str], insecure: bool, here: bool = False
) -> None:
    """ConfigError or InvalidInput if the cluster, which runs, cannot have these settings, as of a new one: its actors
    would be refused, or strangers let in. ``wanted.rights_file``: of rights that come with them; ``nodes``: addresses
    of Ray's nodes, as far as they are known; ``here``: as of ``check_files``."""
    check_files(wanted, here)
    check_layers_come_in(wanted)
    check_ports(wanted)
    guards = guards_with_rights(zookeeper, replace(wanted, rights_file=""))
    if guards.rights is None:
        guards = replace(guards, rights=guards_of_file(wanted).rights)
    if guards.rights is not None:
        check_rights_can_hold(wanted, wanted.kv.actors, wanted.topics.actors)
    check_addresses(wanted, nodes, insecure or wanted.insecure, guards)


def troubles(status: ClusterStatus) -> list[str]:
    """What does not serve as it should, though everything is up; one line each."""
    found = [replica.reason for replica in status.replicas.values() if replica.state is ActorState.REFUSED]
    if status.manager.http_error:
        found.append(f"the manager {status.manager.http_error}; it tries again")
    return found


def unused_settings(status: ClusterStatus, wanted: ClusterConfig) -> list[str]:
    """What is ``wanted`` of a cluster that has other settings; one line each."""
    found, recorded = list[str](), status.config
    if recorded is None:
        return found
    if wanted.http.port not in (0, recorded.http.port):
        port = recorded.http.port or "any free one"
        found.append(f"the HTTP port is what it was ({port}): {wanted.http.port} is not used; {_CHANGED_BY}")
    if wanted.server.tls_certificate and _tls(wanted) != _tls(recorded):
        found.append(
            f"TLS is what it was ({recorded.server.tls_certificate or 'none'}): "
            f"{wanted.server.tls_certificate} is not used; {_CHANGED_BY}"
        )
    if wanted.storage.tls_certificate and _tls_of_replicas(wanted) != _tls_of_replicas(recorded):
        found.append(
            f"TLS of replicas is what it was ({recorded.storage.tls_certificate or 'none'}): "
            f"{wanted.storage.tls_certificate} is not used for them; {_CHANGED_BY}"
        )
    if wanted.secret_file not in ("", recorded.secret_path):
        path = recorded.secret_path
        found.append(f"where the secret lies was decided at the first start ({path}): {wanted.secret_file} is not used")
    return found


def _tls(config: ClusterConfig) -> tuple[str | bool, ...]:
    server = config.server
    files = server.tls_certificate, server.tls_key, server.tls_clients, server.tls_authority
    return (*files, server.tls_certificates_optional)


def _tls_of_replicas(config: ClusterConfig) -> tuple[str | bool, ...]:
    storage = config.storage
    return storage.tls_certificate, storage.tls_key, storage.tls_authority, storage.tls_only
