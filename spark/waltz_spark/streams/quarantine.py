"""Work that cannot be done at the moment: what it is, since when, why, how often it was looked at.

The record says so to people; the input itself stays where it is and is looked at in every pass, so it blocks nothing
and is taken up as soon as it can be. A record goes when its reason has gone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime

from waltz_ray.errors import InvalidInput
from waltz_spark.streams.files import Files, directory_of
from waltz_spark.streams.layout import quarantine_path

__all__ = ["QuarantineRecord", "quarantined", "rewrite_quarantine"]


@dataclass(frozen=True, slots=True)
class QuarantineRecord:
    """``since``: ISO 8601, UTC, of the first look; ``count``: looks so far."""

    commit: str
    reason: str
    since: str
    count: int


def quarantined(files: Files, root: str, thread: str) -> list[QuarantineRecord]:
    """The oldest minute first. InvalidInput for a record that is damaged."""
    directory = quarantine_path(root, thread)
    records = []
    try:
        names = files.list(directory)
    except FileNotFoundError:
        return []
    for name in names:
        try:
            fields = json.loads(files.read(f"{directory}/{name}"))
            records.append(QuarantineRecord(name, str(fields["reason"]), str(fields["since"]), int(fields["count"])))
        except FileNotFoundError:
            continue  # its reason has gone since the listing
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidInput(f"{directory}/{name} is damaged: {error}; delete it, it is written again") from error
    return records


def rewrite_quarantine(
    files: Files, root: str, thread: str, problems: Mapping[str, str], now: datetime, staged: Callable[[str], str]
) -> None:
    """After a pass: ``problems`` (commit -> reason) is all there is now. ``staged``: a new path of the run."""
    before = {record.commit: record for record in quarantined(files, root, thread)}
    for commit, reason in problems.items():
        old = before.get(commit)
        record = QuarantineRecord(commit, reason, old.since if old else now.isoformat(), old.count + 1 if old else 1)
        target = quarantine_path(root, thread, commit)
        files.make_directories(directory_of(target))
        temporary = staged("quarantine")
        files.write(temporary, [json.dumps(asdict(record)).encode()])
        files.replace(temporary, target)
    for commit in before.keys() - problems.keys():
        files.delete(quarantine_path(root, thread, commit))
