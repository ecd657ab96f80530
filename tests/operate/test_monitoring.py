"""What is in deploy/monitoring: it names figures that there are, alerts when it should, and says what to do then."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from waltz_spark.streams.metrics import COLLECTOR_GAUGES, OF_ALL, SERVICE_GAUGES

from tests.operate.monitoring import FOLDER, alerts, dashboard, needs_promtool, panels
from waltz_ray.runtime.figures import FIGURES
from waltz_ray.runtime.histogram import HistogramView
from waltz_ray.runtime.measures import Measures

ROOT = Path(__file__).parents[2]
HISTOGRAMS = {
    *("waltz_append_stage_seconds", "waltz_append_batch_records", "waltz_append_batch_bytes"),
    *("waltz_partition_recovery_seconds", "waltz_replica_sync_seconds", "waltz_replica_turn_seconds"),
}


def known() -> dict[str, set[str]]:
    """The labels of every series that there is."""
    found: dict[str, set[str]] = {}
    for labels, metrics in FIGURES.values():
        for metric in metrics:
            own = {*labels, *([metric.by] if metric.by else [])}
            if metric.name in HISTOGRAMS:
                found |= {metric.name + end: own for end in ("_sum", "_count")}
                found[metric.name + "_bucket"] = own | {"le"}
            else:
                found[metric.name] = own
    streams = ((("service", "kind"), SERVICE_GAUGES), (("collector", "category"), COLLECTOR_GAUGES))
    found |= {name: {"instance"} for name in OF_ALL}
    return found | {
        gauge.name: {*keys, *([gauge.by] if gauge.by else [])} for keys, gauges in streams for gauge in gauges
    }


def test_the_histograms_are_those() -> None:
    view = Measures().view()
    assert isinstance(view.recovery, HistogramView)
    measured = {name for name in HISTOGRAMS if name.startswith(("waltz_append", "waltz_partition"))}
    (group,) = (metrics for title, (_, metrics) in FIGURES.items() if "way of appends" in title)
    told = {m.name for m in group if any(isinstance(value, HistogramView) for _, value in m.values(view))}
    assert told == measured


QUERIES = {
    **{name: rule["expr"] for name, rule in alerts().items()},
    **{f"{title} {number}": query for number, (title, query) in enumerate(panels())},
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_a_query_asks_for_what_there_is(query: str) -> None:
    names = set(re.findall(r"waltz_\w+", query))
    assert names or "up{" in query
    assert names - known().keys() == set()
    asked = set(re.findall(r"[{,]\s*(\w+)\s*=", query)) - {"job"}
    for by in re.findall(r"\bby \(([^)]*)\)", query):
        asked |= {label.strip() for label in by.split(",")}
    assert asked - set().union(*(known()[name] for name in names)) == set()


def test_each_alert_has_its_part_of_the_page_and_the_page_nothing_else() -> None:
    page = (ROOT / "docs/operations.md").read_text()
    _, _, runbooks = page.partition("\n## Alerts\n")
    parts = re.findall(r"^### (\w+)$", runbooks, re.M)
    assert parts == list(alerts())
    for name, rule in alerts().items():
        assert rule["annotations"]["runbook_url"] == f"docs/operations.md#{name.lower()}"
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]


def test_the_dashboards_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        here = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not here & taken, panel["title"]
        taken |= here
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(ids)) == len(ids)


def promtool(*arguments: str) -> str:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_promtool
def test_prometheus_reads_its_files() -> None:
    assert "SUCCESS" in promtool("check", "config", str(FOLDER / "prometheus.yml"))


@needs_promtool
def test_prometheus_reads_the_dashboards_queries(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": query} for number, (_, query) in enumerate(panels())]
    path = tmp_path / "panels.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"SUCCESS: {len(rules)} rules" in promtool("check", "rules", str(path))


def partition_on(members: int, replicas: int) -> dict[str, str]:
    """The series of a partition of its own."""
    partition = f'{{partition="{members}{replicas}"}}'
    return {
        f"waltz_partition_members{partition}": f"{members}x120",
        f"waltz_partition_replicas{partition}": f"{replicas}x120",
    }


# alert -> (series that are well, series that are not, over two hours by minutes)
CASES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "WaltzManagerUnseen": ({'up{job="waltz"}': "1x120"}, {'up{job="waltz"}': "0x120"}),
    "WaltzPartitionNotReady": (
        {"waltz_cluster_partitions": "4x120", "waltz_cluster_partitions_ready": "4x120"},
        {"waltz_cluster_partitions": "4x120", "waltz_cluster_partitions_ready": "3x120"},
    ),
    "WaltzServerDown": ({"waltz_server_serving": "1x120"}, {"waltz_server_serving": "0x120"}),
    "WaltzReplicaDown": ({"waltz_replica_serving": "1x120"}, {"waltz_replica_serving": "0x120"}),
    "WaltzKvActorDown": ({"waltz_kv_serving": "1x120"}, {"waltz_kv_serving": "0x120"}),
    "WaltzTopicActorDown": ({"waltz_topic_serving": "1x120"}, {"waltz_topic_serving": "0x120"}),
    "WaltzFewMembers": (
        {
            **partition_on(1, 1),
            **partition_on(2, 2),
            **partition_on(3, 3),
            **partition_on(4, 5),
            **partition_on(0, 0),  # without a session: WaltzPartitionNotReady
        },
        partition_on(2, 3),
    ),
    "WaltzReplicaBehind": (
        {"waltz_partition_replica_lag_transactions": "5x120"},
        {"waltz_partition_replica_lag_transactions": "500000x120"},
    ),
    "WaltzDiskNearlyFull": (
        {"waltz_replica_disk_free_bytes": "20000000000x120"},
        {"waltz_replica_disk_free_bytes": "5000000000x120"},
    ),
    "WaltzDiskFillsUp": (
        {"waltz_replica_disk_free_bytes": "900000000000-1000000x120"},
        {"waltz_replica_disk_free_bytes": "900000000000-1000000000x120"},
    ),
    "WaltzDamage": (
        {"waltz_replica_partitions_damaged": "0x120", "waltz_replica_damages_unrepaired": "0x120"},
        {"waltz_replica_partitions_damaged": "0x120", "waltz_replica_damages_unrepaired": "1x120"},
    ),
    "WaltzNotChecked": (
        {"waltz_replica_scrub_last_pass_seconds": "1x120", "waltz_replica_scrub_began_seconds": "-2000000x120"},
        {"waltz_replica_scrub_began_seconds": "-2000000x120"},  # the first one does not end
    ),
    "WaltzSlowSync": (
        {
            'waltz_replica_sync_seconds_bucket{le="0.2"}': "0+60x120",
            'waltz_replica_sync_seconds_bucket{le="+Inf"}': "0+60x120",
        },
        {
            'waltz_replica_sync_seconds_bucket{le="0.2"}': "0+10x120",
            'waltz_replica_sync_seconds_bucket{le="0.5"}': "0+60x120",
            'waltz_replica_sync_seconds_bucket{le="+Inf"}': "0+60x120",
        },
    ),
    "WaltzSlowCommit": (
        {
            'waltz_append_stage_seconds_bucket{stage="commit",le="0.5"}': "0+60x120",
            'waltz_append_stage_seconds_bucket{stage="commit",le="1"}': "0+60x120",
            'waltz_append_stage_seconds_bucket{stage="feed",le="0.5"}': "0+0x120",
            'waltz_append_stage_seconds_bucket{stage="feed",le="1"}': "0+60x120",
        },
        {
            'waltz_append_stage_seconds_bucket{stage="commit",le="0.5"}': "0+6x120",
            'waltz_append_stage_seconds_bucket{stage="commit",le="1"}': "0+60x120",
            'waltz_append_stage_seconds_bucket{stage="commit",le="+Inf"}': "0+60x120",
        },
    ),
    "WaltzAppendsRefused": (
        {'waltz_append_refusals_total{reason="not_mounted"}': "0+600x120"},
        {'waltz_append_refusals_total{reason="queue_full"}': "0+600x120"},
    ),
    "WaltzSlowSteps": ({"waltz_server_slow_steps": "0+3x120"}, {"waltz_server_slow_steps": "0+60x120"}),
    "WaltzZooKeeperSilent": ({"waltz_zookeeper_silent_seconds": "2x120"}, {"waltz_zookeeper_silent_seconds": "50x120"}),
    "WaltzRecoversAgainAndAgain": (
        {
            "waltz_partition_recovery_seconds_count": "0+1x120",
            "waltz_server_partitions": "2x120",
            # A server that has opened twenty and given them all to others is not at it again and again.
            'waltz_partition_recovery_seconds_count{server="2"}': "0x111 20x8",
            'waltz_server_partitions{server="2"}': "0x111 20x3 0x4",
        },
        {"waltz_partition_recovery_seconds_count": "0+5x120", "waltz_server_partitions": "2x120"},
    ),
    "WaltzConsumerBehind": ({"waltz_cursor_lag": "5x120"}, {"waltz_cursor_lag": "500000x120"}),
    "WaltzStreamsUnseen": (
        {'up{job="waltz-streams"}': "1x120", "waltz_streams_view_seconds": "0+60x120"},
        {'up{job="waltz-streams"}': "1x120", "waltz_streams_view_seconds": "0+60x100 6000x20"},
    ),
    "WaltzStreamUnreadable": ({"waltz_streams_unreadable": "0x120"}, {"waltz_streams_unreadable": "1x120"}),
    "WaltzStreamBehind": ({"waltz_stream_lag_seconds": "80x120"}, {"waltz_stream_lag_seconds": "1000x120"}),
    "WaltzCollectorBehind": ({"waltz_collector_lag_minutes": "2x120"}, {"waltz_collector_lag_minutes": "20x120"}),
    "WaltzStreamQuarantined": ({"waltz_stream_quarantined": "0x120"}, {"waltz_stream_quarantined": "1x120"}),
}


def test_each_alert_has_its_case() -> None:
    assert list(CASES) == list(alerts())


@needs_promtool
def test_each_alert_fires_when_it_should_and_not_else(tmp_path: Path) -> None:
    tests: list[dict[str, Any]] = []
    for name, (well, not_well) in CASES.items():
        for series, fires in ((well, False), (not_well, True)):
            test: dict[str, Any] = {"interval": "1m", "input_series": [], "promql_expr_test": []}
            test["input_series"] = [{"series": one, "values": values} for one, values in series.items()]
            count = f'count(ALERTS{{alertname="{name}",alertstate="firing"}})'
            samples = [{"labels": "{}", "value": 1}] if fires else []
            test["promql_expr_test"] = [{"expr": count, "eval_time": "119m", "exp_samples": samples}]
            test["name"] = f"{name}, {'firing' if fires else 'quiet'}"
            tests.append(test)
    path = tmp_path / "tests.yml"
    path.write_text(yaml.safe_dump({"rule_files": [str(FOLDER / "alerts.yml")], "tests": tests}))
    assert "SUCCESS" in promtool("test", "rules", str(path))
