"""``docs/tubemq.md`` tells what there is: messages, methods, and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from tests.topics.oracle import spec
from waltz_ray.topics.codes import RpcMethod

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs/tubemq.md").read_text()


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_every_row_is_there_in_order_and_names_tests_that_are_where_it_says() -> None:
    rows = re.findall(r"^\| (T\d\d) \| .* \| (.*) \|$", section("Rows"), re.MULTILINE)
    assert [row for row, _ in rows] == [f"T{number:02}" for number in range(1, 53)]
    for row, tests in rows:
        for each in tests.split("; "):
            module, _, names = each.partition(": ")
            folder, _, name = module.rpartition("/")
            source = (HERE / folder / f"test_{name}.py").read_text()
            found = re.findall(r"`(test_\w+)(?:\.\.\.)?`", names)
            assert found, (row, each)
            for test in found:
                assert row.lower() in test, (row, test)
                assert f"def {test}" in source, (row, test)


def test_every_message_is_tabled() -> None:
    """With its numbers, as the tests have them from the published definitions."""
    tabled = dict(re.findall(r"^\| ([A-Z]\w+) \| (1 .*) \|$", section("Messages"), re.MULTILINE))
    assert tabled == {
        name: ", ".join([f"{row.number} {row.name} {row.kind}{row.mark}" for row in rows if row.mark != "x"])
        for name, rows in spec().items()
    }


def test_every_method_is_tabled() -> None:
    numbers = re.findall(r"^\| ([\d, ]+) \| ", section("Messages"), re.MULTILINE)
    assert [int(number) for each in numbers for number in each.split(",")] == [int(method) for method in RpcMethod]
