"""The options by which ``load`` and ``feed`` find a cluster, and a client for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from waltz_ray.client.client import WaltzClient
    from waltz_ray.config import ClientConfig

__all__ = ["ZooKeeperOption", "open_client"]

ZooKeeperOption = Annotated[
    str,
    typer.Option("--zookeeper", help="host:port,... with --cluster: no Ray is needed. \\[default: $WALTZ_ZOOKEEPER]"),
]


def open_client(
    directory: str, cluster: str, address: str, zookeeper: str, config: ClientConfig | None = None
) -> WaltzClient:
    """A client of the cluster that is meant, as ``waltz_ray.connect`` gives it."""
    from waltz_ray.connecting import connect

    return connect(cluster, config=config, zookeeper=zookeeper, directory=directory, address=address)
