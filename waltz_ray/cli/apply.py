"""``waltz apply``: a cluster as its deployment file says."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waltz_ray.cli.common import JsonOption, print_data, progress_line

if TYPE_CHECKING:
    from waltz_ray.deployment import Change

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Register this module's commands on ``app``."""
    app.command()(apply)


def apply(
    config: Annotated[str, typer.Option("--config", help="The deployment file (docs/deployment.md).")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Have a cluster as its file says: made, started, or changed while it runs. Run again, it changes nothing.

    Exit code 1 if something of it cannot be done; then nothing is.
    """
    from waltz_ray import deployment
    from waltz_ray.deployment import Verb

    wanted = deployment.read(config)
    if dry_run:
        changes = deployment.compare(wanted)
        if as_json:
            print_data({"cluster": wanted.cluster.name, "changes": [_fields(each) for each in changes]})
        else:
            _show(changes, wanted.cluster.name)
        raise typer.Exit(1 if any(each.verb is Verb.REFUSE for each in changes) else 0)
    with progress_line(as_json) as progress:
        applied = deployment.apply(wanted, progress)
    if as_json:
        print_data(asdict(applied.cluster) | {"changes": [_fields(each) for each in applied.changes]})
        return
    for warning in applied.cluster.warnings:
        typer.echo(f"warning: {warning}", err=True)
    _show(applied.changes, applied.cluster.name)
    running = applied.cluster
    typer.echo(
        f"cluster {running.name} is up: {running.partitions} partitions, {running.replicas} replicas, "
        f"{running.servers} servers in {running.directory}"
    )
    typer.echo(f"Ray {running.address}   ZooKeeper {running.zookeeper}   dashboard {running.dashboard or '-'}")


def _fields(change: Change) -> dict[str, Any]:
    return asdict(change) | {"verb": change.verb.value}


_SIGNS = {"add": "+", "change": "~", "refuse": "!", "note": "."}


def _show(changes: Any, cluster: str) -> None:
    if not any(each.verb.value != "note" for each in changes):
        typer.echo(f"cluster {cluster} is as the file says: nothing to change")
    for each in changes:
        verb, why = each.verb.value, f"  ({each.why})" if each.why else ""
        if verb == "add":
            what = f"{each.what}: {_text(each.after)}"
        elif verb == "note":
            what = each.what
        else:
            what = f"{each.what}: {_text(each.before)} -> {_text(each.after)}"
        typer.echo(f"{_SIGNS[verb]} {what}{why}")


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {each}" for key, each in value.items() if each is not None)
    return "none" if value is None else str(value)
