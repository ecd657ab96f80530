"""``waltz log``: what the cluster's actors have logged, merged."""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waltz_ray.cli.common import AddressOption, ClusterOption, DirOption, JsonOption, print_item
from waltz_ray.cli.moments import MOMENT_HELP, moment
from waltz_ray.errors import InvalidInput

if TYPE_CHECKING:
    from waltz_ray.runtime.log_lines import LogEvent

__all__ = ["Wanted", "following", "register", "shown_event"]

_LOOK_S = 1.0
_LEVELS = ("debug", "info", "warning", "error", "critical")
_ACTOR = re.compile(r"[a-z-]+(/\d+)?")


def register(app: typer.Typer) -> None:
    """Register this module's command on ``app``."""
    app.command()(log)


def log(
    actor: Annotated[
        list[str] | None,
        typer.Option(help="replica/0, or replica for all of them; may be repeated.", show_default=False),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", help="What is about this one of the cluster's; may be repeated."),
    ] = None,
    level: Annotated[str, typer.Option(help="Nothing below: debug, info, warning, error, critical.")] = "info",
    since: Annotated[str, typer.Option(help=f"Nothing before: {MOMENT_HELP}.", show_default=False)] = "",
    limit: Annotated[int | None, typer.Option(min=0, help="Only the last so many there are.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new ones until Ctrl-C.")] = False,
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    as_json: JsonOption = False,
) -> None:
    """Print what the cluster's actors have logged, on all nodes of its Ray, in the order of time: a line each.

    Also of actors that have died. With --json a line of JSON each. Exit code 1 if a node does not answer: its part is
    missing then.
    """
    from waltz_ray.actors.actor_log import ActorLogs
    from waltz_ray.finding.find import find_on_ray

    begin_ms = moment("--since", since).timestamp() * 1000 if since else 0.0
    wanted = Wanted(_actors(actor or []), frozenset(partition or ()), _severity(level), begin_ms)
    name, _ = find_on_ray(cluster, directory, address)
    logs = ActorLogs(name)
    try:
        _print(wanted.last(logs.new(), limit), as_json)
        for node in sorted(logs.silent):
            typer.echo(f"waltz: the node {node} does not answer, its logs are missing", err=True)
        if follow:
            with suppress(KeyboardInterrupt):
                for events in following(logs.new, time.sleep):
                    _print(wanted.of(events), as_json)
    except BrokenPipeError:  # whoever read this has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the interpreter's last flush
    if logs.silent:
        raise typer.Exit(1)


class Wanted:
    """Which events are shown; no actors, no partitions: of all."""

    def __init__(self, actors: frozenset[str], partitions: frozenset[int], severity: int, begin_ms: float) -> None:
        self._actors, self._partitions = actors, partitions
        self._severity, self._begin_ms = severity, begin_ms

    def of(self, events: Iterable[LogEvent]) -> Iterator[LogEvent]:
        """In the order in which they come."""
        return filter(self._shows, events)

    def last(self, events: Iterable[LogEvent], most: int | None) -> Iterable[LogEvent]:
        """The last ``most`` of them, None: all."""
        return deque(self.of(events), most)

    def _shows(self, event: LogEvent) -> bool:
        kind = event.actor.partition("/")[0]
        return (
            event.at_ms >= self._begin_ms
            and event.severity >= self._severity
            and (not self._actors or event.actor in self._actors or kind in self._actors)
            and (not self._partitions or event.partition in self._partitions)
        )


def following(
    new: Callable[[], list[LogEvent]], sleep: Callable[[float], None] = time.sleep
) -> Iterator[list[LogEvent]]:
    """What is new, again and again. Within a look it is in the order of time; a node that is late comes later."""
    while True:
        sleep(_LOOK_S)
        yield new()


def shown_event(event: LogEvent) -> str:
    """One line for people: the time in the local zone, the level, the actor, what happened."""
    when = datetime.fromtimestamp(event.at_ms / 1000).astimezone()
    stamp = f"{when:%Y-%m-%d %H:%M:%S}.{event.at_ms % 1000:03}"
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in event.text)
    return f"{stamp} {event.level:<7} {event.actor:<15} {text}"


def _print(events: Iterable[LogEvent], as_json: bool) -> None:
    for event in events:
        if as_json:
            print_item(_as_object(event))
        else:
            print(shown_event(event))
    sys.stdout.flush()


def _as_object(event: LogEvent) -> dict[str, Any]:
    return {
        "at_ms": event.at_ms,
        "level": event.level.lower(),
        "actor": event.actor,
        "partition": event.partition,
        "logger": event.logger,
        "text": event.text,
    }


def _actors(texts: Iterable[str]) -> frozenset[str]:
    for text in texts:
        if not _ACTOR.fullmatch(text):
            raise InvalidInput(f"--actor takes one as waltz status names it, as replica/0, or a kind, not {text!r}")
    return frozenset(texts)


def _severity(level: str) -> int:
    if level not in _LEVELS:
        raise InvalidInput(f"--level is one of {', '.join(_LEVELS)}, not {level!r}")
    return int(logging.getLevelName(level.upper()))
