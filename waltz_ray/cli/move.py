"""``waltz move`` and ``waltz rebalance``: where partitions are served, and on which replicas they are."""

from __future__ import annotations

from typing import Annotated

import typer

from waltz_ray.cli.common import (
    AddressOption,
    ClusterOption,
    DirOption,
    JsonOption,
    print_data,
    progress_line,
)
from waltz_ray.cli.connecting import ZooKeeperOption
from waltz_ray.cli.members import NoWaitOption, TimeoutOption, open_members, show_moves
from waltz_ray.errors import InvalidInput

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Register this module's commands on ``app``."""
    app.command()(move)
    app.command()(rebalance)


def move(
    partitions: Annotated[
        list[int], typer.Option("--partition", "-p", help="The cluster's number of one; may be repeated.")
    ],
    to: Annotated[str, typer.Option(help="server/N: have it served there whenever that server is there.")] = "",
    replicas: Annotated[str, typer.Option(help="1,4,5: have it on exactly these replicas.")] = "",
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = 3600.0,
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
) -> None:
    """Move partitions to another server, or to other replicas, one replica at a time; the cluster goes on meanwhile.

    Interrupted, it goes on; asked again, it is waited for again.
    """
    if bool(to) == bool(replicas):
        raise InvalidInput("say where to: a server, with --to server/1, or replicas, with --replicas 1,4,5")
    with open_members(directory, cluster, address, zookeeper) as members, progress_line(quiet=False) as progress:
        if to:
            server = _number_of(to)
            members.prefer(partitions, server)
            if not no_wait:
                members.wait_until_served(partitions, server, progress, timeout)
            where = f"server {server}"
        else:
            numbers = _numbers(replicas)
            members.move(partitions, numbers)
            if not no_wait:
                members.wait_until_on(partitions, numbers, progress, timeout)
            where = f"replicas {', '.join(map(str, sorted(numbers)))}"
        listed = ", ".join(map(str, partitions))
        done = "is on its way to" if no_wait else "is on" if replicas else "is served by"
        typer.echo(f"partition {listed} of cluster {members.cluster} {done} {where}")


def rebalance(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would move.")] = False,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = 3600.0,
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
    as_json: JsonOption = False,
) -> None:
    """Spread partitions over zones and nodes, and evenly over the replicas; as few as possible move.

    Interrupted, it goes on; asked again, it is waited for again.
    """
    with open_members(directory, cluster, address, zookeeper) as members, progress_line(as_json) as progress:
        before = members.sets()  # partitions that are made from now on may be in the plan, too
        plan = members.rebalanced() if dry_run else members.rebalance()
        if as_json:
            print_data({str(p): {"from": sorted(before.get(p, ())), "to": sorted(one)} for p, one in plan.items()})
        elif plan:
            show_moves(before, plan)
        if not dry_run and not no_wait:
            members.wait_until_moved({**before, **plan}, progress, timeout)
        if not as_json:
            told = f"{len(plan)} partitions " + ("would move" if dry_run else "move" if no_wait else "were moved")
            typer.echo(f"cluster {members.cluster}: {told if plan else 'nothing has to move'}")


def _number_of(to: str) -> int:
    kind, _, number = to.partition("/")
    if kind != "server" or not number.isdecimal():
        raise InvalidInput(f"--to takes a server, as server/1, not {to!r}")
    return int(number)


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise InvalidInput(f"--replicas takes numbers with commas between, as 1,4,5, not {text!r}")
    return [int(part) for part in parts]
