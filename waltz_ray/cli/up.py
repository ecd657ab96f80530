"""``waltz up`` and ``waltz down``."""

from __future__ import annotations

import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waltz_ray.cli.common import AddressOption, ClusterOption, DirOption, JsonOption, print_data, progress_line
from waltz_ray.config import ClusterConfig, HttpConfig, KvConfig, ServerConfig, StorageConfig, TopicConfig

if TYPE_CHECKING:
    from waltz_ray.finding.cluster_file import ClusterFile

__all__ = ["cluster_name", "register"]

_DEFAULT = ClusterConfig()


def register(app: typer.Typer) -> None:
    """Register this module's commands on ``app``."""
    app.command()(up)
    app.command()(down)


def cluster_name(directory: str) -> str:
    """What a cluster is called that nobody has named: its directory's base name, without what no name may have."""
    name = re.sub(r"[^\w.-]+", "-", Path(directory).name, flags=re.ASCII).strip("-.")
    return _DEFAULT.name if name in ("", "zookeeper") else name


def up(
    directory: Annotated[
        str, typer.Option("--dir", envvar="WALTZ_DIR", help="Where everything is stored; made if it is not there.")
    ],
    cluster: Annotated[str, typer.Option(help="The cluster's name. \\[default: the directory's name]")] = "",
    partitions: Annotated[
        int | None, typer.Option(help=f"Partitions of the space log, for ever. \\[default: {_DEFAULT.partitions}]")
    ] = None,
    replicas: Annotated[int | None, typer.Option(help=f"Storage replicas. \\[default: {_DEFAULT.replicas}]")] = None,
    replication: Annotated[
        int | None, typer.Option(help="How many replicas hold each partition: 3 or 5, for ever. \\[default: all]")
    ] = None,
    servers: Annotated[int | None, typer.Option(help=f"Partition servers. \\[default: {_DEFAULT.servers}]")] = None,
    kv: Annotated[
        int | None, typer.Option(min=1, help="Key/value actors, and a space kv; more of them than before at any time.")
    ] = None,
    topics: Annotated[
        int | None,
        typer.Option(min=1, help="Topic actors (TubeMQ), and a key/value actor if there is none; more at any time."),
    ] = None,
    zookeeper: Annotated[str, typer.Option(help="host:port,... of an ensemble. \\[default: an embedded one]")] = "",
    zookeeper_auth_file: Annotated[
        str,
        typer.Option("--zookeeper-auth", help="File on every node: name and password of its nodes in ZooKeeper."),
    ] = "",
    http_port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="The manager's HTTP port, for ever. \\[default: any free one]"),
    ] = 0,
    secret_file: Annotated[
        str,
        typer.Option(
            help="Where the cluster's secret lies on every node, for ever; made here. \\[default: DIR/cluster.secret]"
        ),
    ] = "",
    tls_certificate: Annotated[
        str,
        typer.Option(
            help="PEM file on every node: servers, replicas, kv and HTTP take TLS, too, for ever. See certs make."
        ),
    ] = "",
    tls_key: Annotated[str, typer.Option(help="Its key.")] = "",
    tls_clients: Annotated[
        str, typer.Option(help="PEM file on every node: authorities of which clients with TLS have a certificate.")
    ] = "",
    tls_certificates_optional: Annotated[
        bool,
        typer.Option("--tls-tokens", help="With --tls-clients: who has none may show a token instead."),
    ] = False,
    tls_authority: Annotated[
        str,
        typer.Option(
            help="PEM file on every node: the certificate's authorities. Our own actors and readers then speak TLS."
        ),
    ] = "",
    tls_only: Annotated[
        bool, typer.Option("--tls-only", help="With --tls-authority: replicas let nobody in without TLS.")
    ] = False,
    rights_file: Annotated[
        str,
        typer.Option("--rights", help="Rights of clients (JSON), set if there are none yet. See access set."),
    ] = "",
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Listen beyond loopback without TLS and rights: no stranger reaches it."),
    ] = False,
    address: Annotated[
        str,
        typer.Option(help="A Ray to run on, host:port or auto. \\[default: $RAY_ADDRESS, else its own]"),
    ] = "",
    timeout: Annotated[float, typer.Option(min=1, help="Seconds until Ray, ZooKeeper and all partitions serve.")] = 120,
    as_json: JsonOption = False,
) -> None:
    """Start a cluster, or the one that DIR holds. Without --address a Ray of its own is started on this machine."""
    from waltz_ray.backup.restored import read_restored
    from waltz_ray.bring_up import bring_up
    from waltz_ray.finding import cluster_file

    directory = os.path.realpath(directory)
    # As seen from here; the processes of the cluster have other directories of their own. The same file on every node.
    files = secret_file, tls_certificate, tls_key, tls_clients, tls_authority
    secret_file, tls_certificate, tls_key, tls_clients, tls_authority = (f and os.path.abspath(f) for f in files)
    if zookeeper_auth_file:  # where every process looks, the actors too (actors/supervision.py)
        os.environ["WALTZ_ZOOKEEPER_AUTH_FILE"] = os.path.realpath(zookeeper_auth_file)
    known = cluster_file.read(directory)
    restored = read_restored(directory) if known is None else None
    there = known or (restored.config if restored is not None else _DEFAULT)
    if not (address or (known and known.running)):
        address = os.environ.get("RAY_ADDRESS", "")
    config = ClusterConfig(
        name=cluster or (cluster_name(directory) if there is _DEFAULT else there.name),
        directory=directory,
        partitions=partitions if partitions is not None else there.partitions,
        replicas=replicas if replicas is not None else there.replicas,
        replication=replication if replication is not None else there.replication,
        servers=servers if servers is not None else there.servers,
        kv=KvConfig(actors=kv or 0, tls_certificate=tls_certificate, tls_key=tls_key, tls_clients=tls_clients),
        topics=TopicConfig(actors=topics or 0),
        server=ServerConfig(
            tls_certificate=tls_certificate,
            tls_key=tls_key,
            tls_clients=tls_clients,
            tls_certificates_optional=tls_certificates_optional,
            tls_authority=tls_authority,
        ),
        storage=StorageConfig(
            tls_certificate=tls_certificate, tls_key=tls_key, tls_authority=tls_authority, tls_only=tls_only
        ),
        http=HttpConfig(port=http_port, tls_certificate=tls_certificate, tls_key=tls_key, tls_clients=tls_clients),
        secret_file=secret_file,
        rights_file=os.path.realpath(rights_file) if rights_file else "",
        insecure=insecure,
        zookeeper=zookeeper or (known.zookeeper if known and not known.embedded else ""),
    )
    try:
        with progress_line(as_json) as progress:
            running = bring_up(config, address, progress=progress, deadline_s=timeout)
    except KeyboardInterrupt:
        typer.echo("waltz: interrupted; nothing was left running", err=True)
        raise
    if as_json:
        print_data(asdict(running))
        return
    for warning in running.warnings:
        typer.echo(f"warning: {warning}", err=True)
    what = "was running already, nothing was changed" if running.was_running else "is up"
    typer.echo(
        f"cluster {running.name} {what}: {running.partitions} partitions, {running.replicas} replicas, "
        f"{running.servers} servers{f', {running.kv} kv actors' if running.kv else ''}"
        f"{f', {running.topics} topic actors' if running.topics else ''} in {running.directory}"
    )
    typer.echo(f"Ray {running.address}   ZooKeeper {running.zookeeper}   dashboard {running.dashboard or '-'}")


def down(
    directory: DirOption = "", cluster: ClusterOption = "", address: AddressOption = "", as_json: JsonOption = False
) -> None:
    """Stop a cluster: its servers, replicas and manager, and the ZooKeeper and Ray that were started for it.

    A waltz up of it that is under way is waited for. Exit code 0 if it is down already.
    """
    from waltz_ray.finding.cluster_file import running_clusters
    from waltz_ray.finding.find import local_file
    from waltz_ray.take_down import take_down, take_down_in

    named = directory or cluster or address or any(map(os.environ.get, ("WALTZ_DIR", "WALTZ_CLUSTER", "RAY_ADDRESS")))
    if not named and not running_clusters():
        typer.echo("no cluster runs on this machine", err=True)
        return
    here = local_file(cluster, directory, address)  # running or not: a killed head has left something to end
    found = here or _found_on_ray(directory, cluster, address)
    was_up = found.running or found.ray is not None
    if was_up:
        with progress_line(as_json) as progress:
            if here is not None:
                take_down_in(Path(here.directory), progress)
            else:
                take_down(found, progress)
    if as_json:
        print_data({"cluster": found.name, "directory": found.directory, "running": False})
    else:
        what = "is down" if was_up else "was down already"
        typer.echo(f"cluster {found.name} {what}; its data stays in {found.directory}")


def _found_on_ray(directory: str, cluster: str, address: str) -> ClusterFile:
    """What its manager says of a cluster that has no directory here."""
    from waltz_ray.finding import cluster_file
    from waltz_ray.finding.find import find_on_ray
    from waltz_ray.readiness import cluster_status

    name, joined = find_on_ray(cluster, directory, address)
    view = cluster_status(name)
    config = view.config
    assert config is not None  # the manager knows both
    assert view.zookeeper is not None
    return cluster_file.ClusterFile(
        name,
        config.directory,
        config.partitions,
        config.replicas,
        config.servers,
        address=joined,
        zookeeper=view.zookeeper,
        embedded=not config.zookeeper,
        replication=config.replication,
    )
