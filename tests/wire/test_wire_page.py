"""docs/wire.md names every type that the code knows, under its number."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from waltz_ray.protocol.messages import client, original, replica
from waltz_ray.wire.client_codec import BATCH_NAMES
from waltz_ray.wire.original_codec import KINDS
from waltz_ray.wire.replica_codec import REPLICA_NAMES

PAGE = (Path(__file__).parents[2] / "docs" / "wire.md").read_text()
CLIENT_PART, REPLICA_PART = PAGE.split("## R1")


def _rows(text: str) -> dict[int, str]:
    return {int(number): name for number, name in re.findall(r"^\| (\d+) ([\w ]+) \|", text, flags=re.MULTILINE)}


def test_client_types() -> None:
    assert _rows(CLIENT_PART) == {kind.number: kind.name for kind in KINDS.values()} | BATCH_NAMES


def test_the_version_that_brought_each_type() -> None:
    rows = re.findall(r"^\| (\d+) [A-Z_]+ \| (\d) \|", CLIENT_PART, flags=re.MULTILINE)
    assert {int(number): int(since) for number, since in rows} == {kind.number: kind.since for kind in KINDS.values()}


def test_replica_types() -> None:
    assert _rows(REPLICA_PART) == REPLICA_NAMES


@pytest.mark.parametrize(
    ("enumeration", "part"),
    [
        (client.FeedMode, CLIENT_PART),
        (client.RejectionCode, CLIENT_PART),
        (original.MountState, CLIENT_PART),
        (replica.RefusalCode, REPLICA_PART),
    ],
)
def test_enumerations(enumeration: type[client.FeedMode], part: str) -> None:
    assert [member.name for member in enumeration if f"{member.value} {member.name}" not in part] == []
