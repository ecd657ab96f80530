"""What must hold after a smoke: the simulation's rules (``tests/simulation/checkers``), asked of real files.

One function for each rule, which names the first thing that breaks it. They are given columns, so a million of
transactions costs some tens of megabytes and a few seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from waltz_bench.smoke_files import (
    ABSENT,
    FATE,
    FED,
    IN_THE_LOG,
    NO_LOCK,
    UNKNOWN,
    UNLOCKED,
    Rows,
    fate_paths,
    fed_path,
    life_of,
    log_of,
    read_proposed,
    rows_of,
)
from waltz_bench.smoke_rosters import RosterRow, read_rosters
from waltz_ray.errors import WaltzError
from waltz_ray.storage.disk import OsDisk
from waltz_ray.storage.verify import VerifyReport, compare_reports, verify_directory

__all__ = ["CHECKS", "Evidence", "RuleBroken", "check_all", "gather"]


class RuleBroken(WaltzError):
    """A rule of the log does not hold. ``rule``: which."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule, self.what = rule, what


@dataclass
class Evidence:
    """``reports``: of every replica's directory, all verified; ``logs``: per partition the records of one of those that
    are alike; ``fates`` of all clients; ``fed``: (client, partition) -> what it was fed; ``proposed``: of each process
    that was not killed (``life_of``), how many transactions it wanted; ``rosters``: what was seen of the partitions'
    records in ZooKeeper, in order."""

    reports: list[VerifyReport]
    logs: list[Rows]
    fates: Rows
    fed: dict[tuple[int, int], Rows]
    proposed: Mapping[int, int]
    rosters: Sequence[RosterRow]
    replicas: int


def gather(replicas: Sequence[Path], histories: Path, partitions: int, clients: int) -> Evidence:
    """From the replicas' directories, of which no process is using any, and the clients' files. RuleBroken."""
    disk = OsDisk()
    reports = [verify_directory(disk, str(path)) for path in replicas]
    for report in reports:
        if report.damages:
            raise RuleBroken("no_loss", f"{report.directory} is damaged: {report.damages[0]}")
    proposed, rosters = read_proposed(histories), read_rosters(histories)
    try:
        logs = [log_of(disk, f"{replicas[0]}/{p}", p) for p in range(partitions)]
    except ValueError as error:
        raise RuleBroken("no_gap", str(error)) from error
    fates = [rows_of(path, FATE) for path in fate_paths(histories)]
    fed = {(c, p): rows_of(fed_path(histories, c, p), FED) for c in range(clients) for p in range(partitions)}
    joined = np.concatenate(fates) if fates else np.zeros(0, dtype=FATE)
    return Evidence(reports, logs, joined, fed, proposed, rosters, len(replicas))


def no_fork(evidence: Evidence) -> None:
    """All replicas have the same bytes: everything was committed before they were stopped."""
    for one in compare_reports(OsDisk(), evidence.reports, evidence.replicas):
        for error in one.errors:
            raise RuleBroken("no_fork", f"partition {one.partition_id}: {error}")
        for standing in one.standings:
            if standing.differs_from is not None or standing.behind:
                raise RuleBroken(
                    "no_fork",
                    f"partition {one.partition_id}: {standing.replica} ends at {standing.last_id}, "
                    f"committed is {one.committed_id}",
                )


def no_gap(evidence: Evidence) -> None:
    """The IDs of every replica's log are 0, 1, 2 ...; that each record is in its place is what verifying looked at."""
    for report in evidence.reports:
        for p, part in sorted(report.partitions.items()):
            if p < len(evidence.logs) and not part.records == part.last_id + 1 == len(evidence.logs[p]):
                raise RuleBroken(
                    "no_gap",
                    f"{report.directory}, partition {p}: {part.records} records, the last is {part.last_id}, "
                    f"and {len(evidence.logs[p])} were read",
                )


def no_duplicate(evidence: Evidence) -> None:
    """A ReqId, and what an application wanted once, is in the log at most once."""
    for p, log in enumerate(evidence.logs):
        asked = log[["client_id", "generation", "sequence_number"]]
        for at in _repeated(np.lexsort([asked[name] for name in asked.dtype.names or ()]), asked):
            raise RuleBroken("no_duplicate", f"partition {p}: {at} has the ReqId of another one: {asked[at]}")
    uids = _uids(evidence)
    for at in _repeated(np.argsort(uids, kind="stable"), uids):
        raise RuleBroken("no_duplicate", f"{_named(uids[at])} is in the log more than once")


def _repeated(order: Rows, rows: Rows) -> Iterator[int]:
    """Places of those that are like the one before, in this order."""
    along = rows[order]
    yield from (int(order[i + 1]) for i in np.flatnonzero(along[1:] == along[:-1])[:1])


def _uids(evidence: Evidence) -> Rows:
    return np.concatenate([log["uid"] for log in evidence.logs]) if evidence.logs else np.zeros(0, dtype="<u8")


def _named(uid: int) -> str:
    return f"transaction {int(uid) & 0xFFFFFFFF} of client {int(uid) >> 56}, life {int(uid) >> 32 & 0xFFFFFF},"


def no_loss(evidence: Evidence) -> None:
    """What an application was told is committed is in the log."""
    told = evidence.fates[evidence.fates["transaction_id"] >= IN_THE_LOG]
    lost = told[~np.isin(told["uid"], _uids(evidence))]
    for row in lost[:1]:
        raise RuleBroken(
            "no_loss", f"{_named(row['uid'])} was told to be committed and is not there ({len(lost)} are not)"
        )


def fates(evidence: Evidence) -> None:
    """Each has one fate; committed ones are where it was told, absent ones are not there; all of who lived have one."""
    rows = evidence.fates
    for at in _repeated(np.argsort(rows["uid"], kind="stable"), rows["uid"]):
        raise RuleBroken("fates", f"{_named(rows[at]['uid'])} was told two fates")
    for row in rows[np.isin(rows["uid"], _uids(evidence)) & (rows["transaction_id"] == ABSENT)][:1]:
        raise RuleBroken("fates", f"{_named(row['uid'])} was told to be absent and is in the log")
    for p, log in enumerate(evidence.logs):
        here = rows[(rows["partition"] == p) & (rows["transaction_id"] >= 0)]
        beyond = here["transaction_id"] >= len(log)
        found = log["uid"][np.where(beyond, 0, here["transaction_id"])] if len(log) else here["uid"] + 1
        for row in here[beyond | (found != here["uid"])][:1]:
            raise RuleBroken(
                "fates", f"{_named(row['uid'])} was told {row['transaction_id']} of partition {p}, another is"
            )
    counts = dict(zip(*(each.tolist() for each in np.unique(life_of(rows["uid"]), return_counts=True)), strict=True))
    for life, count in evidence.proposed.items():
        if counts.get(life, 0) != count:
            raise RuleBroken("fates", f"client {life >> 24} proposed {count}, and was told of {counts.get(life, 0)}")


def lock_safety(evidence: Evidence) -> None:
    """No transaction is in the log that locks what was updated after its client's mark."""
    for p, log in enumerate(evidence.logs):
        updated = [-1] * (NO_LOCK + 1)
        columns = [log[name].tolist() for name in ("mark", "write", "read", "append")]
        for transaction_id, (mark, write, read, append) in enumerate(zip(*columns, strict=True)):
            if mark == UNLOCKED:
                continue
            for lock in (write, read):
                if lock != NO_LOCK and updated[lock] > mark:
                    raise RuleBroken(
                        "lock_safety",
                        f"partition {p}: {transaction_id} was built at mark {mark}, and {updated[lock]} has updated "
                        f"its lock {lock}",
                    )
            for lock in (write, append):
                updated[lock] = transaction_id


def feed_order(evidence: Evidence) -> None:
    """Each client was fed 0, 1, 2 ... to the end over all its lives, and what it was fed is the log."""
    for (client, p), fed in evidence.fed.items():
        log = evidence.logs[p]
        wrong = np.flatnonzero(fed["transaction_id"] != np.arange(len(fed)))
        for at in wrong[:1]:
            raise RuleBroken("feed_order", f"client {client}, partition {p}: {fed[at]['transaction_id']} came as {at}")
        if len(fed) != len(log):
            raise RuleBroken("feed_order", f"client {client}, partition {p}: it was fed {len(fed)} of {len(log)}")
        for at in np.flatnonzero(fed["uid"] != log["uid"])[:1]:
            raise RuleBroken("feed_order", f"client {client}, partition {p}: it was fed another {at} than the log has")


def one_writer(evidence: Evidence) -> None:
    """A session is of one owner, sessions do not fall, closing marks stay, no replica is behind its record or in a
    session that nobody took.

    It can be ahead of its record: a session is opened on a replica before it is published there, and a replica that
    still catches up is published last (docs/design.md, "Sessions and recovery"); a round can end between the two.
    """
    owners: dict[tuple[int, int], str] = {}
    last: dict[int, RosterRow] = {}
    for row in evidence.rosters:
        p, roster = row.partition_id, row.roster
        known = owners.setdefault((p, roster.session_id), roster.owner)
        if known != roster.owner:
            raise RuleBroken("one_writer", f"partition {p}: session {roster.session_id} has two owners")
        before = last.get(p)
        if before is not None:
            _follows(p, before, row)
        last[p] = row
    for report in evidence.reports:
        for p, row in last.items():
            entry, roster = report.control[p], row.roster
            of_record = roster.replicas.get(int(report.directory.rpartition("-")[2]))
            if entry is None or of_record is None:
                continue
            if not of_record.session_id <= entry.session_id <= roster.session_id:
                raise RuleBroken(
                    "one_writer",
                    f"{report.directory}, partition {p}: it has session {entry.session_id}, its record says "
                    f"{of_record.session_id}, the last that anybody took is {roster.session_id}",
                )


def _follows(p: int, before: RosterRow, row: RosterRow) -> None:
    old, new = before.roster, row.roster
    if new.session_id < old.session_id or new.generation < old.generation:
        raise RuleBroken("one_writer", f"partition {p}: session {old.session_id} is followed by {new.session_id}")
    for replica_id, entry in new.replicas.items():
        known = old.replicas.get(replica_id)
        if known is None or entry.session_id != known.session_id:
            continue
        if known.closing_mark is not None and entry.closing_mark != known.closing_mark:
            raise RuleBroken(
                "one_writer",
                f"partition {p}: the closing mark of replica {replica_id} changes from {known.closing_mark} to "
                f"{entry.closing_mark}",
            )


CHECKS = (no_fork, no_gap, no_loss, no_duplicate, one_writer, lock_safety, fates, feed_order)


def check_all(evidence: Evidence) -> list[str]:
    """The names of the rules that were looked at. RuleBroken for the first that does not hold."""
    for check in CHECKS:
        check(evidence)
    unknown = int((evidence.fates["transaction_id"] == UNKNOWN).sum())
    return [check.__name__ for check in CHECKS] + ([f"{unknown} fates are unknown"] if unknown else [])
