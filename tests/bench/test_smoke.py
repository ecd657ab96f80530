"""A small smoke, end to end, and each rule broken in what it has left."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from waltz_bench import smoke as smoking
from waltz_bench.cluster import scratch_directory
from waltz_bench.smoke_checks import CHECKS, Evidence, RuleBroken, check_all, gather, one_writer
from waltz_bench.smoke_faults import FAULTS
from waltz_bench.smoke_files import ABSENT, FATE, FED, PAYLOAD, RowFile, rows_of
from waltz_bench.smoke_rosters import RosterRow

from waltz_ray.cli import main
from waltz_ray.protocol.records import HEADER_DTYPE, RECORD_HEADER_BYTES
from waltz_ray.protocol.roster import UNRESOLVED, ReplicaEntry, Roster
from waltz_ray.storage.layout import HEADER_BYTES, crc32_at_rest, segment_path

CLIENTS, PARTITIONS = 2, 4
SHORT = (
    "SIGKILL of a replica",
    "SIGKILL of a client",
    "SIGKILL of a server",
    "SIGKILL of ZooKeeper",
    "SIGSTOP of a replica",
)


@pytest.fixture(scope="module")
def smoked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """What a short one leaves, and what it has told."""
    directory, told = tmp_path_factory.mktemp("smoke"), list[str]()
    options = smoking.SmokeOptions(1_000, CLIENTS, rate=400.0, quiet_s=0.1, faults=SHORT, lasting=0.3)
    found = smoking.smoke(directory, options, tell=told.append)
    assert found["failures"] == []
    return directory, told


@pytest.fixture
def evidence(smoked: tuple[Path, list[str]]) -> Evidence:
    """Sound."""
    return read(smoked[0])


def read(directory: Path) -> Evidence:
    replicas = [directory / "waltz" / f"replica-{n}" for n in range(3)]
    return gather(replicas, directory / "histories", PARTITIONS, CLIENTS)


@pytest.mark.cluster
def test_a_small_smoke(smoked: tuple[Path, list[str]], evidence: Evidence) -> None:
    directory, told = smoked
    faults = [line for line in told if "felt" in line]
    assert [line.partition(": ")[0] for line in faults[: len(SHORT)]] == [f"round 1, fault {n}" for n in range(1, 6)]
    assert {name for name in SHORT if any(f": {name} (" in line for line in faults)} == set(SHORT)
    assert sum("3 replicas alike" in line for line in told) == 2
    assert smoking.check_files(directory, CLIENTS)[: len(CHECKS)] == [check.__name__ for check in CHECKS]
    assert sum(map(len, evidence.logs)) >= 1_000
    killed = len(np.unique(evidence.fates["uid"] >> np.uint64(32))) - len(evidence.proposed)
    assert killed >= 2, "each round has killed a client"
    locked = np.concatenate([log["mark"] for log in evidence.logs]) > -2
    assert 0.3 < locked.mean() < 0.9
    assert len(evidence.rosters) > 2 * PARTITIONS


Break = Callable[[Evidence], None]


def forget_an_acknowledged_append(evidence: Evidence) -> None:
    told = evidence.fates[evidence.fates["transaction_id"] >= 0]
    p, at = int(told["partition"][0]), int(told["transaction_id"][0])
    evidence.logs[p]["uid"][at] ^= np.uint64(1 << 31)


def take_a_fate_back(evidence: Evidence) -> None:
    evidence.fates["transaction_id"][np.flatnonzero(evidence.fates["transaction_id"] >= 0)[0]] = ABSENT


def leave_a_fate_open(evidence: Evidence) -> None:
    lives = np.isin((evidence.fates["uid"] >> np.uint64(32)).astype(np.int64), list(evidence.proposed))
    evidence.fates = np.delete(evidence.fates, np.flatnonzero(lives)[0])


def tell_another_id(evidence: Evidence) -> None:
    at = np.flatnonzero((evidence.fates["transaction_id"] >= 0) & (evidence.fates["partition"] == 1))[0]
    evidence.fates["transaction_id"][at] += 1


def tell_two_fates(evidence: Evidence) -> None:
    evidence.fates = np.append(evidence.fates, evidence.fates[:1])


def append_twice(evidence: Evidence) -> None:
    evidence.logs[2]["uid"][7] = evidence.logs[2]["uid"][3]


def use_a_request_twice(evidence: Evidence) -> None:
    for name in ("client_id", "generation", "sequence_number"):
        evidence.logs[0][name][7] = evidence.logs[0][name][3]


def lose_the_end_of_a_replica(evidence: Evidence) -> None:
    report = evidence.reports[2]
    part = report.partitions[1]
    report.partitions[1] = dataclasses.replace(part, records=part.records - 1)


def ignore_a_lock(evidence: Evidence) -> None:
    """Two that were built at the same mark have changed the same thing."""
    log = evidence.logs[3]
    for at in (10, 20):
        log["mark"][at], log["write"][at] = 9, 499


def feed_one_twice(evidence: Evidence) -> None:
    fed = evidence.fed[0, 1]
    evidence.fed[0, 1] = np.insert(fed, 5, fed[4])


def feed_another(evidence: Evidence) -> None:
    evidence.fed[1, 2]["uid"][3] += 1


def stop_feeding(evidence: Evidence) -> None:
    evidence.fed[1, 0] = evidence.fed[1, 0][:-1]


def take_a_session_twice(evidence: Evidence) -> None:
    last = evidence.rosters[-1]
    other = dataclasses.replace(last.roster, owner="somebody else")
    evidence.rosters = [*evidence.rosters, RosterRow(last.partition_id, other)]


def let_a_session_fall(evidence: Evidence) -> None:
    last = evidence.rosters[-1]
    other = dataclasses.replace(last.roster, session_id=1)
    evidence.rosters = [*evidence.rosters, RosterRow(last.partition_id, other)]


def last_roster(evidence: Evidence, partition_id: int) -> Roster:
    return [row.roster for row in evidence.rosters if row.partition_id == partition_id][-1]


def open_a_session_that_nobody_took(evidence: Evidence) -> None:
    entry = evidence.reports[1].control[2]
    assert entry is not None
    taken = last_roster(evidence, 2).session_id
    evidence.reports[1].control[2] = entry._replace(session_id=taken + 1)


def fall_behind_the_record(evidence: Evidence) -> None:
    entry, of_record = evidence.reports[1].control[2], last_roster(evidence, 2).replicas[1]
    assert entry is not None
    evidence.reports[1].control[2] = entry._replace(session_id=of_record.session_id - 1)


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (forget_an_acknowledged_append, "no_loss"),
        (take_a_fate_back, "fates"),
        (leave_a_fate_open, "fates"),
        (tell_another_id, "fates"),
        (tell_two_fates, "fates"),
        (append_twice, "no_duplicate"),
        (use_a_request_twice, "no_duplicate"),
        (lose_the_end_of_a_replica, "no_gap"),
        (ignore_a_lock, "lock_safety"),
        (feed_one_twice, "feed_order"),
        (feed_another, "feed_order"),
        (stop_feeding, "feed_order"),
        (take_a_session_twice, "one_writer"),
        (let_a_session_fall, "one_writer"),
        (open_a_session_that_nobody_took, "one_writer"),
        (fall_behind_the_record, "one_writer"),
    ],
)
def test_a_broken_rule_is_noticed(broken: Break, rule: str, evidence: Evidence) -> None:
    broken(evidence)
    [check] = [each for each in CHECKS if each.__name__ == rule]
    with pytest.raises(RuleBroken) as noticed:
        check(evidence)
    assert noticed.value.rule == rule


@pytest.mark.cluster
def test_a_round_can_end_while_a_replica_catches_up(evidence: Evidence) -> None:
    """Its session is open and not yet published: that is no second writer."""
    taken = last_roster(evidence, 2)
    of_record = ReplicaEntry(taken.session_id - 1, UNRESOLVED)
    catching_up = dataclasses.replace(taken, replicas={**taken.replicas, 1: of_record})
    evidence.rosters = [*evidence.rosters, RosterRow(2, catching_up)]
    one_writer(evidence)


def segment_of(directory: Path, replica: int, partition_id: int) -> Path:
    return Path(segment_path(f"{directory}/waltz/replica-{replica}/{partition_id}", 0))


@pytest.fixture
def copied(smoked: tuple[Path, list[str]], tmp_path: Path) -> Path:
    """The same files, to be spoiled."""
    for replica in range(3):
        shutil.copytree(smoked[0] / "waltz" / f"replica-{replica}", tmp_path / "waltz" / f"replica-{replica}")
    shutil.copytree(smoked[0] / "histories", tmp_path / "histories")
    return tmp_path


@pytest.mark.cluster
def test_one_byte_of_one_replica(copied: Path) -> None:
    path = segment_of(copied, 2, 1)
    raw = bytearray(path.read_bytes())
    raw[HEADER_BYTES + RECORD_HEADER_BYTES + 3] ^= 1
    path.write_bytes(raw)
    with pytest.raises(RuleBroken, match=r"no_loss: .*replica-2 is damaged: .*record 0 has a wrong checksum"):
        smoking.check_files(copied, CLIENTS)


@pytest.mark.cluster
def test_another_record_in_one_replica(copied: Path) -> None:
    """Its checksums are right: only the others know better."""
    path = segment_of(copied, 1, 3)
    raw = bytearray(path.read_bytes())
    start = HEADER_BYTES
    head = np.frombuffer(raw, dtype=HEADER_DTYPE, count=1, offset=start).copy()
    end = start + RECORD_HEADER_BYTES + int(head["data_length"][0])
    raw[end - 1] ^= 1
    head["data_checksum"] = crc32_at_rest(bytes(raw[start + RECORD_HEADER_BYTES : end]))
    raw[start : start + RECORD_HEADER_BYTES] = head.tobytes()
    raw[end : end + 4] = crc32_at_rest(bytes(raw[start:end])).to_bytes(4, "big")
    path.write_bytes(raw)
    with pytest.raises(RuleBroken, match=r"no_fork: partition 3: .*differ from transaction 0 on"):
        smoking.check_files(copied, CLIENTS)


@pytest.mark.cluster
def test_a_file_of_a_client(copied: Path) -> None:
    """What it was told is as much part of the evidence as what the replicas have."""
    path = copied / "histories" / "client-0.fates"
    rows = rows_of(path, FATE)
    path.write_bytes(rows[:-1].tobytes())
    with pytest.raises(RuleBroken, match="fates: client 0 proposed"):
        smoking.check_files(copied, CLIENTS)


def test_rows_that_were_cut_off_are_taken_away(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    file = RowFile(path, FED)
    assert file.last() is None
    file.add([(0, 5), (1, 6)])
    file.close()
    with path.open("ab") as torn:
        torn.write(b"\1\2\3")
    again = RowFile(path, FED)
    assert (again.count, tuple(again.last())) == (2, (1, 6))
    again.add([(2, 7)])
    again.close()
    assert rows_of(path, FED)["uid"].tolist() == [5, 6, 7]
    assert len(rows_of(tmp_path / "none", FATE)) == 0


def test_nothing_is_a_million_objects() -> None:
    """What a transaction costs in memory while files are looked at: some 80 bytes in columns."""
    assert PAYLOAD.itemsize + FATE.itemsize + FED.itemsize < 64


def test_faults_there_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["bench", "smoke", "--fault", "flood"])
    assert leaving.value.code == 1
    assert f"there is no fault 'flood'; there are: {', '.join(FAULTS)}" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.cluster
def test_all_rules_hold(evidence: Evidence) -> None:
    assert [name for name in check_all(evidence) if "unknown" not in name] == [check.__name__ for check in CHECKS]
    assert json.loads(json.dumps(evidence.proposed))


@pytest.mark.parametrize("error", [RuleBroken("no_loss", "it is gone"), KeyboardInterrupt()])
def test_only_what_a_broken_rule_leaves_is_kept(error: BaseException, tmp_path: Path) -> None:
    def leave() -> None:
        with scratch_directory(str(tmp_path), (RuleBroken,)) as place:
            (place / "evidence").touch()
            raise error

    with pytest.raises(type(error)):
        leave()
    assert len(list(tmp_path.glob("*/evidence"))) == isinstance(error, RuleBroken)
