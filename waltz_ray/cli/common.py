"""What the commands share: finding the cluster, asking before something is lost, what they print and how."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from waltz_ray.errors import InvalidInput

if TYPE_CHECKING:
    from waltz_ray.finding.find import FoundCluster

__all__ = [
    "AddressOption",
    "ClusterOption",
    "DirOption",
    "DryRunOption",
    "JsonOption",
    "Output",
    "OutputOption",
    "YesOption",
    "choose_output",
    "confirmed",
    "console",
    "find",
    "print_data",
    "print_item",
    "progress_line",
    "table_of",
    "tell",
]

DirOption = Annotated[str, typer.Option("--dir", help="The cluster's directory. \\[default: $WALTZ_DIR]")]
ClusterOption = Annotated[str, typer.Option("--cluster", help="The cluster's name. \\[default: $WALTZ_CLUSTER]")]
AddressOption = Annotated[
    str, typer.Option("--address", help="Address of its Ray, host:port or auto. \\[default: $RAY_ADDRESS]")
]


class Output(str, Enum):
    """How a command's result is printed: for people, or for programs."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


JsonOption = Annotated[bool, typer.Option("--json", help="Short for --output json.")]
"""Of every command with a result, as ``as_json``. ``dressing.py`` adds ``--output``: then it says whether a program
reads the result, and ``print_data`` knows in which form."""

OutputOption = Annotated[
    Output | None,
    typer.Option("--output", "-o", help="table, json or yaml. \\[default: table]", show_default=False),
]

YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]

_PIPE_WIDTH = 4096
_output: ContextVar[Output] = ContextVar("output", default=Output.JSON)


def choose_output(output: Output | None, as_json: bool) -> bool:
    """What is meant by both options: whether a program reads the result. InvalidInput if they contradict each other."""
    if as_json and output not in (None, Output.JSON):
        raise InvalidInput(f"--json and --output {output.value} contradict each other; leave one out")
    _output.set(Output.YAML if output is Output.YAML else Output.JSON)
    return as_json or output in (Output.JSON, Output.YAML)


def confirmed(what: str, yes: bool, dry_run: bool = False) -> None:
    """Before ``what`` is done, which cannot be undone: go on with ``yes``, or if a person at a terminal says so.

    Else it exits: with 1 if that person does not want it; with 0, having said what would be done, of a ``dry_run``.
    InvalidInput if there is nobody to ask. In all these cases nothing is changed.
    """
    if dry_run:
        typer.echo(f"nothing was changed; without --dry-run: {what}")
        raise typer.Exit
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidInput(f"nothing was changed: {what}; there is no terminal on which to ask, so say it with --yes")
    if not typer.confirm(f"{what}. Go on?", err=True):
        typer.echo("nothing was changed", err=True)
        raise typer.Exit(1)


def find(directory: str = "", name: str = "", address: str = "") -> FoundCluster:
    """The running cluster that is meant; ClusterNotFound says what to give."""
    from waltz_ray.finding.find import find_cluster

    return find_cluster(name, directory, address)


def print_data(value: Any) -> None:
    """On stdout, for programs, as ``--output`` says."""
    if _output.get() is Output.YAML:
        print(_yaml(value), end="")
    else:
        print(json.dumps(value, indent=2))


def print_item(value: Any) -> None:
    """One of many on stdout, at once: a line of JSON, or a document of YAML."""
    if _output.get() is Output.YAML:
        print("---\n" + _yaml(value), end="", flush=True)
    else:
        print(json.dumps(value), flush=True)


def _yaml(value: Any) -> str:
    import yaml

    # by way of JSON: the same keys and values, and nothing that only Python reads
    values, letters = json.loads(json.dumps(value)), (sys.stdout.encoding or "").lower().startswith("utf")
    return str(yaml.safe_dump(values, sort_keys=False, allow_unicode=letters))


def plain(out: TextIO | None = None) -> bool:
    """Whether it is to be without colours and boxes: it goes into a pipe or a file, or NO_COLOR is set."""
    return bool(os.environ.get("NO_COLOR")) or not (out or sys.stdout).isatty()


def console() -> Console:
    """Stdout. Into a pipe or a file a line is as long as it is, unless COLUMNS says otherwise.

    What is in brackets, or between colons, is no markup: names and values of anybody are shown as they are.
    """
    piped = not sys.stdout.isatty() and not os.environ.get("COLUMNS")
    return Console(width=_PIPE_WIDTH if piped else None, markup=False, emoji=False)


def table_of(*names: str) -> Table:
    """A table whose cells go on in a further line where the terminal is narrow, and are never cut.

    Where it is ``plain`` it has no box, and its columns are two spaces apart.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0)) if plain() else Table()
    for name in names:
        table.add_column(name, overflow="fold")
    return table


@contextmanager
def progress_line(quiet: bool) -> Iterator[Callable[[str], None]]:
    """A function that shows what is going on: one changing line on a terminal, else a line each, always on stderr."""
    console = Console(stderr=True)
    if quiet:
        yield lambda text: None
    elif console.is_terminal:
        with console.status("") as line:
            yield lambda text: line.update(Text(text))  # a str would be markup, and a directory may have brackets
    else:
        yield tell


def tell(line: str) -> None:
    """A line of what is going on, on stderr. Where nobody reads it any more (``waltz up 2>&1 | head -1``), or its disk
    is full, what is being done goes on: it would else be left in its midst."""
    try:
        print(line, file=sys.stderr, flush=True)
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)  # else all that is written later, and Python's end, would fail, too
        os.dup2(nowhere, sys.stderr.fileno())
        os.close(nowhere)
    except OSError:
        return
