"""What must come out, from the CSV alone.

Written to share no code with the pipeline it judges: its own look at the archive, its own columns, its own rule for
flights without a tail.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Expectations", "expect"]


@dataclass(frozen=True)
class Expectations:
    """``flights`` rows; per carrier the legs and the miles, per tail the legs."""

    flights: int
    carrier_legs: dict[str, int]
    carrier_miles: dict[str, int]
    tail_legs: dict[str, int]


def expect(archive: Path, flights: int) -> Expectations:
    """Count the first ``flights`` rows of ``flights.csv`` in ``archive``."""
    lines = io.TextIOWrapper(io.BytesIO(zipfile.ZipFile(archive).read("flights.csv")), "utf-8", newline="")
    table = csv.reader(lines)
    heads = next(table)
    carrier, number, tail, distance = (heads.index(head) for head in ("carrier", "flight", "tailnum", "distance"))
    carrier_legs: Counter[str] = Counter()
    carrier_miles: Counter[str] = Counter()
    tail_legs: Counter[str] = Counter()
    count = 0
    for values in table:
        if count == flights:
            break
        count += 1
        carrier_legs[values[carrier]] += 1
        carrier_miles[values[carrier]] += int(values[distance])
        tail_legs[
            values[tail] if values[tail] and values[tail] != "NA" else "?" + values[carrier] + values[number]
        ] += 1
    return Expectations(count, dict(carrier_legs), dict(carrier_miles), dict(tail_legs))
