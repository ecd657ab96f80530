"""The page of a real cluster, in a real browser: the figures of ``waltz status``, live. With pictures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.operate.browser import HEALTH, TABLES, Tab, needs_chromium, tab
from tests.operate.test_cluster import NAME, Operated, operated, until
from waltz_ray.readiness import cluster_status

__all__ = ["operated", "tab"]
pytestmark = [needs_chromium, pytest.mark.cluster]
IMAGES = Path(__file__).parents[2] / "docs/images"
PICTURE_BYTES = 150_000


def told(ray_address: str) -> Any:
    """What `waltz status` says."""
    command = [sys.executable, "-m", "waltz_ray", "status", "--cluster", NAME, "--address", ray_address]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def as_on_the_page(status: Any) -> dict[str, list[dict[str, str]]]:
    """What does not change by itself once nothing is appended."""
    partitions = []
    for each in status["partitions"]:
        now = status["servers"][str(each["server"])]["partitions"][str(each["partition"])]
        row = (each["partition"], now["state"], each["server"], now["session"], " ".join(map(str, each["members"])))
        columns = ("partition", "state", "server", "session", "members")
        partitions.append(
            {**dict(zip(columns, map(str, row), strict=True)), "high-water mark": str(now["high_water_mark"])}
        )
    actors = {
        kind: [{kind[:-1]: n, "state": each["state"], "endpoint": each["endpoint"]} for n, each in status[kind].items()]
        for kind in ("servers", "replicas")
    }
    spaces = [
        {"space": each["name"], "kind": each["kind"], "state": each["state"], "partitions": str(each["count"])}
        for each in status["spaces"]
    ]
    return {"Spaces": spaces, "Partitions": partitions, "Servers": actors["servers"], "Replicas": actors["replicas"]}


def keep(picture: bytes, name: str, request: pytest.FixtureRequest) -> None:
    """It is one, and a small one; with ``--rewrite`` it is the page's."""
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < PICTURE_BYTES
    if request.config.getoption("--rewrite"):
        IMAGES.mkdir(exist_ok=True)
        (IMAGES / name).write_bytes(picture)


def test_the_page_of_a_cluster(ray_head: str, operated: Operated, tab: Tab, request: pytest.FixtureRequest) -> None:
    """The figures of `waltz status`; they move while appends go on; a replica that hangs is shown, and the next."""
    tab.goes_to(operated.url + "/")
    tab.until(f"{HEALTH} === 'everything serves'", 120)
    rate = "Number(/ ([0-9]+) transactions a second/.exec(document.getElementById('about').textContent)?.[1])"
    with operated.load() as taken:
        until(lambda: taken() > 200)
        assert tab.until(f"{rate} > 10 && {rate}") > 10
        marks = [row["high-water mark"] for row in tab.evaluate(TABLES)["Partitions"]]
        tab.until(f"!{json.dumps(marks)}.includes({TABLES}['Partitions'][0]['high-water mark'])")
        keep(tab.picture(), "page.png", request)
    pictured = as_on_the_page(told(ray_head))
    wanted = json.dumps([row["high-water mark"] for row in pictured["Partitions"]])
    tab.until(
        f"JSON.stringify({TABLES}['Partitions'].map(row => row['high-water mark'])) === '{wanted}'".replace(", ", ",")
    )
    page = tab.evaluate(TABLES)
    for title, rows in pictured.items():
        assert [{column: row[column] for column in rows[0]} for row in page[title]] == rows

    pid = cluster_status(NAME).replicas[1].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        with operated.load() as taken:
            state = f"{TABLES}['Replicas'][1].state"
            tab.until(f"{state} === 'NO ANSWER'")
            assert tab.until(f"/problem/.test({HEALTH}) && document.getElementById('problems').innerText").count(
                "replica 1"
            )
            tab.looks_like(1280, "dark")
            keep(tab.picture(), "page-problem.png", request)
            before = taken()
            until(lambda: taken() > before + 50)
    finally:
        os.kill(pid, signal.SIGKILL)
    tab.until(f"{HEALTH} === 'everything serves'", 120)
    assert tab.evaluate(state) == "SERVING"
    assert cluster_status(NAME).replicas[1].pid != pid
    assert {url.removeprefix(operated.url) for url in tab.requests if url != "about:blank"} == {"/", "/status.json"}
    assert tab.complaints == []
