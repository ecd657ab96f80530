"""What the commands share: finding the cluster, progress, JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console

from waltz_ray import cluster_file
from waltz_ray.cluster_file import ClusterFile
from waltz_ray.errors import InvalidInput

__all__ = [
    "AddressOption",
    "ClusterOption",
    "DirOption",
    "JsonOption",
    "find",
    "find_name",
    "print_json",
    "progress_line",
]

DirOption = Annotated[str, typer.Option("--dir", help="The cluster's directory.", show_default=False)]
ClusterOption = Annotated[str, typer.Option("--cluster", help="The cluster's name.", show_default=False)]
AddressOption = Annotated[
    str, typer.Option("--address", help="Ray's address, host:port or auto.", show_default=False, envvar="RAY_ADDRESS")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def find(directory: str = "", name: str = "", address: str = "") -> ClusterFile:
    """The running cluster that is meant; ClusterNotFound says what to give.

    By ``directory``; by ``name`` and Ray's ``address``; or, with neither, the only one that runs on this machine.
    """
    if directory or not address:
        return cluster_file.find_cluster(directory, name)
    from waltz_ray.bring_up import cluster_status

    name, joined = find_name("", name, address)
    view = cluster_status(name)
    config = view.config
    assert config is not None  # the manager knows both
    assert view.zookeeper is not None
    return ClusterFile(
        name,
        config.directory,
        config.partitions,
        config.replicas,
        config.servers,
        address=joined,
        zookeeper=view.zookeeper,
        embedded=not config.zookeeper,
    )


def find_name(directory: str, name: str, address: str) -> tuple[str, str]:
    """(name, Ray's address) of the running cluster that is meant, as by ``find``, but nobody of it has to answer.

    This process has joined the Ray then.
    """
    from waltz_ray.actors.supervision import cluster_names
    from waltz_ray.client import ray_lookup

    if directory or not address:
        found = cluster_file.find_cluster(directory, name)
        return found.name, ray_lookup.join(found.address)
    joined = ray_lookup.join(address)
    if not name:
        names = cluster_names()
        if len(names) != 1:
            raise InvalidInput(f"the Ray at {joined} has clusters {names or 'none'}; say which with --cluster")
        name = names[0]
    return name, joined


def print_json(value: Any) -> None:
    """On stdout, for programs."""
    print(json.dumps(value, indent=2))


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
