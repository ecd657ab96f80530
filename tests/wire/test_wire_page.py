"""docs/wire.md names every type that the code knows, under its number."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from waltz_ray.protocol import authentication
from waltz_ray.protocol.messages import client, original, replica
from waltz_ray.wire.authentication import AUTHENTICATION_TABLE
from waltz_ray.wire.codec import CLIENT_TABLE
from waltz_ray.wire.original_codec import ORIGINALS
from waltz_ray.wire.replica_codec import REPLICA_TABLE

PAGE = (Path(__file__).parents[2] / "docs" / "wire.md").read_text()
BEFORE, REPLICA_PART = PAGE.split("## R2")
AUTHENTICATION_PART, CLIENT_PART = BEFORE.split("## Client protocol")


def _rows(text: str) -> dict[int, str]:
    return {int(number): name for number, name in re.findall(r"^\| (\d+) ([\w ]+) \|", text, flags=re.MULTILINE)}


def test_client_types() -> None:
    assert _rows(CLIENT_PART) == CLIENT_TABLE.names


def test_the_version_that_brought_each_type() -> None:
    rows = re.findall(r"^\| (\d+) [A-Z_]+ \| (\d) \|", CLIENT_PART, flags=re.MULTILINE)
    assert {int(number): int(since) for number, since in rows} == {row.number: row.since for row in ORIGINALS}


def test_authentication_types() -> None:
    assert _rows(AUTHENTICATION_PART) == AUTHENTICATION_TABLE.names


def test_replica_types() -> None:
    assert _rows(REPLICA_PART) == REPLICA_TABLE.names


@pytest.mark.parametrize(
    ("enumeration", "part"),
    [
        (client.FeedMode, CLIENT_PART),
        (client.RejectionCode, CLIENT_PART),
        (original.MountState, CLIENT_PART),
        (replica.RefusalCode, REPLICA_PART),
        (authentication.Role, AUTHENTICATION_PART),
        (authentication.DenialCode, AUTHENTICATION_PART),
    ],
)
def test_enumerations(enumeration: type[client.FeedMode], part: str) -> None:
    assert [member.name for member in enumeration if f"{member.value} {member.name}" not in part] == []
