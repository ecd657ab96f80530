"""JSON that somebody else has written: taken apart, each complaint with the place of what is wrong. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from waltz_ray.errors import InvalidInput

__all__ = ["int_in", "known_fields", "list_in", "loaded", "object_in", "text_in"]

_SHOWN = 40


def loaded(text: str | bytes, what: str, most_bytes: int) -> Any:
    """What ``text`` says. InvalidInput if it is longer than ``most_bytes``, or no JSON, or nested without end."""
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(raw) > most_bytes:
        raise InvalidInput(f"{what}: {len(raw)} bytes of JSON, {most_bytes} are the most")
    try:
        return json.loads(raw)
    except RecursionError:
        raise InvalidInput(f"{what}: it is nested too deeply") from None
    except ValueError as error:  # of JSON, of UTF-8, or a number of thousands of digits
        raise InvalidInput(f"{what} is no JSON: {str(error)[:200]}") from None


def object_in(value: Any, where: str) -> dict[str, Any]:
    """``value``, if it is an object. InvalidInput with ``where`` if it is not, as of all below."""
    if not isinstance(value, dict):
        raise InvalidInput(f"{where} must be an object, not {_shown(value)}")
    return value


def list_in(value: Any, where: str, most: int) -> list[Any]:
    """``value``, if it is a list of at most ``most``."""
    if not isinstance(value, list):
        raise InvalidInput(f"{where} must be a list, not {_shown(value)}")
    if len(value) > most:
        raise InvalidInput(f"{where} has {len(value)} entries, {most} are the most")
    return value


def int_in(fields: dict[str, Any], name: str, where: str, least: int, most: int) -> int:
    """The whole number ``name`` of ``fields``, from ``least`` to ``most``."""
    if name not in fields:
        raise InvalidInput(f"{where} lacks {name}, a whole number from {least} to {most}")
    value = fields[name]
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidInput(f"{where}: {name} must be a whole number from {least} to {most}, not {_shown(value)}")
    return value


def text_in(value: Any, where: str, most: int, least: int = 1, secret: bool = False) -> str:
    """``value``, if it is a text of ``least`` to ``most`` characters that can be written as UTF-8. ``secret``: no
    complaint shows anything of it."""
    if not isinstance(value, str) or not least <= len(value) <= most:
        instead = "" if secret else f", not {_shown(value)}"
        raise InvalidInput(f"{where} must be a text of {least} to {most} characters{instead}")
    if any("\ud800" <= each <= "\udfff" for each in value):
        raise InvalidInput(f"{where} has half of a surrogate pair in it{'' if secret else f': {_shown(value)}'}")
    return value


def known_fields(fields: dict[str, Any], where: str, names: Iterable[str]) -> None:
    """InvalidInput for a field of no known name: it would be silently without effect."""
    allowed = sorted(names)
    for name in fields:
        if name not in allowed:
            raise InvalidInput(f"{where} has no field {_shown(name)}; it has: {', '.join(allowed)}")


def _shown(value: Any) -> str:
    """A hint of the value; not all of it, which may be long."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and value.bit_length() > 100:
        return "a number of many digits"
    shown = ascii(value)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
