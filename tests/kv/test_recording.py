"""The order by versions: histories that it takes, and those it does not."""

from __future__ import annotations

import pytest

from tests.kv.linearizability import (
    MISSING,
    Asked,
    KvCall,
    Peek,
    Result,
    Shown,
    Store,
    Stored,
)
from tests.kv.recording import check_versions
from tests.linearizability.search import NotLinearizable


def calls(*rows: tuple[float, float, Asked, Result]) -> list[KvCall]:
    return [KvCall("x", asked, result, begin, end) for begin, end, asked, result in rows]


def test_versions_are_the_order() -> None:
    both = (0.0, 3.0, Store(1), Stored(5)), (0.0, 3.0, Store(2), Stored(4))
    check_versions(calls(*both, (4.0, 5.0, Peek(), Shown(1, 5)), (1.0, 2.0, Peek(), Shown(None))))
    check_versions(calls(*both, (2.0, 2.5, Peek(), Shown(2, 4)), (2.0, 2.5, Peek(), Shown(1, 5))))


@pytest.mark.parametrize(
    "late",
    [
        (4.0, 5.0, Peek(), Shown(1, 4)),  # older than what was acknowledged
        (4.0, 5.0, Peek(), Shown(1, 7)),  # written twice
        (4.0, 5.0, Peek(), Shown(3, 6)),  # another value
        (4.0, 5.0, Peek(), Shown(None)),  # lost
        (4.0, 5.0, Store(9), Stored(5)),  # behind an earlier one
        (4.0, 5.0, Store(9, expected=4), Stored(8)),  # an update is lost
        (4.0, 5.0, Store(9, expected=MISSING), Stored(8)),
    ],
)
def test_what_cannot_have_been(late: tuple[float, float, Asked, Result]) -> None:
    before = calls((0.0, 1.0, Store(1), Stored(4)), (2.0, 3.0, Store(2), Stored(6)))
    check_versions(before)
    with pytest.raises(NotLinearizable):
        check_versions([*before, *calls(late)])
