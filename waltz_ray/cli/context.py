"""``waltz context``: names for clusters."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Annotated

import typer

from waltz_ray.cli.common import JsonOption, console, print_data, table_of
from waltz_ray.cli.contexts import Context, changed, config_file, read
from waltz_ray.errors import InvalidInput

__all__ = ["register"]

_context = typer.Typer(help="Contexts: names for clusters, kept for you; the one in use says which cluster is meant.")


def _names(incomplete: str) -> list[str]:
    """For the shell. There is nobody to be told of an error."""
    try:
        return [name for name in read(config_file()).named if name.startswith(incomplete)]
    except InvalidInput:
        return []


NewNameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The context's name.", show_default=False)]
NameArgument = Annotated[str, typer.Argument(help="The context's name.", show_default=False, autocompletion=_names)]


def register(app: typer.Typer) -> None:
    """Register this module's commands on ``app``."""
    app.add_typer(_context, name="context", no_args_is_help=True)


@_context.command()
def create(
    name: NewNameArgument,
    cluster: Annotated[str, typer.Option(help="The cluster's name.", show_default=False)] = "",
    zookeeper: Annotated[str, typer.Option(help="Its ZooKeeper, host:port,...", show_default=False)] = "",
    address: Annotated[str, typer.Option(help="The address of its Ray, host:port.", show_default=False)] = "",
    directory: Annotated[str, typer.Option("--dir", help="Its directory.", show_default=False)] = "",
    tls_authority: Annotated[
        str, typer.Option(help="PEM file: whom its servers' certificates are from.", show_default=False)
    ] = "",
    tls_certificate: Annotated[str, typer.Option(help="PEM file: who you are.", show_default=False)] = "",
    tls_key: Annotated[str, typer.Option(help="Its key's file.", show_default=False)] = "",
    token_file: Annotated[str, typer.Option(help="File with a token that says it.", show_default=False)] = "",
    zookeeper_auth_file: Annotated[
        str,
        typer.Option("--zookeeper-auth", help="File with a name and password for ZooKeeper.", show_default=False),
    ] = "",
) -> None:
    """Make a context. Nothing is asked whether there is such a cluster."""
    paths = tls_authority, tls_certificate, tls_key, token_file, zookeeper_auth_file
    files = [os.path.abspath(each) if each else "" for each in paths]
    found = os.path.abspath(directory) if directory else ""
    with changed(config_file()) as contexts:
        contexts.create(name, Context(cluster, zookeeper, address, found, *files))
    typer.echo(f"context {name} is made; use it: waltz context use {name}")


@_context.command()
def use(
    name: Annotated[
        str, typer.Argument(help="The context's name; - for none.", show_default=False, autocompletion=_names)
    ],
) -> None:
    """Let a context say from now on which cluster is meant, where neither options nor WALTZ_* variables do."""
    with changed(config_file()) as contexts:
        if name != "-":
            contexts.get(name)
        contexts.current = "" if name == "-" else name
    typer.echo("no context is in use" if name == "-" else f"context {name} is in use")


@_context.command("list")
def list_contexts(as_json: JsonOption = False) -> None:
    """List the contexts."""
    contexts = read(config_file())
    if as_json:
        print_data([{"name": n, "current": n == contexts.current} | asdict(c) for n, c in contexts.named.items()])
        return
    table = table_of("in use", "context", "cluster", "zookeeper", "address", "dir")
    for name, each in contexts.named.items():
        values = (each.cluster, each.zookeeper, each.address, each.dir)
        table.add_row("*" if name == contexts.current else "", name, *(value or "-" for value in values))
    console().print(table)


@_context.command()
def show(
    name: Annotated[
        str, typer.Argument(help="Its name; without one, that in use.", show_default=False, autocompletion=_names)
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Show a context."""
    contexts = read(config_file())
    name = name or contexts.current
    if not name:
        typer.echo("no context is in use", err=True)
        raise typer.Exit(1)
    found = asdict(contexts.get(name))
    if as_json:
        print_data({"name": name, "current": name == contexts.current} | found)
        return
    for key, value in ({"context": name} | found).items():
        if value:
            typer.echo(f"{key:<20} {value}")


@_context.command()
def delete(name: NameArgument) -> None:
    """Delete a context. The cluster is not touched."""
    with changed(config_file()) as contexts:
        contexts.delete(name)
    typer.echo(f"context {name} is gone")
