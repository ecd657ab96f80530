"""Points in time as people type them: ``10m``, ``2026-11-21T12:00Z``."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

from waltz_ray.errors import InvalidInput

__all__ = ["MOMENT_HELP", "moment"]

MOMENT_HELP = "so long ago (90s, 10m, 2h, 7d), or a time (2026-11-21T12:00Z; without a zone in the local one)"

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGO = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")


def moment(name: str, text: str, now: datetime | None = None) -> datetime:
    """The point in time, with its zone. InvalidInput says what can be typed; ``name`` is the option's."""
    from waltz_ray.client.times import parsed_time  # with the client, which `waltz --help` has no need of

    ago = _AGO.fullmatch(text.strip())
    try:
        if ago:
            return (now or datetime.now(timezone.utc)) - timedelta(**{_UNITS[ago[2]]: float(ago[1])})
        when = parsed_time(text)
        return when if when.tzinfo is not None else when.astimezone()
    except (ValueError, OverflowError) as error:
        raise InvalidInput(f"{name} must say {MOMENT_HELP}, not {text!r}") from error
