"""What keeps a partition from taking appends, in one line for people. It decides nothing.

The line stays the same as long as its reasons do: nothing in it counts or tells the time.
"""

from __future__ import annotations

from waltz_ray.protocol.partition.reign import Reign
from waltz_ray.protocol.partition.state import PartitionState, Stage
from waltz_ray.protocol.session import Session
from waltz_ray.protocol.session_replica import Phase, SessionReplica

__all__ = ["NOT_HERE", "hindrance"]

NOT_HERE = "its server does not have it any more"


ZOOKEEPER_IS_SILENT = (
    "ZooKeeper, which gives the next session, does not answer: it may be down, or its disk full (`waltz doctor` says)"
)


def hindrance(state: PartitionState, reign: Reign, zookeeper_trouble: str) -> str:
    """Empty if nothing does. ``zookeeper_trouble``: why its last request had no answer that helps, "" = it had."""
    running = state.session
    if state.stage is Stage.IDLE:
        return NOT_HERE
    if running is not None and len(running.members) >= running.quorum:
        return ""
    newest = reign.sessions[-1] if reign.sessions else None
    reasons = [] if newest is None else _absent(newest)
    if zookeeper_trouble:
        reasons.append(zookeeper_trouble)
    if not reasons and newest is not None and newest is not running:
        reasons.append(f"its session is being opened on {len(newest.replicas)} replicas")
    return "; ".join(reasons or [reign.trouble])


def _absent(session: Session) -> list[str]:
    why = {each.replica_id: reason for each in session.replicas.values() if (reason := _why_absent(each))}
    if not why:
        return []
    told = "; ".join(f"replica {replica_id}: {reason}" for replica_id, reason in sorted(why.items()))
    return [f"too few replicas take part, {session.quorum} of {len(session.replicas)} have to: {told}"]


def _why_absent(replica: SessionReplica) -> str:
    if replica.phase is Phase.LOST:
        return replica.lost_because
    return "damaged" if replica.damaged else ""
