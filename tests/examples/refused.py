"""Options with which an example refuses to run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

__all__ = ["refused"]


def refused(arguments_of: Callable[[], object], given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``given`` on its command line is a mistake of who calls it."""
    monkeypatch.setattr("sys.argv", ["example.py", *given.split()])
    with pytest.raises(SystemExit) as ended:
        arguments_of()
    assert ended.value.code == 2
