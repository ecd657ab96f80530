"""A status travels from its actor and is told as JSON, with the keys that users read."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from waltz_ray.config import ClusterConfig
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.messages.replica import RefusalCode
from waltz_ray.protocol.partition.state import Stage
from waltz_ray.protocol.session_replica import Phase
from waltz_ray.protocol.spaces import Space, SpaceState
from waltz_ray.runtime.status import (
    ActorState,
    ClusterStatus,
    CursorStatus,
    EmbeddedZooKeeperStatus,
    EndpointStatistics,
    KvActorStatus,
    KvSpaceStatus,
    LinkStatus,
    ManagerStatus,
    PartitionAssignment,
    Readiness,
    ReplicaProgress,
    ReplicaStatus,
    RottenSegment,
    ScrubStatus,
    ServedPartition,
    ServerStatus,
    StoredPartition,
    ZooKeeperStatus,
    ZooKeeperView,
    cursors_behind,
    known_marks,
    to_json,
)

SERVED = ServedPartition(
    generation=4,
    state=Readiness.READY,
    stage=Stage.OPEN,
    session=3,
    low_water_mark=5,
    high_water_mark=7,
    members=(0, 2),
    replicas={0: ReplicaProgress(Phase.MEMBER, 7)},
    in_flight_bytes=11,
    subscribers=1,
    trim_mark=3,
)
CLUSTER = ClusterStatus(
    cluster="c",
    cluster_key=UUID(int=5),
    zookeeper="h:1",
    zookeeper_state=ZooKeeperView("connected", 1.2, "", None, ""),
    manager=ManagerStatus(1, True),
    partitions=(PartitionAssignment(0, 1, 4, 3, (0, 2)), PartitionAssignment(1)),
    registered_servers={1: Endpoint("h", 2)},
    announced_replicas={0: Endpoint("h", 3)},
    servers={
        1: ServerStatus(
            state=ActorState.SERVING,
            endpoint=Endpoint("h", 2),
            links={0: LinkStatus(False, None, {RefusalCode.NOT_CONTIGUOUS: 2})},
            partitions={0: SERVED},
            zookeeper=ZooKeeperStatus("suspended", 9.0, "gone"),
        )
    },
    replicas={
        0: ReplicaStatus(
            state=ActorState.NO_ANSWER, partitions={0: StoredPartition(last_id=7)}, traffic=EndpointStatistics(turns=2)
        )
    },
    placement={0: "node:h"},
    config=ClusterConfig(name="c", directory="/d", partitions=2, replicas=1, servers=2),
)


def as_read() -> Any:
    """What a user's program reads."""
    return json.loads(json.dumps(to_json(CLUSTER)))


def test_the_keys_are_the_fields_and_numbers_are_text() -> None:
    read = as_read()
    assert read["cluster_key"] == "00000000-0000-0000-0000-000000000005"
    assert read["partitions"] == [
        {"partition": 0, "server": 1, "generation": 4, "session": 3, "members": [0, 2], "replicas": []},
        {"partition": 1, "server": None, "generation": 0, "session": -1, "members": [], "replicas": []},
    ]
    assert (read["registered_servers"], read["placement"]) == ({"1": "h:2"}, {"0": "node:h"})
    assert read["zookeeper_state"] == {
        "state": "connected",
        "silent_s": 1.2,
        "error": "",
        "view_age_s": None,
        "view_error": "",
    }
    assert (read["config"]["partitions"], read["config"]["server"]["port"]) == (2, 0)
    assert read["replicas"]["0"]["partitions"]["0"]["last_id"] == 7
    assert read["replicas"]["0"]["traffic"]["turns"] == 2


def test_an_enum_is_its_word() -> None:
    server = as_read()["servers"]["1"]
    assert (server["state"], server["endpoint"]) == ("SERVING", "h:2")
    assert server["links"] == {"0": {"up": False, "endpoint": None, "refusals": {"NOT_CONTIGUOUS": 2}}}
    served = server["partitions"]["0"]
    assert (served["state"], served["stage"]) == ("READY", "open")
    assert served["replicas"] == {"0": {"phase": "member", "last_id": 7}}
    assert as_read()["replicas"]["0"]["state"] == "NO ANSWER"


def test_what_json_has_no_word_for_is_an_error() -> None:
    with pytest.raises(TypeError, match="no word for bytes"):
        to_json({"a": [b"x"]})
    with pytest.raises(TypeError, match="no word for type"):
        to_json(ClusterStatus)


# Keys of `waltz status --json` as users have known them since there is the command: none may go.
KNOWN: list[tuple[type, str]] = [
    (ClusterStatus, "cluster cluster_key partitions registered_servers announced_replicas zookeeper zookeeper_state"),
    (ClusterStatus, "servers replicas placement manager config cursors"),
    (ManagerStatus, "pid leading supervision_error reason"),
    (CursorStatus, "space name positions holds_retention epoch owner since_ms changed_ms lag"),
    (PartitionAssignment, "partition server generation session members"),
    (ZooKeeperView, "state silent_s error view_age_s view_error"),
    (ServerStatus, "state reason silent_s pid server_id incarnation endpoint connections slow_steps longest_step_ms"),
    (ServerStatus, "links partitions zookeeper"),
    (LinkStatus, "up endpoint refusals"),
    (ServedPartition, "generation state stage session low_water_mark high_water_mark members replicas"),
    (ServedPartition, "in_flight_bytes subscribers"),
    (ReplicaProgress, "phase last_id"),
    (ReplicaStatus, "replica state reason silent_s since_ms problem pid incarnation directory endpoint node"),
    (ReplicaStatus, "disk_use_bytes disk_free_bytes partitions traffic"),
    (StoredPartition, "session last_id synced_id low_water_mark local_low_water_mark damaged"),
    (ReplicaStatus, "scrub"),
    (ScrubStatus, "done_bytes total_bytes began_ms last_pass_ms found repaired unrepaired ended"),
    (RottenSegment, "partition path damage why_not"),
    (EndpointStatistics, "connections turns requests records record_bytes"),
    (EmbeddedZooKeeperStatus, "state reason endpoint pid restarts"),
    (ClusterStatus, "kv"),
    (KvActorStatus, "state reason silent_s pid actor spaces zookeeper"),
    (KvSpaceStatus, "endpoint incarnation mask primaries secondaries lease marks connections commands waiting"),
    (KvSpaceStatus, "live_bytes tail_bytes snapshots"),
]


@pytest.mark.parametrize(("kind", "keys"), KNOWN)
def test_no_key_that_users_read_has_gone(kind: type, keys: str) -> None:
    assert set(keys.split()) <= set(kind.__dataclass_fields__)  # type: ignore[attr-defined]


def test_it_travels_and_cannot_be_changed() -> None:
    assert pickle.loads(pickle.dumps(CLUSTER)) == CLUSTER
    with pytest.raises(AttributeError):
        CLUSTER.servers[1].reason = "changed"  # type: ignore[misc]


def test_it_travels_between_two_releases() -> None:
    """One of them has a field that the other does not know, in the midst of the others."""
    rebuild, (kind, names, values) = SERVED.__reduce__()
    assert isinstance(names, tuple)
    assert isinstance(values, tuple)
    assert rebuild(kind, ("colour", *names), ("blue", *values)) == SERVED
    said = {name: value for name, value in zip(names, values, strict=True) if name != "hindrance"}
    assert rebuild(kind, tuple(said), tuple(said.values())) == SERVED


def test_a_partition_is_served_by_the_server_that_has_it_or_by_nobody() -> None:
    assert CLUSTER.served(CLUSTER.partitions[0]) is SERVED
    assert CLUSTER.served(CLUSTER.partitions[1]) is None
    assert CLUSTER.served(PartitionAssignment(0, 7)) is None


@pytest.mark.parametrize(("state", "silent_s", "answers"), [("connected", 5.9, True), ("connected", 6.0, False)])
def test_zookeeper_answers_while_it_is_not_silent(state: str, silent_s: float, answers: bool) -> None:
    assert ZooKeeperStatus(state, silent_s, "").answers(6.0) is answers
    assert not ZooKeeperStatus("suspended", silent_s, "").answers(6.0)


def test_how_far_cursors_are_behind() -> None:
    def cursor(space: str, positions: dict[int, int]) -> CursorStatus:
        return CursorStatus(space=space, name="audit", positions=positions, holds_retention=False, epoch=1)

    spaces = [Space("log", "log", 0, 2, SpaceState.READY), Space("orders", "log", 2, 2, SpaceState.READY)]
    servers = {
        1: ServerStatus(state=ActorState.SERVING, partitions={0: SERVED, 2: SERVED}),
        2: ServerStatus(state=ActorState.SERVING, partitions={0: replace(SERVED, high_water_mark=9)}),
    }
    cursors = [cursor("log", {0: 4}), cursor("orders", {0: 8}), cursor("orders", {0: 1, 1: 0}), cursor("gone", {0: 1})]
    found = cursors_behind(cursors, spaces, servers)
    assert [each.lag for each in found] == [6, 0, None], "of partition 3 nobody says anything"


def test_where_a_log_ends_is_not_known_before_it_is_open() -> None:
    """A server that has just been given a partition says -1, as of an empty one."""
    opening = replace(SERVED, state=Readiness.NOT_READY, stage=Stage.OPENING, session=None, high_water_mark=-1)
    assert (SERVED.known_mark, opening.known_mark) == (7, None)
    assert replace(SERVED, high_water_mark=-1).known_mark == -1, "of an empty log it is known"
    cursor = CursorStatus(space="log", name="audit", positions={0: 4}, holds_retention=False, epoch=1)
    servers = {1: ServerStatus(state=ActorState.SERVING, partitions={0: opening})}
    (found,) = cursors_behind([cursor], [Space("log", "log", 0, 2, SpaceState.READY)], servers)
    assert found.lag is None, "it would be said to have read everything"


def test_while_a_partition_moves_the_mark_is_that_of_whoever_knows_more() -> None:
    """Whose it was tells an old one for a moment; whose it is knows none before its session is open."""
    old, new = replace(SERVED, high_water_mark=6), replace(SERVED, generation=5, high_water_mark=7)
    opening = replace(SERVED, state=Readiness.NOT_READY, stage=Stage.OPENING, session=None, high_water_mark=-1)
    for partitions in ([old, new], [new, old], [new, opening], [opening, old, new]):
        servers = [ServerStatus(state=ActorState.SERVING, partitions={0: each}) for each in partitions]
        assert known_marks(servers) == {0: 7}
    assert known_marks([ServerStatus(state=ActorState.SERVING, partitions={0: opening})]) == {}
