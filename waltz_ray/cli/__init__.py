"""The ``waltz`` command. Commands live in modules of their own; each has ``register(app)``."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from contextlib import redirect_stdout
from typing import Any, TextIO, cast

import typer

from waltz_ray.cli import bench, demo, feed, fence, inspect, load, pipeline, replicas, status, streams, up, verify
from waltz_ray.errors import WaltzError

__all__ = ["main", "make_app"]

# Some versions of typer bring a click of their own: this is the one whose errors it raises.
_UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[1])


def make_app() -> typer.Typer:
    """The command line application."""
    app = typer.Typer(
        name="waltz",
        help="A distributed, replicated write-ahead log on Ray.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    for module in (up, status, load, feed, demo, inspect, verify, fence, replicas, streams, pipeline, bench):
        module.register(app)
    return app


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit: 0, 1 with one line on stderr for a WaltzError, 2 for usage, 130 for Ctrl-C.

    WALTZ_TRACEBACK=1 in the environment shows the traceback of a WaltzError too.
    """
    with redirect_stdout(cast(TextIO, _MainThreadStdout(sys.stdout))):
        code = _run(arguments)
    # Leaving Ray at the interpreter's exit takes a moment, too, in which its threads may have news.
    atexit.register(_only_stderr_from_now_on)
    sys.exit(code)


def _only_stderr_from_now_on() -> None:
    sys.stdout.flush()
    sys.stdout = sys.stderr


class _MainThreadStdout:
    """A command's output is what its main thread prints; the rest is news, for stderr.

    Ray's listener threads print what happens to nodes on stdout, in the middle of a command's JSON.
    """

    def __init__(self, stdout: TextIO) -> None:
        self._stdout = stdout

    def __getattr__(self, name: str) -> Any:
        own = threading.current_thread() is threading.main_thread()
        return getattr(self._stdout if own else sys.stderr, name)


def _run(arguments: list[str] | None) -> int:
    kazoo_log = logging.getLogger("kazoo")  # lost connections reach the user as ZooKeeperUnreachable, in one line
    kazoo_log.addHandler(logging.NullHandler())
    kazoo_log.propagate = False
    try:
        result = make_app()(args=arguments, standalone_mode=False, prog_name="waltz")
    except typer.Exit as leaving:
        return int(leaving.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except _UsageError as error:
        if message := error.format_message():  # there is none when the help has been shown instead
            print("waltz: " + message, file=sys.stderr)
        return 2
    except WaltzError as error:
        if os.environ.get("WALTZ_TRACEBACK") == "1":
            raise
        print("waltz: " + " ".join(str(error).split()), file=sys.stderr)
        return 1
    return result if isinstance(result, int) else 0
