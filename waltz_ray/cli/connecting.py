"""The options by which ``load`` and ``feed`` find a cluster, and a client for it."""

from __future__ import annotations

from typing import Annotated

import typer

from waltz_ray.cli.common import find
from waltz_ray.client.client import WaltzClient
from waltz_ray.config import ClientConfig
from waltz_ray.errors import InvalidInput

__all__ = ["ZooKeeperOption", "open_client"]

ZooKeeperOption = Annotated[
    str, typer.Option("--zookeeper", help="host:port,... with --cluster: no Ray is needed.", show_default=False)
]


def open_client(
    directory: str, cluster: str, address: str, zookeeper: str, config: ClientConfig | None = None
) -> WaltzClient:
    """A client of the cluster that is meant (``common.find``), or of ``cluster`` in ``zookeeper``."""
    from waltz_ray.connect import connect

    if zookeeper:
        if not cluster:
            raise InvalidInput("--zookeeper finds a cluster only by its name; give --cluster, too")
        return connect(cluster, config=config, zookeeper=zookeeper)
    found = find(directory, cluster, address)
    return connect(found.name, config=config, zookeeper=found.zookeeper)
