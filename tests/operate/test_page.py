"""The page of the manager's port in a real browser: what it shows, that it is live, and that it can be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.actors.test_window import DOWN, full
from tests.cli.test_status import SERVED, SERVER
from tests.operate.browser import HEALTH, TABLES, Tab, needs_chromium, tab
from tests.operate.test_cluster import until
from waltz_ray.actors.window import Window
from waltz_ray.config import HttpConfig
from waltz_ray.runtime.status import ClusterStatus, Readiness

__all__ = ["tab"]
pytestmark = needs_chromium

# The lowest contrast of any text with what is behind it (WCAG 2: 1 to 21).
CONTRAST = """(() => {
  const parts = color => color.match(/[0-9.]+/g).map(Number);
  const light = color => {
    const [r, g, b] = parts(color).map(c => c / 255).map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const behind = node => {
    for (; node; node = node.parentElement) {
      const color = getComputedStyle(node).backgroundColor, [, , , alpha = 1] = parts(color);
      if (alpha > 0) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const found = [...document.querySelectorAll("body *:not(script)")]
    .filter(node => [...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim()))
    .map(node => [light(getComputedStyle(node).color), light(behind(node))])
    .map(([a, b]) => (Math.max(a, b) + .05) / (Math.min(a, b) + .05));
  return Math.min(...found);
})()"""


class Shown:
    """A port that tells of what the test says."""

    def __init__(self) -> None:
        self.view: ClusterStatus = full()
        self.at_ms, self.moves = 1, True
        self.window = Window(self._look, lambda view: None, HttpConfig(interval_ms=100))

    def opens(self, **different: Any) -> str:
        """Where it is."""
        self.view = replace(self.view, **different)
        self.window.open()
        until(lambda: self.window.endpoint)
        return f"http://{self.window.endpoint}/"

    def _look(self) -> ClusterStatus:
        self.at_ms += 100 * self.moves
        return replace(self.view, at_ms=self.at_ms)


@pytest.fixture
def shown() -> Iterator[Shown]:
    found = Shown()
    try:
        yield found
    finally:
        found.window.close()


def test_names_from_the_cluster_are_text_and_nothing_else(tab: Tab, shown: Shown) -> None:
    name = "<img src=x onerror=alert(1)><b>"
    tab.goes_to(shown.opens(cursors=(replace(full().cursors[0], name=name),)))
    tab.until(f"{HEALTH} === 'everything serves'")
    assert tab.evaluate(TABLES)["Cursors"][0]["cursor"] == name
    assert tab.evaluate("document.querySelectorAll('img, b').length") == 0
    assert tab.complaints == []


def test_a_log_that_opens_has_not_grown_by_all_that_was_in_it(tab: Tab, shown: Shown) -> None:
    """Its server has just been given it, and does not know yet where it ends."""
    opening = replace(SERVED, state=Readiness.NOT_READY, high_water_mark=-1)
    shown.moves = False
    tab.goes_to(shown.opens(servers={1: replace(SERVER, partitions={0: opening})}))
    tab.until("seen !== null")
    assert tab.evaluate(TABLES)["Partitions"][0]["high-water mark"] == "–"
    opened = replace(SERVED, high_water_mark=1_000_000)
    shown.view = replace(shown.view, servers={1: replace(SERVER, partitions={0: opened})})
    shown.moves = True
    tab.until("before !== null")
    shown.moves = False
    row = tab.evaluate(TABLES)["Partitions"][0]
    assert row["high-water mark"] == "1000000"
    assert row["a second"] in ("–", "0")


LATER = "{ const real = performance.now.bind(performance); performance.now = () => real() + 20000; }"


def test_a_look_that_is_old_and_a_manager_that_is_gone_are_told(tab: Tab, shown: Shown) -> None:
    tab.goes_to(shown.opens())
    tab.until(f"{HEALTH} === 'everything serves'")
    assert tab.evaluate("document.title") == "waltz c"
    shown.moves = False
    tab.until(f"seen.at_ms === {shown.at_ms}")
    tab.evaluate(LATER)
    tab.until(f"{HEALTH}.startsWith('the manager has seen nothing new for 2')")
    assert tab.evaluate("document.title") == "! waltz c"
    shown.moves = True
    tab.until(f"{HEALTH} === 'everything serves'")
    shown.window.close()
    tab.until(f"{HEALTH}.startsWith('the manager does not answer')")
    assert tab.evaluate("document.getElementById('health').className") == "bad"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_can_be_read(tab: Tab, shown: Shown, scheme: str, width: int) -> None:
    """Also its problems; in a narrow window a table has a bar of its own, and the page none."""
    tab.looks_like(width, scheme)
    tab.goes_to(shown.opens(replicas=DOWN.replicas, cluster="a_name_without_a_space_in_it_" * 4))
    tab.until(f"{HEALTH} === '1 problem'")
    assert tab.evaluate(CONTRAST) >= 4.5
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert (
        tab.evaluate("getComputedStyle(document.body).backgroundColor")
        == {
            "light": "rgb(250, 251, 252)",
            "dark": "rgb(20, 24, 30)",
        }[scheme]
    )
