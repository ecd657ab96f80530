"""``deploy/monitoring``, read; Debian's Prometheus, where it is."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

__all__ = ["FOLDER", "alerts", "dashboard", "needs_prometheus", "needs_promtool", "panels"]

FOLDER = Path(__file__).parents[2] / "deploy/monitoring"

_WHY = "Prometheus is not on this machine (apt-get install prometheus): {} is not there"
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason=_WHY.format("promtool"))
needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason=_WHY.format("prometheus"))


def alerts() -> dict[str, dict[str, Any]]:
    """Each rule of alerts.yml, by the alert's name."""
    (group,) = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    rules = {rule["alert"]: rule for rule in group["rules"]}
    assert len(rules) == len(group["rules"]), "an alert's name is there twice"
    return rules


def dashboard() -> dict[str, Any]:
    """As Grafana reads it."""
    found: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
    return found


def panels() -> Iterator[tuple[str, str]]:
    """(title, query) of every query of the dashboard, with what Grafana puts in."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            query = re.sub(r"\$__rate_interval", "1m", target["expr"])
            yield panel["title"], query.replace("$cluster", "c")
