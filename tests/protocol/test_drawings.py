"""docs/design.md, "Where a machine may go", is what the machines check themselves against."""

from __future__ import annotations

from pathlib import Path

import pytest

from waltz_ray.config import ServerConfig
from waltz_ray.protocol.mounting_types import TRANSITIONS, MountingState
from waltz_ray.protocol.partition.state import STAGES, PartitionState, Stage

PAGE = (Path(__file__).parents[2] / "docs" / "design.md").read_text()
SECTION = PAGE.split("### Where a machine may go")[1].split("\n## ")[0]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in SECTION.splitlines() if line.startswith("| ")]


def test_the_stages_of_a_partition() -> None:
    rows = [row for row in ROWS if len(row) == 3 and row[0] != "from"]
    assert rows == [[a.value, b.value, why] for a, after in STAGES.items() for b, why in after.items()]
    assert set(STAGES) == set(Stage)


def test_the_states_of_a_partition_of_a_client() -> None:
    rows = [row for row in ROWS if len(row) == 2 and row[0] != "from"]
    order = list(MountingState)
    drawn = [[a.value, ", ".join(b.value for b in order if b in after) or "-"] for a, after in TRANSITIONS.items()]
    assert rows == drawn


def test_a_partition_does_not_go_where_no_line_leads() -> None:
    state = PartitionState(3, ServerConfig())
    state.enter(Stage.READING)
    with pytest.raises(AssertionError, match="partition 3: reading must not become open"):
        state.enter(Stage.OPEN)
