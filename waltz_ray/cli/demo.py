"""The command ``waltz demo``."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from waltz_ray.cli.long_command import at_work, check_writable, write_json

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Register this module's command on ``app``."""
    app.command()(demo)


def demo(
    directory: Annotated[
        str, typer.Option("--dir", help="Where to store everything; kept. \\[default: temporary]")
    ] = "",
    flights: Annotated[int, typer.Option(min=1, help="How many of the 336,776 flights.")] = 336_776,
    json_file: Annotated[str, typer.Option("--json", help="Write the result to this file (- = stdout).")] = "",
) -> None:
    """A year of flights through a cluster of its own: two failures, SQLite, Spark, and everything compared."""
    from waltz_ray.demo.report import print_result
    from waltz_ray.demo.runner import run_demo

    check_writable(json_file)
    kept = bool(directory)
    place = Path(os.path.realpath(directory or tempfile.mkdtemp(prefix="waltz-demo-")))
    place.mkdir(parents=True, exist_ok=True)
    ok = False
    begin = time.monotonic()
    console = Console(stderr=json_file == "-")
    try:
        with at_work(place, "demo", "flights committed", flights, console) as screen:
            result = run_demo(place, flights, screen)
        ok = result.ok
        result.seconds["altogether"] = time.monotonic() - begin
        print_result(result, console)
        write_json(json_file, result.as_json())
    finally:
        if not kept and ok:
            shutil.rmtree(place)
        else:
            console.print(f"The data is in {place}", highlight=False, soft_wrap=True)
    if not ok:
        raise typer.Exit(1)
