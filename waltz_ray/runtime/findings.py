"""What is wrong in a status, and what to do about it: the lines of ``waltz status``, and what ``waltz doctor`` says.

Pure: a status in, findings out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

from waltz_ray.runtime.status import (
    ActorState,
    ActorStatus,
    ClusterStatus,
    PartitionAssignment,
    ProcessStatus,
    Readiness,
    ReplicaStatus,
    ServedPartition,
    ZooKeeperStatus,
    ZooKeeperView,
)

__all__ = [
    "CLOCKS_APART_S",
    "Finding",
    "NEARLY_FULL_BYTES",
    "NOT_CHECKED_S",
    "SILENT_S",
    "examine",
    "what_is_not_whole",
    "what_does_not_serve",
]

SILENT_S = 6.0
"""A ZooKeeper that has not answered for so long does not: three requests of the pulse."""

CLOCKS_APART_S = 5.0
"""Clocks of two machines that differ by more than this are wrong; answers take up to 2 s to come together."""

NOT_CHECKED_S = 14 * 24 * 3600
"""A replica whose files were not read again for so long is not checked: a pass begins every week."""

NEARLY_FULL_BYTES = 1 << 30
"""A replica's disk with less room than this is nearly full."""


@dataclass(frozen=True, slots=True)
class Finding:
    """``problem`` of ``about``, and what to do: ``remedy``. Each is for people, on one line."""

    about: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.about}: {self.problem}"


def what_does_not_serve(view: ClusterStatus) -> list[Finding]:
    """Everything that does not serve as it should."""
    found = [*_silent_manager(view), *_zookeeper(view)]
    for number, server in view.servers.items():
        found += _not_serving(f"server {number}", server)
        if server.zookeeper is not None:
            found += _no_answer(f"server {number}: ZooKeeper", server.zookeeper)
    for number, replica in view.replicas.items():
        found += _replica(f"replica {number}", replica)
    for each in view.partitions:
        found += _partition(each, view.served(each))
    found += _kv(view)
    found += _topics(view)
    if view.manager.http_error:
        remedy = "free that port, or choose another (HttpConfig.port): it is tried again every few seconds"
        found.append(Finding("manager", view.manager.http_error, remedy))
    if view.manager.supervision_error:
        found.append(Finding("manager", view.manager.supervision_error, "see to what it says of Ray's nodes"))
    return found


def what_is_not_whole(view: ClusterStatus) -> list[Finding]:
    """What does not serve, and partitions that commit without some of their replicas: one more loss could stop them."""
    found = what_does_not_serve(view)
    for each in view.partitions:
        served = view.served(each)
        if served is not None and not served.hindrance:
            found += _few_members(each.partition, served)
    return found


def examine(view: ClusterStatus) -> list[Finding]:
    """What does not serve, and what serves but will not for long, or worse than it could."""
    found = what_is_not_whole(view)
    for number, replica in view.replicas.items():
        free = replica.disk_free_bytes
        if not replica.problem and free is not None and free < NEARLY_FULL_BYTES:
            room = f"its disk is nearly full: {free >> 20} MB are left in {replica.directory}"
            found.append(
                Finding(f"replica {number}", room, "make room before appends are refused, or move the replica")
            )
        if replica.slow:
            found.append(Finding(f"replica {number}", replica.slow, _SLOW_REMEDY))
    return [
        *found,
        *_not_reached(view),
        *_not_checked(view),
        *_idle_servers(view),
        *_processes(view),
        *_held_by_nobody(view),
        *_half_upgraded(view),
    ]


def _silent_manager(view: ClusterStatus) -> list[Finding]:
    if not view.manager.reason:
        return []
    remedy = "the log goes on without it; Ray starts it again, if not: look into Ray's logs, then `waltz up` once more"
    return [Finding("manager", view.manager.reason, remedy)]


def _zookeeper(view: ClusterStatus) -> Iterator[Finding]:
    if view.zookeeper_state is not None:
        seen = view.zookeeper_state
        yield from _no_answer("ZooKeeper", seen, seen.view_age_s) or _not_read(seen)
    server = view.zookeeper_server
    if server is not None:  # ours, on one of the cluster's disks
        yield from _not_serving("ZooKeeper's server", server)
        if server.problem:
            remedy = "make room on that disk: without it no session is taken and no partition moves"
            yield Finding("ZooKeeper's server", server.problem, remedy)


def _no_answer(who: str, seen: ZooKeeperStatus, view_age_s: float | None = None) -> list[Finding]:
    if seen.answers(SILENT_S):
        return []
    old = "" if view_age_s is None else f"; what is shown of it was read {view_age_s:.0f} s ago"
    why = f": {seen.error}" if seen.error else ""
    remedy = (
        "see that ZooKeeper runs, can be reached and has room on its disk; open sessions go on committing meanwhile"
    )
    return [Finding(who, f"does not answer for {seen.silent_s:.0f} s ({seen.state}{why}){old}", remedy)]


def _not_read(seen: ZooKeeperView) -> list[Finding]:
    """It answers, and the manager cannot read there what it shows: as of a node that makes no sense."""
    age_s = seen.view_age_s
    if not seen.view_error or (age_s is not None and age_s < SILENT_S):
        return []
    shown = "nothing of it is shown" if age_s is None else f"what is shown of it was read {age_s:.0f} s ago"
    remedy = "put right what it says; until then who has which partition, spaces and cursors are shown as they were"
    return [Finding("ZooKeeper", f"cannot be read ({seen.view_error}); {shown}", remedy)]


_REMEDIES = {
    ActorState.STARTING: "wait; if it lasts, do what its reason says",
    ActorState.REFUSED: "do what its reason says; it looks again by itself (lost files: `waltz replace-replica`)",
    ActorState.STOPPED: "start the cluster again: waltz up",
    ActorState.DOWN: "wait: it is started again; if that fails, do what its reason says",
    ActorState.NO_ANSWER: "see whether its node is up and its process hangs; ended, it is started again",
    ActorState.ABSENT: "wait: the manager starts it; without a manager: waltz up",
}


def _not_serving(who: str, actor: ActorStatus, since: str = "") -> list[Finding]:
    if actor.serving:
        return []
    silence = "" if actor.silent_s is None else f"does not answer for {actor.silent_s:.0f} s: "
    problem = f"{actor.state}{since}: {silence}{actor.reason or 'it gives no reason'}"
    return [Finding(who, problem, _REMEDIES[actor.state])]


_SLOW_REMEDY = (
    "who else writes to that disk, or is it failing (dmesg, SMART)? one slow replica of three holds nobody up"
)

_FULL_REMEDY = "make room on its disk; it goes on by itself within seconds"

_TRIES_AGAIN_REMEDY = "do what it says, or see its log; it goes on by itself within seconds"

_LOST_REMEDY = "mount the right disk; if it is this one: see that the others serve, then waltz replace-replica"

_ROTTEN_REMEDY = (
    "see that another replica serves, and has room here: it is tried again by itself; if copies disagree, compare them "
    "with waltz verify before waltz replace-replica"
)


def _replica(who: str, replica: ReplicaStatus) -> Iterator[Finding]:
    yield from _not_serving(who, replica, _since(replica.since_ms))
    if replica.problem:
        is_full = "no space left" in replica.problem  # else it is handles, memory, or what nobody foresaw
        yield Finding(who, replica.problem, _FULL_REMEDY if is_full else _TRIES_AGAIN_REMEDY)
    if replica.lost:
        yield Finding(who, replica.lost, _LOST_REMEDY)
    for partition_id, stored in replica.partitions.items():
        if stored.damaged:
            remedy = "wait: it is copied anew from its peers; if nothing changes: waltz replace-replica --partition"
            yield Finding(f"{who}, partition {partition_id}", stored.damaged, remedy)
    for rotten in () if replica.scrub is None else replica.scrub.unrepaired:
        if rotten.why_not:
            problem = f"{rotten.damage}; not repaired: {rotten.why_not}"
            yield Finding(f"{who}, partition {rotten.partition}", problem, _ROTTEN_REMEDY)


def _partition(each: PartitionAssignment, served: ServedPartition | None) -> list[Finding]:
    who = f"partition {each.partition}"
    if served is None or served.state is not Readiness.READY:
        where = "no server has it" if each.server is None else f"server {each.server} has it"
        why = "" if served is None or not served.hindrance else f": {served.hindrance}"
        remedy = "see to its servers and replicas; it opens by itself when a quorum of them answers"
        return [Finding(who, f"not ready, {where}{why}", remedy)]
    if served.hindrance:
        remedy = "see to the replicas that are named; what was appended waits and is not lost"
        return [Finding(who, f"takes no appends: {served.hindrance}", remedy)]
    return []


def _kv(view: ClusterStatus) -> Iterator[Finding]:
    for number, actor in view.kv.items():
        yield from _not_serving(f"kv {number}", actor)
        if actor.zookeeper is not None:
            yield from _no_answer(f"kv {number}: ZooKeeper", actor.zookeeper)
        for name, said in actor.spaces.items():
            if said.outrun:
                yield _outrun(f"kv {number}, space {name}", said.outrun, f"/{view.cluster}/store/units/kv/{name}/table")
    if not any(actor.serving for actor in view.kv.values()):
        return
    for space in view.spaces:
        unserved = view.unserved_buckets(space.name) if space.kind == "kv" else 0
        if unserved > 0:
            remedy = "wait: they are given to actors that live; if it lasts, see to these and to the manager"
            yield Finding(f"space {space.name}", f"{unserved} of its buckets are served by nobody", remedy)


def _outrun(who: str, what: str, node: str) -> Finding:
    remedy = (
        "wait a moment; if it lasts, ZooKeeper had lost the table, and the clock of the manager's node was behind when "
        f"it made it anew: set that clock, and delete {node} in ZooKeeper, which the manager makes again"
    )
    return Finding(who, f"cannot take {what}", remedy)


def _topics(view: ClusterStatus) -> Iterator[Finding]:
    for number, actor in view.topics.items():
        yield from _not_serving(f"topic {number}", actor)
        if actor.zookeeper is not None:
            yield from _no_answer(f"topic {number}: ZooKeeper", actor.zookeeper)
        if actor.outrun:
            yield _outrun(f"topic {number}", actor.outrun, f"/{view.cluster}/store/units/topic/slots/table")
    if not any(actor.serving for actor in view.topics.values()):
        return
    if not any(actor.leads for actor in view.topics.values()):
        remedy = "wait a moment: another actor takes over; if it lasts, see to ZooKeeper"
        yield Finding("topics", "no actor is the master: clients can neither register nor beat", remedy)
    for space in view.spaces:
        unserved = view.unserved_slots(space) if space.kind == "topic" else 0
        if unserved > 0:
            remedy = "wait: they are given to actors that live; if it lasts, see to these and to the manager"
            yield Finding(f"topic {space.name}", f"{unserved} of its partitions are served by nobody", remedy)


def _few_members(partition_id: int, served: ServedPartition) -> list[Finding]:
    outside = [
        f"replica {replica_id} is {progress.phase.value} and {max(0, served.high_water_mark - progress.last_id)} behind"
        for replica_id, progress in sorted(served.replicas.items())
        if replica_id not in served.members
    ]
    if not outside:
        return []
    problem = f"commits on {len(served.members)} of {len(served.replicas)} replicas: {', '.join(outside)}"
    remedy = "one that is lost has to come back (see it above), any other catches up by itself: look again"
    return [Finding(f"partition {partition_id}", problem, remedy)]


def _not_reached(view: ClusterStatus) -> Iterator[Finding]:
    """Where both ends serve, it is what is between."""
    for number, server in view.servers.items():
        away = [r for r, link in sorted(server.links.items()) if not link.up and r in view.replicas]
        serving = [str(r) for r in away if view.replicas[r].serving]
        if server.serving and serving:
            problem = f"does not reach replica {', '.join(serving)}, which serve{'' if len(serving) > 1 else 's'}"
            remedy = "see to the network between them; who reaches half of the replicas or fewer gives way to another"
            yield Finding(f"server {number}", problem, remedy)


def _not_checked(view: ClusterStatus) -> Iterator[Finding]:
    for number, replica in view.replicas.items():
        scrub = replica.scrub
        if scrub is not None and scrub.ended:
            problem = f"its files are not checked or repaired any more: {scrub.ended}"
            remedy = "a bug of this replica: see its log, and end its process, which is started again"
            yield Finding(f"replica {number}", problem, remedy)
        if view.at_ms is None or scrub is None:
            continue
        # Before the end of the first pass since that began: it may never end.
        since_ms = scrub.began_ms if scrub.last_pass_ms is None else scrub.last_pass_ms
        if since_ms is None:
            continue
        age_s = (view.at_ms - since_ms) / 1000
        if age_s > NOT_CHECKED_S:
            remedy = "see whether scrub_bytes_per_s is too little for what it stores, or it is restarted too often"
            yield Finding(f"replica {number}", f"its files were not checked for {age_s / 86400:.0f} days", remedy)


def _processes(view: ClusterStatus) -> Iterator[Finding]:
    """What differs between the machines of a cluster, or is short on one."""
    kinds: dict[str, Mapping[int, ActorStatus]] = {
        "server": view.servers,
        "replica": view.replicas,
        "kv": view.kv,
        "topic": view.topics,
    }
    own = view.manager.process
    for kind, actors in kinds.items():
        for number, actor in actors.items():
            if actor.process is not None:
                yield from _process(f"{kind} {number}", actor.process, own, view.at_ms)


def _process(who: str, process: ProcessStatus, own: ProcessStatus | None, at_ms: int | None) -> Iterator[Finding]:
    if at_ms is not None and abs(apart := (process.now_ms - at_ms) / 1000) > CLOCKS_APART_S:
        problem = f"its clock is {abs(apart):.0f} s {'ahead of' if apart > 0 else 'behind'} the manager's"
        yield Finding(who, problem, "set both machines' clocks by NTP: times of records, and retention, go by them")
    if own is not None and (process.version, process.python) != (own.version, own.python):
        problem = f"runs {process.version} on Python {process.python}, the manager {own.version} on {own.python}"
        yield Finding(
            who, problem, "finish the upgrade: the same packages on every node, then end that actor's process"
        )
    limit = process.open_files_limit
    if process.open_files is not None and process.open_files > 0.8 * limit:
        problem = f"has {process.open_files} files open of the {limit} that it may have"
        remedy = f"raise the limit where its node's Ray is started: ulimit -n {4 * limit}"
        yield Finding(who, problem, remedy)


def _half_upgraded(view: ClusterStatus) -> Iterator[Finding]:
    if view.upgrading:
        problem = "an upgrade, or a change of settings, is under way, or was interrupted: some run as before"
        yield Finding("cluster", problem, "if nobody carries it on: waltz upgrade --rolling, or the same waltz apply")


def _held_by_nobody(view: ClusterStatus) -> Iterator[Finding]:
    for cursor in view.cursors:
        if view.at_ms is None or not cursor.holds_retention or cursor.owner is not None or not cursor.lag:
            continue
        days = (view.at_ms - cursor.changed_ms) / 86_400_000
        if days > 1:
            problem = f"holds {cursor.lag} transactions back from retention, and nobody has had it for {days:.0f} days"
            remedy = "start its reader again; if it is gone for good: waltz cursor delete"
            yield Finding(f"cursor {cursor.name} of space {cursor.space}", problem, remedy)


def _idle_servers(view: ClusterStatus) -> list[Finding]:
    serving = {number: server for number, server in view.servers.items() if server.serving}
    if not any(len(server.partitions) > 1 for server in serving.values()):
        return []
    remedy = "the manager gives it some within seconds: look again; if not, see why the manager does not"
    drained = () if view.members is None else view.members.draining_servers
    return [
        Finding(f"server {number}", "has no partition while others have several", remedy)
        for number, server in serving.items()
        if not server.partitions and number not in drained
    ]


def _since(since_ms: int | None) -> str:
    if since_ms is None:
        return ""
    return f" since {datetime.fromtimestamp(since_ms / 1000, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
