"""The error tree: complete in its docstring, picklable, with a verdict on retrying."""

from __future__ import annotations

import inspect
import pickle

import pytest

from waltz_ray import errors
from waltz_ray.errors import Corruption, Fenced, LockConflict, NotContiguous, WaltzError

CLASSES = [c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, WaltzError)]
SPECIAL: dict[type[WaltzError], tuple[object, ...]] = {
    Corruption: ("0.seg", 128, "bad crc"),
    Fenced: (1, 2, 3),
    NotContiguous: (1, 5, 2),
    LockConflict: (1, 7),
}


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_survives_pickling(kind: type[WaltzError]) -> None:
    error = kind(*SPECIAL.get(kind, ("what happened",)))
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)
    assert vars(again) == vars(error)
    assert "\n" not in str(error)
    assert again.retriable in (True, False)


def test_the_docstring_draws_the_whole_tree() -> None:
    assert errors.__doc__ is not None
    for kind in CLASSES:
        assert kind.__name__ in errors.__doc__
        assert kind.__name__ in errors.__all__
        drawn = next(line for line in errors.__doc__.splitlines() if f" {kind.__name__}" in line)
        assert ("retriable" in drawn) == kind.retriable
