"""The options by which ``load`` and ``feed`` find a cluster, and a client for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from waltz_ray.protocol.spaces import DEFAULT_SPACE

if TYPE_CHECKING:
    from waltz_ray.client.client import WaltzClient
    from waltz_ray.config import ClientConfig

__all__ = ["SpaceOption", "ZooKeeperOption", "open_client"]

ZooKeeperOption = Annotated[
    str,
    typer.Option("--zookeeper", help="host:port,... with --cluster: no Ray is needed. \\[default: $WALTZ_ZOOKEEPER]"),
]

SpaceOption = Annotated[str, typer.Option("--space", help="Whose partitions, numbered from 0; see waltz space list.")]


def open_client(
    directory: str,
    cluster: str,
    address: str,
    zookeeper: str,
    config: ClientConfig | None = None,
    space: str = DEFAULT_SPACE,
) -> WaltzClient:
    """A client of the cluster that is meant, as ``waltz_ray.connect`` gives it."""
    from waltz_ray.connecting import connect

    return connect(cluster, config=config, zookeeper=zookeeper, directory=directory, address=address, space=space)
