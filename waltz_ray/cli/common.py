"""What the commands share: finding the cluster, progress, JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from waltz_ray.errors import InvalidInput

if TYPE_CHECKING:
    from waltz_ray.finding.find import FoundCluster

__all__ = [
    "AddressOption",
    "ClusterOption",
    "DirOption",
    "JsonOption",
    "YesOption",
    "confirmed",
    "find",
    "print_json",
    "progress_line",
    "table_of",
]

DirOption = Annotated[str, typer.Option("--dir", help="The cluster's directory. \\[default: $WALTZ_DIR]")]
ClusterOption = Annotated[str, typer.Option("--cluster", help="The cluster's name. \\[default: $WALTZ_CLUSTER]")]
AddressOption = Annotated[
    str, typer.Option("--address", help="Address of its Ray, host:port or auto. \\[default: $RAY_ADDRESS]")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def confirmed(question: str, yes: bool) -> None:
    """Go on only with ``yes``, or if a person at a terminal says so, else exit with 1. InvalidInput: nobody to ask."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidInput("nothing was changed: there is no terminal on which to ask; say it with --yes")
    if not typer.confirm(question, err=True):
        typer.echo("nothing was changed", err=True)
        raise typer.Exit(1)


def find(directory: str = "", name: str = "", address: str = "") -> FoundCluster:
    """The running cluster that is meant; ClusterNotFound says what to give."""
    from waltz_ray.finding.find import find_cluster

    return find_cluster(name, directory, address)


def print_json(value: Any) -> None:
    """On stdout, for programs."""
    print(json.dumps(value, indent=2))


def table_of(*names: str) -> Table:
    """A table whose cells go on in a further line where the terminal is narrow, and are never cut."""
    table = Table()
    for name in names:
        table.add_column(name, overflow="fold")
    return table


@contextmanager
def progress_line(quiet: bool) -> Iterator[Callable[[str], None]]:
    """A function that shows what is going on: one changing line on a terminal, else a line each, always on stderr."""
    console = Console(stderr=True)
    if quiet:
        yield lambda text: None
    elif console.is_terminal:
        with console.status("") as line:
            yield line.update
    else:
        yield lambda text: print(text, file=sys.stderr, flush=True)
