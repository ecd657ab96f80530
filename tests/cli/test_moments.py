"""Points in time as people type them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from waltz_ray.cli.moments import moment
from waltz_ray.errors import InvalidInput

NOW = datetime(2026, 11, 22, 15, 0, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("1.5h", 5400), ("7d", 604800), ("2w", 1209600), (" 0s ", 0)]
)
def test_so_long_ago(text: str, seconds: int) -> None:
    assert moment("--since", text, NOW) == NOW - timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("2026-11-21T12:00Z", "2026-11-21T12:00:00+00:00"),
        ("2026-11-21T12:00:01.5+02:00", "2026-11-21T12:00:01.500000+02:00"),
        ("2026-11-21 12:00z", "2026-11-21T12:00:00+00:00"),
    ],
)
def test_a_time(text: str, iso: str) -> None:
    assert moment("--since", text).isoformat() == iso


def test_without_a_zone_it_is_local() -> None:
    assert moment("--since", "2026-11-21T12:00") == datetime(2026, 11, 21, 12).astimezone()


@pytest.mark.parametrize("text", ["", "now", "-5m", "5", "5y", "2026-13-01", "99999999999d", "12:00"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(InvalidInput, match="--since must say so long ago"):
        moment("--since", text)
