"""A headless Chromium, driven over its DevTools protocol through two pipes: no port, no library."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

__all__ = ["HEALTH", "TABLES", "Tab", "needs_chromium", "opened", "tab"]

needs_chromium = pytest.mark.skipif(
    shutil.which("chromium") is None, reason="Chromium is not on this machine (apt-get install chromium)"
)
HEALTH = "document.getElementById('health').textContent"
# Every table by its title: its rows, each a cell by its column.
TABLES = """Object.fromEntries([...document.querySelectorAll("#tables h2")].map(title => {
  const [head, ...rows] = [...title.nextElementSibling.querySelectorAll("tr")].map(
    line => [...line.children].map(cell => cell.textContent));
  return [title.textContent, rows.map(row => Object.fromEntries(row.map((cell, n) => [head[n], cell])))];
}))"""

_FLAGS = (
    *("--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
    # Nothing of the browser's own goes anywhere either.
    *("--no-proxy-server", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--hide-scrollbars"),
)
_ANSWER_S = 60.0


class _Pipe:
    """Messages end with a zero byte; an answer has the number of its command, an event has none."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers, self._number, self._rest = commands, answers, 0, b""
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None, parameters: dict[str, Any]) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        os.write(
            self._commands, json.dumps({**message, **({"sessionId": session} if session else {})}).encode() + b"\0"
        )
        deadline = time.monotonic() + _ANSWER_S
        while True:
            for answer in self._read(deadline):
                if answer.get("id") == self._number:
                    assert "error" not in answer, f"{method}: {answer['error']}"
                    return answer["result"]
                self.events.append(answer)

    def _read(self, deadline: float) -> list[dict[str, Any]]:
        ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"Chromium has not answered for {_ANSWER_S:.0f} s"
        data = os.read(self._answers, 1 << 20)
        assert data, "Chromium has ended"
        *messages, self._rest = (self._rest + data).split(b"\0")
        return [json.loads(message) for message in messages]


class Tab:
    """One page. ``requests`` and ``complaints`` are of all that it has done."""

    def __init__(self, pipe: _Pipe, session: str) -> None:
        self._pipe, self._session = pipe, session
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        return self._pipe.call(method, self._session, parameters)

    def looks_like(self, width: int, scheme: str = "light", height: int = 800) -> None:
        """``scheme``: light or dark."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def goes_to(self, url: str) -> None:
        found = self.call("Page.navigate", url=url)
        assert not found.get("errorText"), f"{url}: {found['errorText']}"
        self.until(f"document.URL === {json.dumps(url)} && document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, expression: str, within_s: float = 60.0) -> Any:
        """The value, once it is one that counts as true."""
        deadline = time.monotonic() + within_s
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < deadline, (
                f"it never came: {expression}; {self.evaluate('document.body.innerText')}"
            )
            time.sleep(0.1)
        return value

    def picture(self) -> bytes:
        """All of the page, as PNG."""
        height = self.evaluate("Math.ceil(document.documentElement.getBoundingClientRect().height)")
        width = self.evaluate("innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        found = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(found["data"])

    @property
    def requests(self) -> list[str]:
        self.evaluate("0")  # what has happened so far is told before the answer
        told = [each["params"] for each in self._pipe.events if each["method"] == "Network.requestWillBeSent"]
        return [each["request"]["url"] for each in told]

    @property
    def complaints(self) -> list[Any]:
        """Exceptions that nobody caught, what was written to the console, and what the browser itself finds wrong."""
        self.evaluate("0")
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [each["params"] for each in self._pipe.events if each["method"] in kinds]


@contextlib.contextmanager
def opened(directory: Path) -> Iterator[Tab]:
    """A tab of a browser of its own, which ends with the block; its profile is in ``directory``."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    # Out of the way of 3 and 4, where Chromium expects the pipes.
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (theirs_in, theirs_out)]
    for end in (theirs_in, theirs_out):
        os.close(end)
    program = shutil.which("chromium")
    assert program is not None
    arguments = [program, *_FLAGS, f"--user-data-dir={directory}", "about:blank"]
    log = os.open(directory.with_suffix(".log"), os.O_WRONLY | os.O_CREAT, 0o600)
    streams = [
        (os.POSIX_SPAWN_DUP2, source, target) for source, target in zip((*ends, log, log), (3, 4, 1, 2), strict=True)
    ]
    pid = os.posix_spawn(program, arguments, os.environ, file_actions=streams, setpgroup=0)
    for end in (*ends, log):
        os.close(end)
    pipe = _Pipe(ours_out, ours_in)
    try:
        target = pipe.call("Target.createTarget", None, {"url": "about:blank"})["targetId"]
        attached = pipe.call("Target.attachToTarget", None, {"targetId": target, "flatten": True})
        yield Tab(pipe, attached["sessionId"])
        pipe.call("Browser.close", None, {})
    finally:
        os.close(ours_out)  # without its pipe it ends, also when the block has failed
        _ended(pid)
        os.close(ours_in)


def _ended(pid: int) -> None:
    deadline = time.monotonic() + 20
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return
        time.sleep(0.05)


@pytest.fixture
def tab(tmp_path: Path) -> Iterator[Tab]:
    with opened(tmp_path / "browser") as found:
        found.looks_like(1280)
        yield found
