"""What every command is given beside its own: ``--output`` where it has a result, the examples of its help, and that
nothing which is said may be empty, or a number without end."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, get_args, get_origin

import typer
from typer.models import ArgumentInfo, OptionInfo

from waltz_ray.cli.common import OutputOption, choose_output
from waltz_ray.cli.examples import EXAMPLES

__all__ = ["dress"]

_LARGEST_NUMBER = 1e9
"""Of what has a fraction: seconds (31 years), megabytes, records a second."""

_NO_NUMBER = re.compile(r"\d{4301}")  # of which Python makes no integer


def dress(app: typer.Typer, words: tuple[str, ...] = ()) -> None:
    """All commands of ``app``, which are called by these words and their own. Again, it changes nothing."""
    for command in app.registered_commands:
        assert command.callback is not None  # typer takes them from functions
        own = command.name or command.callback.__name__.replace("_", "-")
        if "as_json" in inspect.signature(command.callback).parameters:
            command.callback = _with_output(command.callback)
        _refuse_what_says_nothing(command.callback)
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


def _refuse_what_says_nothing(command: Callable[..., Any]) -> None:
    """Of its options, and of arguments that are directories. Names, values and messages may be empty."""
    signature = inspect.signature(command, eval_str=True)  # each look at annotations in strings makes new objects
    command.__signature__ = signature  # type: ignore[attr-defined]
    for each in signature.parameters.values():
        if get_origin(each.annotation) is not Annotated:
            continue
        for info in get_args(each.annotation)[1:]:
            is_directory = isinstance(info, ArgumentInfo) and str(info.metavar).startswith("DIR")
            if (is_directory or isinstance(info, OptionInfo)) and info.callback is None:
                info.callback = _says_something


def _says_something(context: typer.Context, parameter: typer.CallbackParam, value: Any) -> Any:
    """A variable of the shell that has no value must not have another cluster stopped than was meant, a cluster made
    where one stands, or one without TLS. Nothing ever ends after nan seconds, and no clock waits for inf."""
    if isinstance(value, float) and not abs(value) <= _LARGEST_NUMBER:
        raise typer.BadParameter(f"it must be from {-_LARGEST_NUMBER:g} to {_LARGEST_NUMBER:g}, not {value:g}")
    source = context.get_parameter_source(str(parameter.name))
    texts = value if isinstance(value, list) else [value]
    if source is not None and source.name == "COMMANDLINE" and "" in texts:
        more = "" if parameter.required else ", or leave it out"
        raise typer.BadParameter(f"it is empty; does a variable of your shell have no value? Give it one{more}")
    for text in texts:
        if isinstance(text, str) and _NO_NUMBER.search(text):
            raise typer.BadParameter(f"no number is that long: {text[:20]}...")
    return value


def _epilog(lines: tuple[str, ...]) -> str:
    """A paragraph each: typer joins the lines of one. What is in brackets is no markup."""
    return "\n\n".join(["Examples:", *(f"  $ {line}".replace("[", "\\[") for line in lines)])
