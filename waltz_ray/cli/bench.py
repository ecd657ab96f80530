"""``waltz bench``: the benchmark suite, which is a package of its own (``waltz_bench``, extra ``bench``)."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from waltz_ray.cli.common import JsonOption, print_json, progress_line
from waltz_ray.errors import ConfigError, InvalidInput

__all__ = ["register"]

RunsOption = Annotated[int, typer.Option(min=1, help="Runs of each case, in turn; the medians are shown.")]
SecondsOption = Annotated[float, typer.Option(min=0.05, help="Measured seconds of one run.")]
DirOption = Annotated[
    str, typer.Option("--dir", help="Work in a new directory below this one. [default: temporary]", show_default=False)
]
ClusterOption = Annotated[
    str, typer.Option("--cluster", help="Use this running cluster, not one of its own.", show_default=False)
]

_bench = typer.Typer(help="Measure the log, and compare it with others. Work is done on a cluster of its own.")
_compare = typer.Typer(help="The same work by waltz_ray and by another system, in turn, on this machine.")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(_bench, name="bench", no_args_is_help=True)


_bench.add_typer(_compare, name="compare", no_args_is_help=True)


def _part(module: str, *needs: str) -> Any:
    """A module of the suite. ConfigError, saying how to get it, if it or what it needs is not installed."""
    try:
        for each in needs:
            importlib.import_module(each)
        return importlib.import_module(f"waltz_bench.{module}")
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("waltz_ray"):
            raise
        raise ConfigError(
            f"waltz bench needs {error.name}, which is not installed; in the source tree: pip install -e '.[bench]'"
        ) from error


def _run(directory: str, as_json: bool, action: Callable[[Path, Callable[[str], None]], dict[str, Any]]) -> None:
    """``action`` in a directory that is gone afterwards; what it found is printed."""
    scratch, report = _part("cluster"), _part("report")
    with progress_line(as_json) as progress, scratch.scratch_directory(directory) as place:
        found = action(place, progress)
    if as_json:
        print_json(found)
    else:
        report.show(found, Console())


def _numbers(text: str, option: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise InvalidInput(f"{option} must be whole numbers with commas between them, not {text!r}") from error
    if not all(number >= 0 for number in numbers):
        raise InvalidInput(f"{option} must not be negative: {text!r}")
    return numbers


@_compare.command("nats")
def compare_nats(
    directory: DirOption = "",
    cluster: ClusterOption = "",
    runs: RunsOption = 5,
    seconds: SecondsOption = 2.0,
    size: Annotated[int, typer.Option(min=1, help="Bytes of a record.")] = 1024,
    clients: Annotated[int, typer.Option(min=1, help="Clients of the case with many.")] = 64,
    proof: Annotated[int, typer.Option(min=0, help="Appends while syncs are counted, 0 = do not count.")] = 200,
    only: Annotated[list[str] | None, typer.Option("--case", help="Only this case; may be repeated.")] = None,
    as_json: JsonOption = False,
) -> None:
    """NATS JetStream: three servers, three replicas, every message synced before its acknowledgement."""
    part = _part("compare", "nats", "uvloop")
    cases = tuple(only) if only else part.CASES
    options = part.CompareOptions(runs, seconds, size_bytes=size, clients=clients, proof_appends=proof, cases=cases)
    _run(directory, as_json, lambda place, progress: part.compare_nats(place, options, cluster, progress))


@_bench.command()
def append(
    directory: DirOption = "",
    cluster: ClusterOption = "",
    runs: RunsOption = 5,
    seconds: SecondsOption = 2.0,
    clients: Annotated[str, typer.Option(help="Clients; those of several have one append each.")] = "1,64",
    outstanding: Annotated[int, typer.Option(min=1, help="Records outstanding of one client.")] = 6400,
    sizes: Annotated[str, typer.Option(help="Bytes of a record.")] = "1024",
    partitions: Annotated[str, typer.Option(help="Partitions the load is spread over.")] = "1",
    locks: Annotated[str, typer.Option(help="none, unique, contended.")] = "none",
    many: Annotated[str, typer.Option(help="Records of an append_many; 0 = single appends.")] = "0,100",
    as_json: JsonOption = False,
) -> None:
    """Rate of appends: every combination of the options, which are lists with commas."""
    part = _part("appending")
    options = part.AppendOptions(
        runs,
        seconds,
        clients=_numbers(clients, "--clients"),
        outstanding=outstanding,
        sizes_bytes=_numbers(sizes, "--sizes"),
        partitions=_numbers(partitions, "--partitions"),
        locks=tuple(locks.split(",")),
        many=_numbers(many, "--many"),
    )
    _run(directory, as_json, lambda place, progress: part.append(place, options, cluster, progress))


@_bench.command()
def latency(
    directory: DirOption = "",
    cluster: ClusterOption = "",
    runs: RunsOption = 5,
    seconds: SecondsOption = 2.0,
    sizes: Annotated[str, typer.Option(help="Bytes of a record.")] = "100,1024,10240",
    as_json: JsonOption = False,
) -> None:
    """Time of one append while nothing else is under way."""
    part = _part("appending")
    wanted = _numbers(sizes, "--sizes")
    _run(directory, as_json, lambda place, progress: part.latency(place, runs, seconds, wanted, cluster, progress))
