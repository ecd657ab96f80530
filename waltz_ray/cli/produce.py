"""``waltz produce``: records from stdin are appended."""

from __future__ import annotations

from typing import Annotated

import typer

from waltz_ray.cli.common import AddressOption, ClusterOption, DirOption, JsonOption
from waltz_ray.cli.connecting import SpaceOption, ZooKeeperOption
from waltz_ray.errors import InvalidInput
from waltz_ray.protocol.spaces import DEFAULT_SPACE

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Register this module's command on ``app``."""
    app.command()(produce)


def produce(
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", help="All into this one; else the key decides.", show_default=False),
    ] = None,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="Lines are objects: data or data_base64; key, header, lock: [name, key].")
    ] = False,
    null: Annotated[bool, typer.Option("--null", "-0", help="Records end with a zero byte, not with a line.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="All of stdin is one record.")] = False,
    key_separator: Annotated[
        str, typer.Option(help="What stands before this is a line's key; the line stays whole.", show_default=False)
    ] = "",
    header: Annotated[int, typer.Option(help="The header of records that have none.")] = 0,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Append as input comes; name bad records and leave them out.")
    ] = False,
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
    space: SpaceOption = DEFAULT_SPACE,
    as_json: JsonOption = False,
) -> None:
    """Append what comes on stdin: each line is a transaction, byte for byte, without the line's end.

    Stdin is read to its end first, and nothing is appended if a record is bad; with --skip-bad each is appended as it
    comes, as tail -f needs it. Exit code 1 if some are not in the log, or were left out; it is said how many are.
    """
    from waltz_ray.cli.produce_run import Production, run_production

    if jsonl + null + raw > 1:
        raise InvalidInput("--jsonl, --null and --raw say what a record is: give one of them")
    if key_separator and (jsonl or raw):
        raise InvalidInput("--key-separator is for lines; with --jsonl the key is in the object")
    separator = b"" if raw else b"\0" if null else b"\n"
    behind_key = key_separator.encode("utf-8", "surrogateescape")  # a byte that is no UTF-8 is what it was
    job = Production(partition, jsonl, separator, behind_key, header, skip_bad, as_json)
    if code := run_production(job, directory, cluster, address, zookeeper, space):
        raise typer.Exit(code)
