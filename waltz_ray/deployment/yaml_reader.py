"""YAML into frozen dataclasses, by their annotations; every error names the line, and the nearest known key.

The keys of a mapping are the fields of its dataclass. Nothing is converted: a number in quotes is text, and text where
a number belongs is an error, because what YAML takes for a number or a truth (``no``, ``10:20``) is seldom meant so.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from waltz_ray.errors import ConfigError, InvalidInput

__all__ = ["YamlReader"]

Kind = TypeVar("Kind")

_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false", NoneType: "nothing (null)"}


class YamlReader:
    """Of one file. ``source`` is how errors call it; ``lines`` has the line of each key that was read, by its path
    (``server.port``, ``disks[0].directory``). ``reserved``: keys that one might expect -> why they are not there.

    A value that is wrong, or out of the bounds of its dataclass, is a ConfigError.
    """

    def __init__(self, source: str, reserved: Mapping[str, str] | None = None) -> None:
        self.source = source
        self.lines: dict[str, int] = {}
        self._reserved = reserved or {}

    def root(self, text: str) -> yaml.MappingNode:
        """The mapping that the file is."""
        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            self._fail(mark.line + 1 if mark else 1, f"this is not YAML: {error.problem or error.context}")
        except yaml.YAMLError as error:  # a character that may not be in it has no mark
            self._fail(1, f"this is not YAML: {' '.join(str(error).split())}")
        except RecursionError:
            self._fail(1, "it is nested too deeply")
        if not isinstance(node, yaml.MappingNode):
            self._fail(1, "the file has to be keys and values, as `name: prod`")
        return node

    def values(self, node: yaml.Node, kinds: Mapping[str, Any], path: str = "") -> dict[str, Any]:
        """The values of a mapping whose keys and kinds of values are these."""
        found: dict[str, Any] = {}
        for key, line, child in self._entries(node, path):
            if key not in kinds:
                self._unknown(key, line, path, list(kinds))
            found[key] = self._value(child, kinds[key], _below(path, key))
        return found

    def built(self, kind: type[Kind], node: yaml.Node, values: Mapping[str, Any], path: str = "") -> Kind:
        """An instance with these values, which were read from ``node``; what it says is wrong is told with its line."""
        try:
            return kind(**values)
        except InvalidInput as error:
            text = str(error)
            named = re.findall(rf"\b{kind.__name__}\.(\w+)", text)
            lines = [self.lines[_below(path, name)] for name in named if _below(path, name) in self.lines]
            text = re.sub(rf"\b{kind.__name__}\.(\w+)", lambda found: _below(path, found[1]), text)
            self._fail(lines[0] if lines else _line(node), text if named or not path else f"{path}: {text}")

    def _entries(self, node: yaml.Node, path: str) -> Iterator[tuple[str, int, yaml.Node]]:
        if not isinstance(node, yaml.MappingNode):
            self._fail(_line(node), f"{path} has to be keys and values, not {_shown(node)}")
        for key_node, child in node.value:
            line, key = _line(key_node), key_node.value
            if not isinstance(key, str):
                self._fail(line, "a key has to be a word")
            if first := self.lines.get(_below(path, key)):
                self._fail(line, f"{_below(path, key)} is there twice, first in line {first}")
            self.lines[_below(path, key)] = line
            yield key, line, child

    def _unknown(self, key: str, line: int, path: str, known: list[str]) -> NoReturn:
        where = f"{path}: " if path else ""
        if why := self._reserved.get(_below(path, key)):
            self._fail(line, f"{where}{key!r}: {why}")
        near = difflib.get_close_matches(key, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
        self._fail(line, f"{where}unknown key {key!r}; {hint}")

    def _value(self, node: yaml.Node, kind: Any, path: str) -> Any:
        if is_dataclass(kind):
            assert isinstance(kind, type)
            hints = get_type_hints(kind)
            values = self.values(node, {field.name: hints[field.name] for field in fields(kind)}, path)
            return self.built(kind, node, values, path)
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is tuple:
            if not isinstance(node, yaml.SequenceNode):
                self._fail(_line(node), f"{path} has to be a list, not {_shown(node)}")
            self.lines.setdefault(path, _line(node))
            return tuple(self._value(each, arguments[0], f"{path}[{n}]") for n, each in enumerate(node.value))
        if origin is not None and issubclass(_class(origin), Mapping):
            return {
                key: self._value(child, arguments[1], _below(path, key)) for key, _, child in self._entries(node, path)
            }
        return self._scalar(node, arguments if origin in (Union, UnionType) else (kind,), path)

    def _scalar(self, node: yaml.Node, kinds: tuple[Any, ...], path: str) -> Any:
        wanted = " or ".join(_NAMES[kind] for kind in kinds)
        if not isinstance(node, yaml.ScalarNode):
            self._fail(_line(node), f"{path} has to be {wanted}, not {_shown(node)}")
        try:
            value = yaml.SafeLoader("").construct_object(node)
        except (yaml.YAMLError, ValueError):  # a tag that is not YAML's own; a date that is none
            self._fail(_line(node), f"{path} has to be {wanted}, not {node.value!r}")
        if type(value) not in kinds and not (type(value) is int and float in kinds):
            quotes = "; put it in quotes" if str in kinds and value is not None else ""
            self._fail(_line(node), f"{path} has to be {wanted}, not {node.value or 'nothing'}{quotes}")
        return value

    def _fail(self, line: int, what: str) -> NoReturn:
        raise ConfigError(f"{self.source}:{line}: {what}") from None


def _class(origin: Any) -> type[Any]:
    return origin if isinstance(origin, type) else object


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _below(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _shown(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return repr(node.value) if node.value else "nothing"
    return "a list" if isinstance(node, yaml.SequenceNode) else "keys and values"
