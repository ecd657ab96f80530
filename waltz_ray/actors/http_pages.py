"""What the manager's HTTP port answers: the cluster as it was seen last, for people, probes and Prometheus.

| path | answer |
|---|---|
| `/` | a page for people (``status_page.html``), which reads `/status.json` every two seconds |
| `/metrics` | every figure, in Prometheus' text format |
| `/status.json` | what `waltz status --json` prints, and ``problems``: what does not serve, each with its remedy |
| `/healthz` | 200 while the manager sees the cluster; 503 if it has not for ``STALE_S`` |
| `/readyz` | 200 if everything serves; 503, and a line for everything that does not |
| `/readyz/server/0` | the same of one actor: server, replica, kv, topic |

Whoever asks costs no actor anything: what is told was seen before, and is made once of every look.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.resources import files
from typing import Any

from waltz_ray.actors.cluster_watch import ClusterWatch, Sight
from waltz_ray.actors.exposition import KIND, exposition
from waltz_ray.runtime.findings import what_does_not_serve
from waltz_ray.runtime.status import ActorStatus, ClusterStatus, to_json
from waltz_ray.wire.http import HttpRequest, HttpResponse

__all__ = ["PATHS", "STALE_S", "HttpPages"]

PATHS = ("/", "/metrics", "/status.json", "/healthz", "/readyz", "/readyz/server/0")
"""All there are, the last one for each actor."""

STALE_S = 30.0
"""What was seen longer ago says nothing of now: three looks at a cluster whose every actor hangs."""

_MOST_DIGITS = 9
"""Of an actor's number. Whoever reaches the port may ask for any."""


class HttpPages:
    """For one thread."""

    def __init__(self, watch: ClusterWatch) -> None:
        self._watch = watch
        self._made: dict[str, HttpResponse] = {}
        self._of: Sight | None = None
        self._page = files("waltz_ray.actors").joinpath("status_page.html").read_bytes()

    def answer(self, request: HttpRequest) -> HttpResponse:
        """To a GET."""
        path = request.path
        if path == "/":
            return HttpResponse(200, self._page, "text/html; charset=utf-8")
        if path == "/healthz":
            return self._health()
        if path == "/metrics":
            return self._of_last_look(path, lambda view: HttpResponse(200, exposition(view), KIND))
        if path == "/status.json":
            return self._of_last_look(path, _as_json)
        if path == "/readyz":
            return self._of_fresh_look(path, _ready)
        if path.startswith("/readyz/"):
            return self._of_fresh_look(path, lambda view: _actor_ready(view, path.removeprefix("/readyz/")), False)
        return HttpResponse(404, f"there are {', '.join(PATHS[:-1])} and {PATHS[-1]}\n".encode())

    def _health(self) -> HttpResponse:
        age_s = self._watch.age_s
        if age_s <= STALE_S:
            return HttpResponse(200, b"ok\n")
        why = f": {self._watch.error}" if self._watch.error else ""
        return HttpResponse(503, f"the manager has not seen the cluster for {age_s:.0f} s{why}\n".encode())

    def _of_fresh_look(
        self, path: str, make: Callable[[ClusterStatus], HttpResponse], kept: bool = True
    ) -> HttpResponse:
        health = self._health()
        return health if health.status != 200 else self._of_last_look(path, make, kept)

    def _of_last_look(
        self, path: str, make: Callable[[ClusterStatus], HttpResponse], kept: bool = True
    ) -> HttpResponse:
        sight = self._watch.sight
        if sight is None:
            why = self._watch.error or "it has just begun"
            return HttpResponse(503, f"the manager has not seen the cluster yet: {why}\n".encode())
        if sight is not self._of:
            self._of, self._made = sight, {}
        if not kept:
            return make(sight.view)
        if path not in self._made:
            self._made[path] = make(sight.view)
        return self._made[path]


def _as_json(view: ClusterStatus) -> HttpResponse:
    told = to_json(view)
    assert isinstance(told, dict)
    problems: Any = [asdict(finding) for finding in what_does_not_serve(view)]
    body = json.dumps({**told, "problems": problems}).encode()
    return HttpResponse(200, body, "application/json")


def _ready(view: ClusterStatus) -> HttpResponse:
    problems = what_does_not_serve(view)
    if not problems:
        return HttpResponse(200, b"ready\n")
    return HttpResponse(503, "".join(f"{' '.join(str(each).split())}\n" for each in problems).encode())


def _actor_ready(view: ClusterStatus, name: str) -> HttpResponse:
    kind, _, number = name.partition("/")
    kinds: dict[str, Mapping[int, ActorStatus]] = {
        "server": view.servers,
        "replica": view.replicas,
        "kv": view.kv,
        "topic": view.topics,
    }
    counted = number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS
    actor = kinds[kind].get(int(number)) if kind in kinds and counted else None
    if actor is None:
        return HttpResponse(404, f"the cluster has no actor {name:.80}\n".encode())
    if actor.serving:
        return HttpResponse(200, b"ready\n")
    return HttpResponse(503, f"{actor.state}: {' '.join(actor.reason.split())}\n".encode())
