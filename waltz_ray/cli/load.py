"""``waltz load``: every row of a file becomes a transaction."""

from __future__ import annotations

from typing import Annotated

import typer

from waltz_ray.cli.common import AddressOption, ClusterOption, DirOption, JsonOption
from waltz_ray.cli.connecting import SpaceOption, ZooKeeperOption
from waltz_ray.cli.load_rows import Choices, NanRule
from waltz_ray.cli.load_source import Format
from waltz_ray.protocol.spaces import DEFAULT_SPACE

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Register this module's command on ``app``."""
    app.command()(load)


def load(
    file: Annotated[str, typer.Argument(help="A .csv, .jsonl or .parquet file; - is stdin.", show_default=False)],
    key: Annotated[str, typer.Option("--key", help="The column that decides partition and lock of a row.")],
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
    space: SpaceOption = DEFAULT_SPACE,
    header: Annotated[int, typer.Option(help="Header of every transaction, a signed 32-bit integer.")] = 0,
    form: Annotated[Format | None, typer.Option("--format", help="What FILE is, whatever its name.")] = None,
    types: Annotated[
        str, typer.Option(help="Of .csv cells: text, auto, or COLUMN=TYPE,... (text, number, int, float, bool).")
    ] = "text",
    nan: Annotated[NanRule, typer.Option(help="What becomes of NaN and infinity, which JSON does not have.")] = "error",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a load that was interrupted.")] = False,
    cursor: Annotated[
        str, typer.Option(help="The file that --resume needs; FILE.waltz-load, for stdin none.", show_default=False)
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Append every row of FILE as a transaction: its data is the row as JSON, partitioned and locked by its key.

    Values stay as they stand in the file. Rows with the same key go to the same partition, in the order of the file; a
    row without a key has the empty key. The file is read once before anything is appended, so a file with a row that
    cannot be loaded leaves the log as it was. What was interrupted goes on with --resume: every row exactly once.
    """
    from waltz_ray.cli.load_run import Job, run_job  # with the client, which `waltz --help` has no need of

    choices = Choices(key, types, nan)
    run_job(Job(file, form, choices, header, cursor, resume, as_json, space), directory, cluster, address, zookeeper)
