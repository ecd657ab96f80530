"""``waltz recover``: a cluster whose ZooKeeper has lost everything comes back from its replicas' disks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waltz_ray.cli.common import JsonOption, YesOption, confirmed, print_data, progress_line
from waltz_ray.cli.inspect import storage_directories
from waltz_ray.errors import InvalidInput
from waltz_ray.interruption import interruptible

if TYPE_CHECKING:
    from waltz_ray.backup.recovery import RecoveryPlan
    from waltz_ray.protocol.disaster import Belief, Undecided

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Register this module's command on ``app``."""
    app.command()(recover)


def recover(
    directories: Annotated[
        list[str], typer.Argument(metavar="DIR...", help="The replicas' directories, or the cluster's that has them.")
    ],
    from_replicas: Annotated[
        bool, typer.Option("--from-replicas", help="From the disks of the replicas: there is no other way.")
    ] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Do it; without it only what would be done is shown.")] = False,
    accept_data_loss: Annotated[
        bool, typer.Option("--accept-data-loss", help="Go on with what there is; which IDs may be lost is named.")
    ] = False,
    yes: YesOption = False,
    into: Annotated[str, typer.Option(help="The cluster's directory. \\[default: where the replicas' are]")] = "",
    as_json: JsonOption = False,
) -> None:
    """Rebuild what ZooKeeper had of a cluster from the disks of its replicas; then: waltz up.

    Says of each partition what its log is and why. Exit code 1, and nothing is changed, if of some partition no quorum
    is here, or two disks contradict each other. Ended in its midst, it is given again.
    """
    from waltz_ray.backup.recovery import apply_recovery, plan_recovery
    from waltz_ray.cluster_directory import one_at_a_time

    if not from_replicas:
        raise InvalidInput("say from what: waltz recover --from-replicas DIR...")
    found = [each for directory in directories for each in storage_directories(directory)]
    target = into or _common_parent(found)
    with progress_line(as_json) as progress:
        plan = plan_recovery(found, accept_data_loss, progress)
    if not as_json:
        _show(plan)
    done = apply and not plan.undecided
    if done:
        lost = sum(bool(verdict.lost) for verdict in plan.decided.values())
        with_loss = f", and records of {lost} of its partitions are given up" if lost else ""
        confirmed(f"cluster {plan.name} is from now on what was told of these disks{with_loss}", yes)
        if not Path(target).is_dir():
            raise InvalidInput(f"{target} is not a directory; say with --into which was the cluster's")
        try:
            with interruptible(), progress_line(as_json) as progress, one_at_a_time(target, progress):
                apply_recovery(plan, target, progress)
        except KeyboardInterrupt:
            typer.echo("waltz: interrupted: give the same command again, before waltz up", err=True)
            raise
    if as_json:
        print_data(_plain(plan, done))
    elif done:
        typer.echo(f"cluster {plan.name} can be brought up again: waltz up --dir {target}")
    elif not plan.undecided:
        typer.echo("nothing was changed; to do it: the same command with --apply")
    if plan.undecided:
        raise typer.Exit(1)


def _common_parent(found: list[str]) -> str:
    parents = {str(Path(os.path.realpath(each)).parent) for each in found}
    if len(parents) != 1:
        raise InvalidInput("the replicas are in different directories; say which is the cluster's, with --into")
    return parents.pop()


def _show(plan: RecoveryPlan) -> None:
    typer.echo(f"cluster {plan.name}, as {plan.remembered_by} remembers it")
    for line in plan.unread:
        typer.echo(line, err=True)
    for p, verdict in sorted(plan.verdicts.items()):
        typer.echo(f"partition {p}: {_told(verdict)}")


def _told(verdict: Belief | Undecided) -> str:
    from waltz_ray.protocol.disaster import Undecided

    if isinstance(verdict, Undecided):
        return f"undecided: {verdict.why}"
    lost = ", ".join(_range(first, last) for first, last in verdict.lost)
    return f"ends with {verdict.x}: {verdict.why}" + (f"; LOST, or perhaps lost: {lost}" if lost else "")


def _range(first: int, last: int | None) -> str:
    return f"{first} and whatever came after it" if last is None else f"{first} to {last}"


def _plain(plan: RecoveryPlan, done: bool) -> dict[str, Any]:
    return {
        "cluster": plan.name,
        "remembered_by": plan.remembered_by,
        "done": done,
        "unread": list(plan.unread),
        "undecided": {str(p): why for p, why in plan.undecided.items()},
        "partitions": {
            str(p): {
                "last_id": verdict.x,
                "session": verdict.roster.session_id,
                "keep": {str(r): end for r, end in verdict.keep.items()},
                "why": verdict.why,
                "lost": [list(each) for each in verdict.lost],
            }
            for p, verdict in plan.decided.items()
        },
    }
