"""Work that cannot be done at the moment: what it is, since when, why, how often it was looked at.

The record says so to people; the input itself stays where it is and is looked at in every pass, so it blocks nothing
and is taken up as soon as it can be. A record goes when its reason has gone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime

from waltz_ray.errors import InvalidInput
from waltz_spark.streams.files import Files, directory_of
from waltz_spark.streams.layout import COMMIT_BYTES, quarantine_path
from waltz_spark.streams.odd import make_way, put_file, read_small
from waltz_spark.streams.texts import parsed_json

__all__ = ["QuarantineRecord", "quarantined", "record_name", "rewrite_quarantine"]


@dataclass(frozen=True, slots=True)
class QuarantineRecord:
    """``since``: ISO 8601, UTC, of the first look; ``count``: looks so far."""

    commit: str
    reason: str
    since: str
    count: int


def quarantined(files: Files, root: str, thread: str) -> list[QuarantineRecord]:
    """The oldest minute first. A record that is damaged says so; it is written again at the next look."""
    directory = quarantine_path(root, thread)
    records = []
    try:
        names = files.list(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    for name in names:
        try:
            fields = parsed_json(read_small(files, f"{directory}/{name}"))
            records.append(QuarantineRecord(name, str(fields["reason"]), str(fields["since"]), int(fields["count"])))
        except FileNotFoundError:
            continue  # its reason has gone since the listing
        except (InvalidInput, ValueError, KeyError, TypeError) as error:
            records.append(QuarantineRecord(name, f"the record is damaged: {error}", "", 0))
    return records


def rewrite_quarantine(
    files: Files, root: str, thread: str, problems: Mapping[str, str], now: datetime, staged: Callable[[str], str]
) -> None:
    """After a pass: ``problems`` (commit -> reason) is all there is now. ``staged``: a new path of the run."""
    problems = {record_name(commit): reason for commit, reason in problems.items()}
    before = {record.commit: record for record in quarantined(files, root, thread)}
    for commit, reason in problems.items():
        old = before.get(commit)
        record = QuarantineRecord(
            commit, reason, old.since if old and old.since else now.isoformat(), old.count + 1 if old else 1
        )
        target = quarantine_path(root, thread, commit)
        make_way(files, root, directory_of(target))
        temporary = staged("quarantine")
        files.write(temporary, [json.dumps(asdict(record)).encode()])
        put_file(files, root, temporary, target)
    for commit in before.keys() - problems.keys():
        path = quarantine_path(root, thread, commit)
        seen = files.look(path)
        if seen is not None and seen.kind != "directory":  # those are nobody's records
            files.delete(path)


def record_name(commit: str) -> str:
    """A file's name: that of a commit that is too long for one ends in its hash."""
    content = commit.encode(errors="surrogateescape")
    if len(content) <= COMMIT_BYTES:
        return commit
    return commit[: COMMIT_BYTES // 4] + "." + hashlib.sha256(content).hexdigest()
