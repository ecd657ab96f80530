"""The end of the demo: a table for people, JSON for programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from waltz_ray.demo.failures import Failure

__all__ = ["DemoResult", "print_result"]


@dataclass
class DemoResult:
    """Filled in as the demo goes on. ``seconds``: stage -> seconds; ``notes``: what went wrong."""

    flights: int = 0
    transactions_in_log: int = 0
    distinct_flights_in_log: int = 0
    lock_conflicts: int = 0
    retries: int = 0
    reconnects: int = 0
    append_rate_per_s: float = 0.0
    failures: list[Failure] = field(default_factory=list)
    checks: dict[str, bool] = field(default_factory=dict)
    storage_dirs: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Every check was made and holds."""
        return bool(self.checks) and all(self.checks.values())

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "flights": self.flights,
            "transactions_in_log": self.transactions_in_log,
            "distinct_flights_in_log": self.distinct_flights_in_log,
            "lock_conflicts": self.lock_conflicts,
            "retries": self.retries,
            "append_rate_per_s": round(self.append_rate_per_s, 1),
            "failures": [failure.as_json() for failure in self.failures],
            "checks": self.checks,
            "storage_dirs": self.storage_dirs,
        }


def print_result(result: DemoResult, console: Console) -> None:
    """What was done and measured, then each comparison."""
    table = Table(title="waltz demo", show_header=False, title_justify="left")
    table.add_column(justify="left")
    table.add_column(justify="right")
    table.add_row("flights", f"{result.flights:,}")
    table.add_row("transactions in the log", f"{result.transactions_in_log:,}")
    table.add_row("committed per second", f"{result.append_rate_per_s:,.0f}")
    table.add_row("lock conflicts", f"{result.lock_conflicts:,}")
    table.add_row("contexts run again", f"{result.retries:,}")
    table.add_row("reconnects of clients", f"{result.reconnects:,}")
    for failure in result.failures:
        table.add_row(f"{failure.what}, at {failure.at_transaction:,}", f"felt {failure.felt_ms:,.0f} ms")
    for stage, seconds in result.seconds.items():
        table.add_row(stage, f"{seconds:.1f} s")
    table.add_section()
    for name, holds in result.checks.items():
        table.add_row(name.replace("_", " "), "[green]yes[/]" if holds else "[bold red]NO[/]")
    console.print(table)
    for note in result.notes:
        console.print(f"[red]![/] {note}", highlight=False)
    if result.ok:
        console.print("Log, SQLite and Spark agree with the CSV.", highlight=False)
    else:
        console.print("[bold red]Something differs:[/] see the lines with NO.", highlight=False)
