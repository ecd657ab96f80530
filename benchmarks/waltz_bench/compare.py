"""``waltz bench compare nats``: the same work by waltz_ray and by NATS JetStream, in turn, on the same disk.

Both clusters run all the time and one is idle while the other is measured. Every message of 1 KB is on the disks of a
quorum before its acknowledgement, in both; a separate, untimed run counts the syncs to prove it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from waltz_bench.clients import clients_of, many_load, single_load, window
from waltz_bench.cluster import Waltz, waltz_cluster
from waltz_bench.loads import AppendLoad, PipelinedLoad, single_appends
from waltz_bench.measure import Case, Figure, Sample, alternate, measure, ratio, warm_up
from waltz_bench.nats_cluster import Nats, nats_cluster
from waltz_bench.nats_load import NatsLoad, Shape, publish_in_turn
from waltz_bench.processes import DRIVER
from waltz_bench.report import report
from waltz_bench.syncs import count_syncs, strace_problem, synchronous_files
from waltz_ray.client.client import WaltzClient
from waltz_ray.errors import AppendFailed, InvalidInput
from waltz_ray.protocol.ids import quorum_of

__all__ = [
    "BATCHED",
    "BATCHES",
    "BATCH_RECORDS",
    "CASES",
    "MANY_CLIENTS",
    "ONE",
    "PIPELINED",
    "PIPELINED_RECORDS",
    "WALTZ",
    "CompareOptions",
    "compare_nats",
    "enough_syncs",
    "nats_ratios",
    "our_loads",
    "sync_proof",
]

ONE, MANY_CLIENTS, PIPELINED, BATCHED = (
    "1 outstanding",
    "64 clients with 1 each",
    "pipelined single",
    "append_many(100)",
)
BATCHED_ATOMIC = "append_many(100), as atomic batches"
CASES = (ONE, MANY_CLIENTS, PIPELINED, BATCHED)

WALTZ, NATS = "waltz_ray", "NATS"
PIPELINED_RECORDS = 4096
BATCH_RECORDS, BATCHES = 100, 64
_ATOMIC_BATCHES = 48  # NATS allows 50 of them in one stream


@dataclass(frozen=True)
class CompareOptions:
    """``seconds`` measured in each run after ``warmup_s``; ``proof_appends`` under strace, 0 = none."""

    runs: int = 5
    seconds: float = 2.0
    warmup_s: float = 0.5
    size_bytes: int = 1024
    clients: int = 64
    proof_appends: int = 200
    cases: tuple[str, ...] = CASES

    def __post_init__(self) -> None:
        unknown = [case for case in self.cases if case not in CASES]
        if unknown:
            raise InvalidInput(f"there is no case {unknown[0]!r}; the cases are: {', '.join(CASES)}")


def compare_nats(
    directory: Path, options: CompareOptions, running: str = "", progress: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Both clusters in ``directory``, every case in turn, then the proof. Raises what either system failed with."""
    with (
        waltz_cluster(directory, running, progress) as waltz,
        nats_cluster(directory / "nats", progress) as nats,
        clients_of(waltz, options.clients, 1) as clients,
        clients_of(waltz, 1, 1, outstanding=PIPELINED_RECORDS) as [pipelining],
    ):
        before = nats.stored()
        peer = _NatsCases(nats, options)
        cases = _cases(waltz, our_loads(clients, pipelining, options.size_bytes), peer, options)
        warm_up(cases, progress)
        rows = alternate(cases, options.runs, progress)
        if nats.stored() - before != peer.acknowledged:
            raise AppendFailed(f"NATS acknowledged {peer.acknowledged} messages and holds {nats.stored() - before}")
        progress("counting syncs")
        proof = sync_proof(waltz, clients[0], nats, directory, options.proof_appends)
        return report(
            "compare nats",
            rows,
            nats_ratios(rows),
            directory,
            sync_proof=proof,
            versions={"nats-server": nats.version},
            notes=_notes(rows, proof),
        )


def our_loads(
    clients: Sequence[WaltzClient], pipelining: WaltzClient, size: int
) -> dict[str, Callable[[], AppendLoad | PipelinedLoad]]:
    """waltz_ray's loads of all CASES. ``pipelining`` blocks at PIPELINED_RECORDS."""
    first = clients[:1]
    return {
        ONE: single_load(first, 1, size),
        MANY_CLIENTS: single_load(clients, len(clients), size),
        PIPELINED: lambda: PipelinedLoad(single_appends(pipelining, 0, size)),
        BATCHED: many_load(first, BATCHES, BATCH_RECORDS, size),
    }


class _NatsCases:
    """Runs of NATS loads; counts what was acknowledged in all of them."""

    def __init__(self, nats: Nats, options: CompareOptions) -> None:
        self._nats = nats
        self._processes = nats.processes()
        self._options = options
        self.acknowledged = 0

    def run(self, shape: Shape) -> Sample:
        load = NatsLoad(self._nats.port, shape)
        sample = measure(load, self._processes, self._options.seconds, self._options.warmup_s)
        self.acknowledged += load.acknowledged
        return sample


def _cases(
    waltz: Waltz,
    ours: dict[str, Callable[[], AppendLoad | PipelinedLoad]],
    peer: _NatsCases,
    options: CompareOptions,
) -> list[Case]:
    size = options.size_bytes
    theirs = {
        ONE: Shape(size_bytes=size),
        MANY_CLIENTS: Shape(clients=options.clients, size_bytes=size),
        PIPELINED: Shape(outstanding=PIPELINED_RECORDS, size_bytes=size),
        BATCHED: Shape(outstanding=BATCHES * BATCH_RECORDS, chunk=BATCH_RECORDS, size_bytes=size),
        BATCHED_ATOMIC: Shape(
            outstanding=_ATOMIC_BATCHES * BATCH_RECORDS, chunk=BATCH_RECORDS, size_bytes=size, atomic=True
        ),
    }
    cases: list[Case] = []
    for name in options.cases:
        cases.append(
            Case(name, window(ours[name], waltz.processes(), (options.seconds, options.warmup_s), waltz.syncs), WALTZ)
        )
        for peer_name in (name, BATCHED_ATOMIC) if name == BATCHED else (name,):
            cases.append(Case(peer_name, partial(peer.run, theirs[peer_name]), NATS))
    return cases


def nats_ratios(rows: Sequence[Figure]) -> dict[str, dict[str, Any]]:
    """waltz_ray by NATS, for the cases that were run. Batches are compared with the better of NATS's two ways."""
    found = {(row.system, row.case): row for row in rows}
    names = {case for system, case in found if system == WALTZ}
    ratios: dict[str, dict[str, Any]] = {}
    if ONE in names:
        value = found[WALTZ, ONE].p50_us / found[NATS, ONE].p50_us
        ratios[f"{ONE}, p50"] = ratio(value, 0.7, 0.5, smaller_is_better=True)
    for name, gate, goal in ((MANY_CLIENTS, 1.3, 1.8), (PIPELINED, 2.2, 3.0), (BATCHED, 3.2, 4.0)):
        if name in names:
            rivals = [found[key].rate for key in ((NATS, name), (NATS, f"{name}, as atomic batches")) if key in found]
            ratios[f"{name}, rate"] = ratio(found[WALTZ, name].rate / max(rivals), gate, goal)
    return ratios


def sync_proof(waltz: Waltz, client: WaltzClient, nats: Nats, directory: Path, appends: int) -> dict[str, Any]:
    """Sync calls of each replica and each NATS server during ``appends`` appends, one after the other.

    ``proven``: there were enough of them (``enough_syncs``); None, with the reason, where they cannot be counted.
    """
    problem = strace_problem() if appends else "it was not asked for"
    if problem:
        return {"appends": appends, "proven": None, "reason": problem}
    replicas = {name: pid for name, pid in waltz.pids().items() if name.startswith("replica")}

    def append_in_turn() -> None:
        for _ in range(appends):
            client.append(0, bytes(1024)).result()

    counted = {
        WALTZ: count_syncs(replicas, directory, append_in_turn),
        NATS: count_syncs(nats.pids, directory, lambda: publish_in_turn(nats.port, appends)),
    }
    pids = {WALTZ: replicas, NATS: nats.pids}
    proof: dict[str, Any] = {"appends": appends, "method": "strace -f, attached to every replica and server"}
    for system, of_processes in counted.items():
        totals = {name: sum(calls.values()) for name, calls in of_processes.items()}
        proof[system] = {
            "syncs": of_processes,
            "files_opened_synchronous": {name: synchronous_files(pid) for name, pid in pids[system].items()},
            "processes_with_a_sync_for_each_append": sum(total >= appends for total in totals.values()),
            "proven": enough_syncs(totals, appends),
        }
    proof["proven"] = all(proof[system]["proven"] for system in counted)
    return proof


def enough_syncs(totals: Mapping[str, int], appends: int) -> bool:
    """Whether every one of ``appends`` in turn can have been synced by a quorum before its acknowledgement.

    Each needs a sync of a quorum between its beginning and its end, and those times do not overlap. It need not be the
    same quorum: a process that is behind may sync two at once. So the syncs, at most ``appends`` of each process, must
    be at least quorum times ``appends``.
    """
    return sum(min(total, appends) for total in totals.values()) >= quorum_of(len(totals)) * appends


def _notes(rows: Sequence[Figure], proof: dict[str, Any]) -> list[str]:
    shares = [f"{row.system}, {row.case}: {row.cpu_share[DRIVER]:.0%} of a core" for row in rows]
    if proof["proven"] is None:
        said = f"syncs were not counted: {proof['reason']}"
    else:
        counts = "; ".join(
            f"{system} " + ", ".join(f"{name} {sum(c.values())}" for name, c in proof[system]["syncs"].items())
            for system in (WALTZ, NATS)
        )
        said = f"syncs during {proof['appends']} appends in turn: {counts}" + ("" if proof["proven"] else " - TOO FEW")
    return [f"load generator: {'; '.join(shares)}", said]
