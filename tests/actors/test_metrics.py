"""What the gauges are set to, from a status."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.runtime.test_status import SERVED
from waltz_ray.actors import metrics
from waltz_ray.actors.metrics import CursorGauges, Gauges, KvGauges, ServerGauges
from waltz_ray.runtime.measures import Measures
from waltz_ray.runtime.status import (
    ActorState,
    CursorStatus,
    EndpointStatistics,
    KvActorStatus,
    KvSpaceStatus,
    Readiness,
    ReplicaStatus,
    RottenSegment,
    ScrubStatus,
    ServerStatus,
    StoredPartition,
)

Sample = tuple[str, frozenset[tuple[str, str]]]


class Recorded:
    """As ``ray.util.metrics.Gauge``; the last value of each name and its tags."""

    values: dict[Sample, float]

    def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
        assert description
        self._name, self._keys, self._tags = name, set(tag_keys), dict[str, str]()

    def set_default_tags(self, tags: Mapping[str, str]) -> None:
        self._tags = dict(tags)

    def set(self, value: float, tags: dict[str, str]) -> None:
        told = self._tags | tags
        assert told.keys() == self._keys, "Ray refuses a tag that was not declared, or that is missing"
        assert all(value.isascii() for value in told.values()), "and one with other letters"
        self.values[self._name, frozenset(told.items())] = value


@pytest.fixture
def values(monkeypatch: pytest.MonkeyPatch) -> dict[Sample, float]:
    recorded: dict[Sample, float] = {}
    monkeypatch.setattr(Recorded, "values", recorded, raising=False)
    monkeypatch.setattr(metrics, "Gauge", Recorded)
    return recorded


def of(values: dict[Sample, float], **tags: str) -> dict[str, float]:
    """Those with exactly these tags, without what all names begin with."""
    return {name.removeprefix("waltz_"): value for (name, own), value in values.items() if own == set(tags.items())}


REPLICA: dict[str, Any] = {"state": ActorState.SERVING, "disk_use_bytes": 10, "disk_free_bytes": 20}


def test_a_replicas_gauges(values: dict[Sample, float]) -> None:
    partitions = {
        3: StoredPartition(session=5, first_id=0, last_id=0, low_water_mark=-1),
        4: StoredPartition(damaged="rot"),
    }
    traffic = EndpointStatistics(connections=1, turns=2, records=3, record_bytes=4)
    Gauges("c", "0").replica(ReplicaStatus(**REPLICA, partitions=partitions, traffic=traffic))
    assert of(values, cluster="c", replica="0") == {
        "replica_serving": 1,
        "replica_disk_slow": 0,
        "replica_disk_use_bytes": 10,
        "replica_disk_free_bytes": 20,
        "replica_partitions": 2,
        "replica_partitions_damaged": 1,
        "replica_connections": 1,
        "replica_turns": 2,
        "replica_records": 3,
        "replica_record_bytes": 4,
    }
    assert of(values, cluster="c", replica="0", partition="3") == {
        "replica_first_id": 0,
        "replica_last_id": 0,
        "replica_low_water_mark": -1,
        "replica_session": 5,
        "replica_damaged": 0,
    }
    assert of(values, cluster="c", replica="0", partition="4") == {"replica_damaged": 1}


def test_a_cluster_whose_name_is_not_ascii_has_gauges(values: dict[Sample, float]) -> None:
    ServerGauges("größe²", "1").server(ServerStatus(state=ActorState.SERVING, partitions={0: SERVED}))
    cursor = CursorStatus(space="log", name="n", positions={0: 1}, holds_retention=False, epoch=1, lag=3)
    CursorGauges("größe²").cursors([cursor])
    name = "gr%C3%B6%C3%9Fe%C2%B2"
    assert of(values, cluster=name, server="1")["server_serving"] == 1
    assert of(values, cluster=name, space="log", cursor="n")["cursor_lag"] == 3


def test_a_scrubs_gauges(values: dict[Sample, float]) -> None:
    scrub = ScrubStatus(5, 9, 1, 2_500, found=3, repaired=2, unrepaired=(RottenSegment(0, "f", "rot", ""),))
    Gauges("c", "0").replica(ReplicaStatus(state=ActorState.SERVING, scrub=scrub))
    told = of(values, cluster="c", replica="0")
    assert {name: told[f"replica_{name}"] for name in ("scrub_done_bytes", "scrub_total_bytes")} == {
        "scrub_done_bytes": 5,
        "scrub_total_bytes": 9,
    }
    assert (told["replica_scrub_began_seconds"], told["replica_scrub_last_pass_seconds"]) == (0.001, 2.5)
    assert [told[f"replica_damages_{name}"] for name in ("found", "repaired", "unrepaired")] == [3, 2, 1]


def test_what_is_not_known_leaves_the_old_value(values: dict[Sample, float]) -> None:
    gauges = Gauges("c", "0")
    gauges.replica(ReplicaStatus(**REPLICA, traffic=EndpointStatistics(turns=2)))
    gauges.replica(ReplicaStatus(state=ActorState.REFUSED))
    told = of(values, cluster="c", replica="0")
    assert (told["replica_serving"], told["replica_disk_use_bytes"], told["replica_turns"]) == (0, 10, 2)


def test_a_servers_gauges(values: dict[Sample, float]) -> None:
    status = ServerStatus(
        state=ActorState.SERVING, connections=3, slow_steps=2, longest_step_ms=25.5, partitions={0: SERVED}
    )
    ServerGauges("c", "1").server(status)
    assert of(values, cluster="c", server="1") == {
        "server_serving": 1,
        "server_connections": 3,
        "server_slow_steps": 2,
        "server_longest_step_ms": 25.5,
        "server_partitions": 1,
        "server_partitions_ready": 1,
    }
    assert of(values, cluster="c", server="1", partition="0") == {
        "partition_ready": 1,
        "partition_trim_mark": 3,
        "partition_high_water_mark": 7,
        "partition_session": 3,
        "partition_generation": 4,
        "partition_members": 2,
        "partition_replicas": 1,
        "partition_in_flight_bytes": 11,
        "partition_subscribers": 1,
    }


def test_a_mark_that_is_not_known_yet_is_not_told(values: dict[Sample, float]) -> None:
    """Prometheus would take -1 for a restart, and all that is in the log for records that came since."""
    opening = replace(SERVED, state=Readiness.NOT_READY, high_water_mark=-1)
    own = {"cluster": "c", "server": "1", "partition": "0"}
    gauges = ServerGauges("c", "1")
    gauges.server(ServerStatus(state=ActorState.SERVING, partitions={0: opening}))
    assert "partition_high_water_mark" not in of(values, **own)
    gauges.server(ServerStatus(state=ActorState.SERVING, partitions={0: SERVED}))
    gauges.server(ServerStatus(state=ActorState.SERVING, partitions={0: opening}))
    told = of(values, **own)
    assert (told["partition_ready"], told["partition_high_water_mark"]) == (0, 7)


def test_a_histogram_is_a_gauge_for_each_bound(values: dict[Sample, float]) -> None:
    measures = Measures()
    measures.commit.observe(0.003)
    measures.commit.observe(0.004)
    measures.refused["queue_full"] = 3
    ServerGauges("c", "1").server(ServerStatus(state=ActorState.SERVING, measures=measures.view()))
    own = {"cluster": "c", "server": "1", "stage": "commit"}
    assert of(values, **own) == {"append_stage_seconds_count": 2, "append_stage_seconds_sum": 0.007}
    bounds = {le: of(values, **own, le=le)["append_stage_seconds_bucket"] for le in ("0.002", "0.005", "60.0", "+Inf")}
    assert bounds == {"0.002": 0, "0.005": 2, "60.0": 2, "+Inf": 2}
    assert of(values, cluster="c", server="1", reason="queue_full") == {"append_refusals_total": 3}


def test_a_client_that_has_gone_is_behind_no_more(values: dict[Sample, float]) -> None:
    gauges = ServerGauges("c", "1")
    for lags in ({7: 5, 8: 0}, {8: 2}):
        served = replace(SERVED, lags=lags)
        gauges.server(ServerStatus(state=ActorState.SERVING, partitions={0: served}))
    own = {"cluster": "c", "server": "1", "partition": "0"}
    assert of(values, **own, client="7") == {"subscriber_lag_transactions": 0}
    assert of(values, **own, client="8") == {"subscriber_lag_transactions": 2}
    assert of(values, **own, replica="0") == {"partition_replica_lag_transactions": 0}
    many = replace(SERVED, lags=dict.fromkeys(range(1000), 1))
    gauges.server(ServerStatus(state=ActorState.SERVING, partitions={0: many}))
    told = [name for name, _ in values if name == "waltz_subscriber_lag_transactions"]
    assert len(told) == 4 * metrics.MOST_PARTITIONS


def test_a_partition_that_the_server_gave_up_is_not_ready_there(values: dict[Sample, float]) -> None:
    gauges = ServerGauges("c", "1")
    for partitions in ({0: replace(SERVED, lags={7: 5})}, {}):
        gauges.server(ServerStatus(state=ActorState.SERVING, partitions=partitions))
    told = of(values, cluster="c", server="1", partition="0")
    assert {name: told[f"partition_{name}"] for name in ("ready", "members", "subscribers", "in_flight_bytes")} == {
        "ready": 0,
        "members": 0,
        "subscribers": 0,
        "in_flight_bytes": 0,
    }
    assert told["partition_high_water_mark"] == 7, "a mark that fell would look like records when it comes back"
    lag = of(values, cluster="c", server="1", partition="0", client="7")
    assert lag == {"subscriber_lag_transactions": 0}


def test_a_partition_that_was_moved_away_from_a_replica_is_not_damaged_there(values: dict[Sample, float]) -> None:
    gauges = Gauges("c", "0")
    gauges.replica(ReplicaStatus(**REPLICA, partitions={4: StoredPartition(damaged="rot")}))
    gauges.replica(ReplicaStatus(state=ActorState.REFUSED))
    assert of(values, cluster="c", replica="0", partition="4") == {"replica_damaged": 1}, "it may be"
    gauges.replica(ReplicaStatus(**REPLICA))
    assert of(values, cluster="c", replica="0", partition="4") == {"replica_damaged": 0}


def test_of_very_many_partitions_some_are_told_and_all_are_counted(values: dict[Sample, float]) -> None:
    gauges = ServerGauges("c", "1")
    served = dict.fromkeys(range(metrics.MOST_PARTITIONS + 40), SERVED)
    for partitions in (served, {number + 5: one for number, one in served.items()}):
        gauges.server(ServerStatus(state=ActorState.SERVING, partitions=partitions))
    assert of(values, cluster="c", server="1")["server_partitions"] == metrics.MOST_PARTITIONS + 40
    ready = [dict(tags)["partition"] for name, tags in values if name == "waltz_partition_ready"]
    assert sorted(map(int, ready)) == list(range(metrics.MOST_PARTITIONS)), "the same for ever"


def test_the_gauges_of_cursors(values: dict[Sample, float]) -> None:
    audit = CursorStatus(space="log", name="audit", positions={0: 5}, holds_retention=False, epoch=1, lag=7, owner="me")
    gauges = CursorGauges("c")
    gauges.cursors([audit, replace(audit, name="mail", lag=None, owner=None)])
    assert of(values, cluster="c", space="log", cursor="audit") == {"cursor_lag": 7, "cursor_owned": 1}
    assert of(values, cluster="c", space="log", cursor="mail") == {"cursor_owned": 0}
    gauges.cursors([])
    assert of(values, cluster="c", space="log", cursor="audit") == {"cursor_lag": 0, "cursor_owned": 0}
    gauges.cursors(replace(audit, name=f"c{number}") for number in range(metrics.MOST_PARTITIONS + 9))
    assert len([name for name, _ in values if name == "waltz_cursor_lag"]) == metrics.MOST_PARTITIONS


def test_a_kv_actors_gauges(values: dict[Sample, float]) -> None:
    said = KvSpaceStatus(
        endpoint=None,
        incarnation=None,
        mask=0xFF,
        primaries=1,
        secondaries=2,
        lease=True,
        marks={0: 7},
        connections=3,
        commands=4,
        waiting=5,
        live_bytes=6,
        tail_bytes=7,
        snapshots=0,
    )
    gauges = KvGauges("c", "1")
    gauges.actor(KvActorStatus(state=ActorState.SERVING, spaces={"items": said, "more": said}))
    for space in ("items", "more"):
        assert of(values, cluster="c", actor="1", space=space) == {
            "kv_mask": 255,
            "kv_primaries": 1,
            "kv_secondaries": 2,
            "kv_lease": 1,
            "kv_connections": 3,
            "kv_commands": 4,
            "kv_waiting": 5,
            "kv_live_bytes": 6,
            "kv_tail_bytes": 7,
        }
    assert of(values, cluster="c", actor="1") == {"kv_serving": 1}
    gauges.actor(KvActorStatus(state=ActorState.STARTING, spaces={"items": said}))
    assert of(values, cluster="c", actor="1") == {"kv_serving": 0}
    deleted, left = (of(values, cluster="c", actor="1", space=space) for space in ("more", "items"))
    assert [deleted[f"kv_{name}"] for name in ("primaries", "secondaries", "lease", "live_bytes")] == [0, 0, 0, 0]
    assert deleted["kv_commands"] == 4
    assert left["kv_primaries"] == 1
    for number in range(200):
        gauges.actor(KvActorStatus(state=ActorState.SERVING, spaces={f"s{number}": said}))
    told = [name for name, _ in values if name == "waltz_kv_mask"]
    assert len(told) == metrics.MOST_PARTITIONS, "Ray forgets none of those that are made and deleted"


def test_one_round_that_fails_is_not_the_last_one(caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []

    async def rounds() -> None:
        enough = asyncio.Event()

        async def tell() -> None:
            told.append("round")
            if len(told) == 4:
                enough.set()
            if len(told) in (1, 2):
                raise OSError("too many open files")

        telling = asyncio.ensure_future(metrics.keep_telling("kv/0", tell, every_s=0.0))
        await asyncio.wait_for(enough.wait(), 20)
        telling.cancel()

    asyncio.run(rounds())
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["kv/0: its figures are not told to Ray; trying again"], "the same once"
