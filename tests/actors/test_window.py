"""What the manager's HTTP port tells of a cluster, and what becomes of it when the cluster cannot be looked at."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.cli.test_status import CLUSTER, REPLICA, SERVER
from waltz_ray.actors.cluster_watch import ClusterWatch
from waltz_ray.actors.http_pages import STALE_S, HttpPages
from waltz_ray.actors.http_port import HttpPort
from waltz_ray.actors.window import Window
from waltz_ray.config import HttpConfig
from waltz_ray.net.tls import client_context
from waltz_ray.protocol.spaces import Space, SpaceState
from waltz_ray.runtime.measures import Measures
from waltz_ray.runtime.status import ActorState, ClusterStatus, CursorStatus, EndpointStatistics
from waltz_ray.security.certificates import make_certificates
from waltz_ray.wire.http import HttpRequest, HttpResponse


class Rig:
    """A watch on a clock of the test, and what is seen at each beat."""

    def __init__(self) -> None:
        self.now = 50.0
        self.seen: ClusterStatus | Exception = CLUSTER
        self.told: list[ClusterStatus] = []
        self.watch = ClusterWatch(self._look, self.told.append, 1.0, lambda: self.now)
        self.pages = HttpPages(self.watch)

    def _look(self) -> ClusterStatus:
        if isinstance(self.seen, Exception):
            raise self.seen
        return self.seen

    def sees(self, what: ClusterStatus | Exception) -> Rig:
        self.seen = what
        self.watch.beat()
        return self

    def get(self, path: str) -> HttpResponse:
        return self.pages.answer(HttpRequest("GET", path))

    def status(self, path: str) -> tuple[int, str]:
        answer = self.get(path)
        return answer.status, answer.body.decode().strip()


@pytest.fixture
def rig() -> Rig:
    return Rig()


DOWN = replace(CLUSTER, replicas={0: replace(REPLICA, state=ActorState.REFUSED, reason="no\nstorage")})


def test_before_anything_was_seen(rig: Rig) -> None:
    assert rig.status("/readyz") == (503, "the manager has not seen the cluster yet: it has just begun")
    assert rig.get("/metrics").status == 503
    assert rig.status("/healthz") == (200, "ok")
    rig.now += STALE_S + 1
    assert rig.status("/healthz")[0] == 503


def test_what_does_not_serve_is_not_ready(rig: Rig) -> None:
    assert rig.sees(CLUSTER).status("/readyz") == (200, "ready")
    assert rig.status("/readyz/replica/0") == (200, "ready")
    rig.sees(DOWN)
    status, text = rig.status("/readyz")
    assert (status, "replica 0: REFUSED" in text, "no storage" in text) == (503, True, True)
    assert rig.status("/readyz/replica/0") == (503, "REFUSED: no storage")
    assert rig.status("/readyz/server/1") == (200, "ready")
    assert rig.status("/healthz") == (200, "ok"), "the manager itself does what it can"
    assert rig.sees(CLUSTER).status("/readyz") == (200, "ready")


def test_what_was_seen_long_ago_is_neither_healthy_nor_ready(rig: Rig) -> None:
    rig.sees(CLUSTER).sees(RuntimeError("Ray is gone"))
    assert rig.status("/readyz") == (200, "ready")
    rig.now += STALE_S + 1
    for path in ("/healthz", "/readyz", "/readyz/server/1"):
        assert rig.status(path) == (503, "the manager has not seen the cluster for 31 s: RuntimeError: Ray is gone")
    assert rig.get("/status.json").status == 200
    assert rig.sees(CLUSTER).status("/readyz") == (200, "ready")


@pytest.mark.parametrize(
    "path",
    [
        *("/readyz/replica/7", "/readyz/replica/", "/readyz/x/0", "/readyz/server/²", "/no"),
        pytest.param(f"/readyz/server/{'1' * 5000}", id="more digits than Python reads"),
    ],
)
def test_what_there_is_not(rig: Rig, path: str) -> None:
    assert rig.sees(CLUSTER).get(path).status == 404


def test_the_status_as_json(rig: Rig) -> None:
    told = json.loads(rig.sees(DOWN).get("/status.json").body)
    assert told["replicas"]["0"]["state"] == "REFUSED"
    assert [each["about"] for each in told["problems"]] == ["replica 0"]


def full() -> ClusterStatus:
    measures = Measures()
    measures.commit.observe(0.003)
    measures.refused["queue_full"] = 2
    server = replace(SERVER, measures=measures.view())
    traffic = EndpointStatistics(turns=3, turn=measures.commit.view())
    cursor = CursorStatus(space="log", name='a"\n', positions={}, holds_retention=False, epoch=1, lag=4)
    replica = replace(REPLICA, traffic=traffic, disk_free_bytes=5)
    return replace(CLUSTER, servers={1: server}, replicas={0: replica}, cursors=(cursor,), at_ms=2_500)


def test_a_partition_without_a_quorum_is_open_and_takes_no_appends(rig: Rig) -> None:
    """Its log stays open on its server for as long as that waits for the replicas."""
    waits = replace(SERVER.partitions[0], members=(), replicas={}, hindrance="too few replicas take part")
    body = rig.sees(replace(CLUSTER, servers={1: replace(SERVER, partitions={0: waits})})).get("/metrics").body.decode()
    lines = body.splitlines()
    assert 'waltz_cluster_partitions{cluster="c"} 1.0' in lines
    assert 'waltz_cluster_partitions_ready{cluster="c"} 0.0' in lines


def test_prometheus_reads_the_figures(rig: Rig) -> None:
    body = rig.sees(full()).get("/metrics").body.decode()
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(body)
        for sample in family.samples
    }
    own = ("cluster", "c")
    assert found["waltz_manager_view_seconds", own] == 2.5
    assert found["waltz_cluster_partitions_ready", own] == 1
    assert found["waltz_append_refusals_total", own, ("reason", "queue_full"), ("server", "1")] == 2
    commit = (own, ("le", "0.005"), ("server", "1"), ("stage", "commit"))
    bucket = ("waltz_append_stage_seconds_bucket", *commit)
    assert found[bucket] == 1
    assert found["waltz_replica_disk_free_bytes", own, ("replica", "0")] == 5
    assert found["waltz_cursor_lag", own, ("cursor", 'a"\n'), ("space", "log")] == 4


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not here: apt-get install prometheus")
def test_promtool_reads_the_figures(rig: Rig) -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=rig.sees(full()).get("/metrics").body, capture_output=True, timeout=60
    )
    assert b"error" not in done.stderr, done.stderr.decode()


def test_a_look_is_told_once_however_many_ask(rig: Rig) -> None:
    rig.sees(CLUSTER)
    assert rig.get("/metrics") is rig.get("/metrics")
    first = rig.get("/metrics")
    assert rig.sees(CLUSTER).get("/metrics") is not first
    assert rig.told == [CLUSTER, CLUSTER]


# ---- the page


def test_the_page_needs_nothing_from_elsewhere(rig: Rig) -> None:
    page = rig.get("/").body.decode()
    assert re.findall(r"https?://|//[a-z]|src=|href=|innerHTML|insertAdjacent|document\.write|eval\(", page) == []
    assert 'fetch(new URL("status.json", location.origin + location.pathname))' in page


_SHOW = """
const made = (kind) => ({kind, children: [], text: "", className: "",
  set textContent(value) { this.text = value; }, get textContent() { return this.text; },
  append(...more) { this.children.push(...more); }, replaceChildren(...more) { this.children = more; }});
const known = {};
globalThis.document = {title: "", createElement: made, getElementById: id => known[id] ??= made(id)};
const answers = JSON.parse(require("fs").readFileSync(0));
globalThis.location = {origin: "https://h:1", pathname: "/"};
globalThis.fetch = async () => ({ok: true, json: async () => answers.shift()});
let turns = 0;
globalThis.setTimeout = (call) => {
  turns += 1;
  if (turns < 2) { call(); return; }
  const all = node => [node.text, ...node.children.flatMap(all)].filter(text => text !== "");
  console.log(JSON.stringify(Object.fromEntries(Object.entries(known).map(([id, node]) => [id, all(node)]))));
};
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not here: it runs the page's script")
def test_the_page_shows_what_is_there_and_how_fast_it_goes(rig: Rig) -> None:
    """Its script on the smallest of documents: two looks, five seconds and ten transactions apart."""
    spaces = (Space("log", "log", 0, 1, SpaceState.READY),)
    looks = []
    for at_ms, moved in ((1_000, 0), (6_000, 10)):
        served = replace(SERVER.partitions[0], high_water_mark=7 + moved, lags={5: 3})
        view = replace(DOWN, at_ms=at_ms, spaces=spaces, servers={1: replace(SERVER, partitions={0: served})})
        looks.append(json.loads(rig.sees(view).get("/status.json").body))
    script = _SHOW + rig.get("/").body.decode().split("<script>")[1].split("</script>")[0]
    done = subprocess.run(
        ["node", "-e", script], input=json.dumps(looks).encode(), capture_output=True, timeout=60, check=True
    )
    shown = json.loads(done.stdout)
    assert shown["health"] == ["1 problem"]
    assert "2 transactions a second" in shown["about"][0]
    assert shown["problems"][0].startswith("replica 0: REFUSED")
    tables = shown["tables"]
    assert [each for each in tables if each in ("Spaces", "Partitions", "Servers", "Replicas")] == [
        *("Spaces", "Partitions", "Servers", "Replicas"),
    ]
    row = tables.index("READY", tables.index("furthest behind"))
    assert tables[row - 2 : row + 9] == ["0", "log", "READY", "1", "3", "0", "17", "2", "0 B", "0", "3"]


# ---- the window


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)


def test_a_window_shows_what_is_seen_until_it_is_closed() -> None:
    window = Window(lambda: DOWN, lambda view: None, HttpConfig(interval_ms=100))
    window.open()
    until(lambda: window.endpoint is not None)
    until(lambda: window._watch.sight)
    with urlopen(f"http://{window.endpoint}/status.json", timeout=10) as answer:
        assert json.load(answer)["cluster"] == "c"
    with pytest.raises(HTTPError, match="503"):
        urlopen(f"http://{window.endpoint}/readyz", timeout=10)
    endpoint = window.endpoint
    window.close()
    window.close()
    with pytest.raises(OSError):
        urlopen(f"http://{endpoint}/", timeout=10)


def test_a_port_that_is_taken_is_told_and_had_when_it_is_free() -> None:
    other = HttpPort("127.0.0.1", 0, lambda request: HttpResponse(200, b""))
    window = Window(lambda: CLUSTER, lambda view: None, HttpConfig(interval_ms=100, port=other.endpoint.port))
    window.open()
    until(lambda: window.error)
    assert window.error.startswith(f"cannot listen for HTTP on {other.endpoint}: ")
    other.close()
    until(lambda: window.endpoint == other.endpoint)
    assert window.error == ""
    window.close()


def test_without_a_port_it_looks_all_the_same() -> None:
    seen: list[ClusterStatus] = []
    window = Window(lambda: CLUSTER, seen.append, HttpConfig(enabled=False, interval_ms=100))
    window.open()
    until(lambda: len(seen) > 1)
    assert (window.endpoint, window.error) == (None, "")
    window.close()


def test_the_port_takes_tls_and_files_that_cannot_be_used_are_told(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["127.0.0.1"], [], 2)
    config = HttpConfig(tls_certificate=str(tmp_path / "server.pem"), tls_key=str(tmp_path / "server.key"))
    (tmp_path / "server.key").rename(tmp_path / "later.key")
    window = Window(lambda: CLUSTER, lambda view: None, replace(config, interval_ms=100))
    window.open()
    try:
        until(lambda: window.error)
        assert f"with {tmp_path}/server.pem and {tmp_path}/server.key: No such file or directory" in window.error
        assert window.endpoint is None
        (tmp_path / "later.key").rename(tmp_path / "server.key")
        until(lambda: window.endpoint is not None)
        context = client_context(str(tmp_path / "authority.pem"))
        with urlopen(f"https://{window.endpoint}/healthz", timeout=10, context=context) as told:
            assert told.read() == b"ok\n"
    finally:
        window.close()
