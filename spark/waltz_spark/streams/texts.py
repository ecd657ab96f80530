"""What others wrote, as text and JSON, whatever it is. Pure."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["parsed_json", "shown"]

_SHOWN_CHARACTERS = 120


def parsed_json(content: bytes) -> Any:
    """ValueError for what is no JSON, and for what is nested deeper than Python goes."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None


def shown(name: str) -> str:
    """A name that anybody may have made, on one line of a terminal and in any encoding: at most 120 characters."""
    text = "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in name)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
