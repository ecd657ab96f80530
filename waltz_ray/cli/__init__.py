"""The ``waltz`` command. Commands live in modules of their own; each has ``register(app)``."""

from __future__ import annotations

import atexit
import errno
import io
import os
import sys
import threading
from contextlib import redirect_stdout
from importlib import import_module
from typing import Annotated, Any, TextIO, cast

import typer

from waltz_ray.cli import contexts
from waltz_ray.cli.dressing import dress
from waltz_ray.errors import WaltzError

__all__ = ["COMMANDS", "main", "make_app"]

COMMANDS = {
    **{"up": "up", "down": "up", "apply": "apply", "status": "status", "load": "load", "feed": "feed", "demo": "demo"},
    **{"inspect": "inspect", "verify": "verify", "fence": "fence", "replace-replica": "replicas", "doctor": "doctor"},
    **{"top": "top", "replica": "members", "server": "members", "move": "move", "rebalance": "move"},
    **{"produce": "produce", "context": "context", "log": "log", "upgrade": "upgrade"},
    **{"space": "space", "cursor": "cursor", "trim": "retention", "holds": "retention"},
    **{"kv": "kv", "topic": "topic", "certs": "certs", "access": "access"},
    **{"backup": "backup", "restore": "backup", "recover": "recover"},
    **{"import": "import_original", "export-original": "export_original"},
    **{"streams": "streams", "pipeline": "pipeline", "bench": "bench"},
}
"""The module of each command. Only that of the command that is run is imported: nobody waits for the others."""

_TAKES_NO_MORE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Of a write: the disk's errors."""

# Some versions of typer bring a click of their own: this is the one whose errors it raises.
_UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[1])


def make_app(command: str = "") -> typer.Typer:
    """The command line application: all of it, or the part that has ``command``."""
    app = typer.Typer(
        name="waltz",
        help="A distributed, replicated write-ahead log on Ray.",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    modules = [COMMANDS[command]] if command in COMMANDS else dict.fromkeys(COMMANDS.values())
    for module in modules:
        import_module(f"{__name__}.{module}").register(app)
    dress(app)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        from waltz_ray import __version__

        print(f"waltz {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
    context: Annotated[
        str, typer.Option("--context", help="Which cluster, by its context; see waltz context.", show_default=False)
    ] = "",  # for the help only: _run has taken it out, wherever it stood
) -> None:
    pass


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit: 0, 1 with one line on stderr for a WaltzError, 2 for usage, 130 for Ctrl-C.

    WALTZ_TRACEBACK=1 in the environment shows the traceback of a WaltzError too.
    """
    # A question that comes too late must not start a new Ray: Ray does so by itself where it has been left.
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
    _open_what_is_closed()
    _write_whatever_it_is()
    with redirect_stdout(cast(TextIO, _MainThreadStdout(sys.stdout))):
        code = _run(arguments)
    # Leaving Ray at the interpreter's exit takes a moment, too, in which its threads may have news.
    atexit.register(_only_stderr_from_now_on)
    sys.exit(code)


def _open_what_is_closed() -> None:
    """Of stdin, stdout and stderr, which a caller may have closed (``waltz ... 2>&-``): else the next file or socket of
    ours would have that number, and libraries write to it, or end the process."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(nowhere, nowhere == number)
            setattr(sys, name, open(nowhere, "w" if number else "r"))  # noqa: SIM115 - as long as the process


def _write_whatever_it_is() -> None:
    """What stdout has no letter for (its encoding lacks it, or a file's name is no text) is written as Python has it:
    an error in the middle of the output would say that what has been done has failed."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


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


def _came_of_an_interrupt(error: BaseException | None) -> bool:
    """Whether it was raised while Ctrl-C was taking things down."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _run(arguments: list[str] | None) -> int:
    try:
        code = _command(arguments)
        sys.stdout.flush()  # what does not get through is an error of the command
    except OSError as error:
        if os.environ.get("WALTZ_TRACEBACK") == "1":
            raise
        is_of_output = _give_up_stdout() or error.errno != errno.EIO  # which also who reads a disk is told
        if error.errno in _TAKES_NO_MORE and error.filename is None and is_of_output:
            print(f"waltz: what it writes cannot be written: {error.strerror}; give its output room", file=sys.stderr)
        elif not isinstance(error, BrokenPipeError):  # who read it wanted no more
            print(f"waltz: {error} (WALTZ_TRACEBACK=1 shows what was being done)", file=sys.stderr)
        return 1
    return code


def _give_up_stdout() -> bool:
    """What it has not got rid of is not tried again when Python ends; whether there was any."""
    try:
        sys.stdout.flush()
        return False
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        return True


def _command(arguments: list[str] | None) -> int:
    try:
        given = sys.argv[1:] if arguments is None else arguments
        name, given = contexts.taken_out(given)
        # A damaged file can still be seen to, and a shell that completes a word is told nothing of it.
        if given[:1] != ["context"] and "--help" not in contexts.own(given) and "_WALTZ_COMPLETE" not in os.environ:
            contexts.apply(name, given)
        result = make_app(*given[:1])(args=given, standalone_mode=False, prog_name="waltz")
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
        return 130 if _came_of_an_interrupt(error) else 1
    return result if isinstance(result, int) else 0
