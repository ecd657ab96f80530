"""``waltz certs make``: an authority and certificates for development."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from waltz_ray.cli.common import JsonOption, print_data

__all__ = ["register"]

_THIS_MACHINE = "localhost", "127.0.0.1", "::1"


def register(app: typer.Typer) -> None:
    """Register this module's commands on ``app``."""
    certs = typer.Typer(name="certs", help="Certificates for development.", no_args_is_help=True)
    certs.callback()(_group)
    certs.command("make")(make)
    app.add_typer(certs)


def _group() -> None:
    pass


def make(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="Where the files are; made if it is not there.")],
    host: Annotated[
        list[str] | None,
        typer.Option(help="A name or address of the servers, beside localhost, 127.0.0.1 and ::1; several times."),
    ] = None,
    client: Annotated[
        list[str] | None, typer.Option(help="A client's name; several times. \\[default: client]")
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long they are good.")] = 365,
    as_json: JsonOption = False,
) -> None:
    """Make an authority, a certificate for servers and one for each client, as DIR/NAME.pem and DIR/NAME.key.

    What is there already stays. For development and tests: the authority's key lies beside them, unencrypted.
    """
    from waltz_ray.security.certificates import make_certificates

    hosts = list(dict.fromkeys([*(host or []), *_THIS_MACHINE]))  # where a cluster that tries them listens
    made = make_certificates(Path(directory), hosts, client or ["client"], days)
    if as_json:
        names = {
            each.name: {"certificate": str(each.certificate), "key": str(each.key), "new": each.new} for each in made
        }
        print_data(names)
        return
    for each in made:
        typer.echo(f"{each.name}: {each.certificate} {each.key}{'' if each.new else ' (was there)'}")
