"""The command ``waltz doctor``: every problem of a cluster, and what to do about each."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime, timedelta, timezone

import typer
from rich.padding import Padding
from rich.text import Text

from waltz_ray.cli.common import AddressOption, ClusterOption, DirOption, JsonOption, console, print_data
from waltz_ray.cli.status import look
from waltz_ray.config import SECTIONS, ClusterConfig
from waltz_ray.errors import CoordinationError, WaltzError
from waltz_ray.runtime.findings import Finding, examine
from waltz_ray.runtime.process import about_process
from waltz_ray.runtime.status import ClusterStatus

__all__ = ["register"]

_HANDLES = 512  # of a server or a replica, beside those of its partitions
_HANDLES_OF_A_PARTITION = 3
_SOON = timedelta(days=14)  # before a certificate ends, for somebody to make the next one


def register(app: typer.Typer) -> None:
    """Register this module's command on ``app``."""
    app.command()(doctor)


def doctor(
    directory: DirOption = "", cluster: ClusterOption = "", address: AddressOption = "", as_json: JsonOption = False
) -> None:
    """Name every problem of a cluster and what to do about it, within 10 seconds whoever hangs.

    Looked at are ZooKeeper, servers, replicas, sessions and their quorums, disks and their checks, clocks, versions,
    open files and layers; of this machine Java, limits, and until when its certificates are good.

    Exit code 0: no problem; 1: problems; 2: the cluster could not be looked at.
    """
    from waltz_ray.finding.find import find_on_ray

    try:
        name, _ = find_on_ray(cluster, directory, address)
        view = look(name)
    except WaltzError as error:
        print("waltz: " + " ".join(str(error).split()), file=sys.stderr)
        raise typer.Exit(2) from error
    found = [*examine(view), *_here(view)]
    if as_json:
        print_data({"cluster": view.cluster, "problems": [asdict(finding) for finding in found]})
    else:
        _show(view, found)
    if found:
        raise typer.Exit(1)


def _show(view: ClusterStatus, found: list[Finding]) -> None:
    screen = console()
    for finding in found:
        screen.print(Text(str(finding), style="yellow", overflow="fold"))
        screen.print(Padding(Text(finding.remedy, overflow="fold"), (0, 0, 0, 4), expand=False))
    count = f"{len(view.partitions)} partitions, {len(view.replicas)} replicas, {len(view.servers)} servers"
    result = f"{len(found)} problem{'s' if len(found) > 1 else ''}" if found else "no problem"
    screen.print(Text(f"cluster {view.cluster}: {result} ({count})", overflow="fold"))


def _here(view: ClusterStatus) -> list[Finding]:
    """Of this machine: what a process of the cluster that is started here would meet."""
    found = []
    if view.zookeeper_server is not None:
        from waltz_ray.coordination.java import find_java

        try:
            find_java()
        except CoordinationError as error:
            remedy = "install it: the embedded ZooKeeper cannot be started again without it"
            found.append(Finding("this machine", str(error), remedy))
    handles, needed = resource.getrlimit(resource.RLIMIT_NOFILE)[0], _handles_needed(len(view.partitions))
    if handles < needed:
        problem = f"a process may open {handles} files; a replica of {len(view.partitions)} partitions needs {needed}"
        found.append(Finding("this machine", problem, f"raise the limit before waltz up: ulimit -n {2 * needed}"))
    if view.config is not None:
        found += _certificates(view.config)
    own, here = view.manager.process, about_process()
    if own is not None and own.version != here.version:
        problem = f"the waltz that says this is version {here.version}, the cluster's manager {own.version}"
        found.append(Finding("this machine", problem, "use the cluster's version, or finish its upgrade"))
    return found


def _certificates(config: ClusterConfig) -> Iterator[Finding]:
    """Who is connected stays so when one has ended, so nothing else tells before somebody connects anew."""
    from waltz_ray.security.certificates import good_until

    now = datetime.now(timezone.utc)
    for path in dict.fromkeys(getattr(getattr(config, section), "tls_certificate", "") for section in SECTIONS):
        try:
            until = good_until(path) if path else None
        except (OSError, ValueError):
            continue  # it is another node's: who cannot use it there says so
        if until is not None and until < now + _SOON:
            problem = f"the certificate {path} {'has ended' if until < now else 'ends'} on {until:%Y-%m-%d %H:%M} UTC"
            remedy = "put the next one, and its key, in its place on every node: they are read again at once"
            yield Finding("this machine", problem, remedy)


def _handles_needed(partitions: int) -> int:
    return _HANDLES + _HANDLES_OF_A_PARTITION * partitions
