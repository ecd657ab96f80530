"""What every command is given beside its own: ``--output`` where it has a result, and the examples of its help."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import typer

from waltz_ray.cli.common import OutputOption, choose_output
from waltz_ray.cli.examples import EXAMPLES

__all__ = ["dress"]


def dress(app: typer.Typer, words: tuple[str, ...] = ()) -> None:
    """All commands of ``app``, which are called by these words and their own. Again, it changes nothing."""
    for command in app.registered_commands:
        assert command.callback is not None  # typer takes them from functions
        own = command.name or command.callback.__name__.replace("_", "-")
        if "as_json" in inspect.signature(command.callback).parameters:
            command.callback = _with_output(command.callback)
        if lines := EXAMPLES.get(" ".join((*words, own))):
            command.epilog = _epilog(lines)
    for group in app.registered_groups:
        assert group.typer_instance is not None
        name = group.name if isinstance(group.name, str) else group.typer_instance.info.name
        dress(group.typer_instance, (*words, str(name)))


def _with_output(command: Callable[..., Any]) -> Callable[..., Any]:
    """The same with ``--output``; ``as_json`` is told then whether a program reads the result."""
    signature = inspect.signature(command, eval_str=True)
    if "output" in signature.parameters:
        return command

    @wraps(command)
    def dressed(*, as_json: bool, output: Any = None, **given: Any) -> Any:
        return command(as_json=choose_output(output, as_json), **given)

    more = inspect.Parameter("output", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=OutputOption)
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in signature.parameters.values()]
    dressed.__signature__ = signature.replace(parameters=[*parameters, more])  # type: ignore[attr-defined]
    dressed.__annotations__ = {**command.__annotations__, "output": OutputOption}
    return dressed


def _epilog(lines: tuple[str, ...]) -> str:
    """A paragraph each: typer joins the lines of one. What is in brackets is no markup."""
    return "\n\n".join(["Examples:", *(f"  $ {line}".replace("[", "\\[") for line in lines)])
