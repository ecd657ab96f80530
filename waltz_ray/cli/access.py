"""``waltz access``: who may do what with which space. It holds at once."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waltz_ray.cli.common import AddressOption, ClusterOption, DirOption, YesOption, confirmed
from waltz_ray.cli.connecting import ZooKeeperOption
from waltz_ray.errors import InvalidInput, VersionConflict
from waltz_ray.small_files import sync_directory, sync_file

if TYPE_CHECKING:
    from waltz_ray.coordination.access_store import AccessStore
    from waltz_ray.coordination.zookeeper import KazooZooKeeper
    from waltz_ray.protocol.access import SpaceRules

__all__ = ["register"]

_access = typer.Typer(help="Rights of clients: who may read, append and administer which space (docs/security.md).")

_TOKEN_BYTES = 32


def register(app: typer.Typer) -> None:
    """Register this module's commands on ``app``."""
    app.add_typer(_access, name="access", no_args_is_help=True)


class _Rights:
    def __init__(self, directory: str, cluster: str, address: str, zookeeper: str) -> None:
        from waltz_ray.coordination.cluster_store import ClusterStore
        from waltz_ray.coordination.layer_store import LayerStore
        from waltz_ray.coordination.zookeeper import KazooZooKeeper
        from waltz_ray.finding.find import find_cluster

        found = find_cluster(cluster, directory, address, zookeeper)
        self._zookeeper: KazooZooKeeper = KazooZooKeeper(found.zookeeper)
        self.cluster = ClusterStore(self._zookeeper, found.name)
        self.layers = LayerStore(self._zookeeper, found.name)
        self.store: AccessStore = self.cluster.access
        self.before, self._version = self.store.document()

    def replace(self, data: bytes) -> None:
        """VersionConflict: somebody else was faster."""
        if not self.store.replace(data, self._version):
            raise VersionConflict("somebody else has just replaced the rights; look at them, and try again")

    def remove(self) -> None:
        if self._version >= 0 and not self.store.remove(self._version):
            raise VersionConflict("somebody else has just replaced the rights; look at them, and try again")

    def __enter__(self) -> _Rights:
        return self

    def __exit__(self, *_: object) -> None:
        self._zookeeper.close()


@_access.command()
def show(
    directory: DirOption = "", cluster: ClusterOption = "", address: AddressOption = "", zookeeper: ZooKeeperOption = ""
) -> None:
    """Print the rights, as JSON; nothing if there are none, and everybody may everything."""
    from waltz_ray.protocol.json_text import loaded
    from waltz_ray.wire.access_document import MOST_BYTES

    with _Rights(directory, cluster, address, zookeeper) as there:
        if there.before:
            print(json.dumps(loaded(there.before, "what ZooKeeper has of rights", MOST_BYTES), indent=2))
        else:
            typer.echo("there are no rights: who reaches a port may do everything there", err=True)


@_access.command("set")
def set_rights(
    file: Annotated[Path, typer.Argument(help="JSON; docs/security.md has the form.")],
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
) -> None:
    """Replace the rights. They hold at once, also for connections that are there."""
    from waltz_ray.actors.settings import from_json
    from waltz_ray.security.client_rights import check_rights_can_hold, read_rights

    data, rules = read_rights(file)
    with _Rights(directory, cluster, address, zookeeper) as there:
        config = from_json(there.cluster.info().settings).config
        check_rights_can_hold(config, there.layers.actors("kv"), there.layers.actors("topic"))
        there.replace(data)
    typer.echo(f"the rights of {len(rules.clients)} clients hold from now on")
    if config.http.enabled and (why := _why_nobody_sees(rules, bool(config.http.tls_certificate))):
        typer.echo(f"note: at the manager's HTTP port only probes are answered from now on: {why}", err=True)


def _why_nobody_sees(rules: SpaceRules, tls: bool) -> str:
    """The cluster's state at the manager's HTTP port, which takes TLS or not; "" = somebody does."""
    from waltz_ray.protocol.access import ANY, SEES_CLUSTER

    seeing = {name for (name, space), rights in rules.rights.items() if space == ANY and rights & SEES_CLUSTER}
    if not seeing:
        return 'nobody has the right monitor in space "*"'
    if not tls and rules.tls_only:
        return "it has no TLS (HttpConfig.tls_certificate), and tls_only is set"
    return "" if tls or ANY in seeing else "it has no TLS (HttpConfig.tls_certificate), so nobody can show who he is"


@_access.command()
def token(
    client: Annotated[str, typer.Argument(help="Whose; added if there is none of that name.")],
    file: Annotated[Path, typer.Argument(help="Where the token is written, for its owner only; it must not exist.")],
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
) -> None:
    """Make a token for a client and write it to a file. Only what it is recognised by is kept in the cluster."""
    from dataclasses import replace

    from waltz_ray.protocol.access import digest_of
    from waltz_ray.wire.access_document import decode_access_rules, encode_access_rules

    with _Rights(directory, cluster, address, zookeeper) as there:
        if not there.before:
            raise InvalidInput("there are no rights yet: waltz access set FILE first")
        rules: SpaceRules = decode_access_rules(there.before)
        made = secrets.token_urlsafe(_TOKEN_BYTES)
        tokens = {**rules.tokens, digest_of(made): client}
        data = encode_access_rules(replace(rules, clients=rules.clients | {client}, tokens=tokens))
        try:
            handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise InvalidInput(f"the token cannot be written to {file}: {error.strerror}") from error
        try:
            with os.fdopen(handle, "w") as out:
                out.write(f"{made}\n")
                sync_file(out)
            sync_directory(file.parent)  # nobody has a token that the cluster knows and no file
            there.replace(data)
        except BaseException:
            file.unlink()
            raise
    typer.echo(f"client {client} has a token, in {file}; its older ones go on until they are taken out: access set")
    if client not in rules.clients:
        known = ", ".join(sorted(rules.clients)) or "none"
        typer.echo(
            f"note: {client} is a new client, and may only what everybody may until access set gives it rights; there "
            f"were: {known}",
            err=True,
        )


@_access.command()
def remove(
    yes: YesOption = False,
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
) -> None:
    """Take all rights away: from then on who reaches a port may do everything there."""
    confirmed("all rights are taken away: whoever reaches a port may do everything there", yes)
    with _Rights(directory, cluster, address, zookeeper) as there:
        there.remove()
    typer.echo("there are no rights any more")
