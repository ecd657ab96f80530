"""``waltz upgrade``: the processes of a running cluster are replaced by others, with the code that is installed now."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from waltz_ray.cli.common import (
    AddressOption,
    ClusterOption,
    DirOption,
    DryRunOption,
    JsonOption,
    find,
    print_data,
    progress_line,
)
from waltz_ray.errors import InvalidInput

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Register this module's command on ``app``."""
    app.command()(upgrade)


def upgrade(
    rolling: Annotated[
        bool, typer.Option("--rolling", help="One process at a time, while the cluster serves: there is no other way.")
    ] = False,
    dry_run: DryRunOption = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that one step may take.")] = 300.0,
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    as_json: JsonOption = False,
) -> None:
    """Start every process of the cluster again: servers, replicas, layers, the manager; each when all others serve.

    Before that, install the new version on all nodes. Interrupted, or stopped because something does not serve, the
    same command goes on with those that are left. ZooKeeper and Ray are not touched.
    """
    from waltz_ray.coordination.upgrade_store import UpgradeStore
    from waltz_ray.finding import ray_lookup
    from waltz_ray.members import Members
    from waltz_ray.upgrading import hands_of, upgrade_plan, upgrade_rolling

    if not rolling:
        raise InvalidInput("say how: waltz upgrade --rolling")
    found = find(directory, cluster, address)
    ray_lookup.join(found.ray)
    with Members(cluster, directory=directory, address=address) as members, progress_line(as_json) as progress:
        store, hands = UpgradeStore(members.zookeeper, members.cluster), hands_of(members)
        if dry_run:
            plan = upgrade_plan(store, hands)
            if as_json:
                print_data({"would_restart": plan})
            else:
                typer.echo(f"nothing was changed; without --dry-run, in this order: {', '.join(plan) or 'nothing'}")
            return
        done = upgrade_rolling(store, hands, progress, timeout)
    if as_json:
        print_data(asdict(done))
        return
    versions = ", ".join(f"{count} of version {version}" for version, count in sorted(done.versions.items()))
    typer.echo(f"cluster {members.cluster}: {len(done.restarted)} processes were started again; there are {versions}")
