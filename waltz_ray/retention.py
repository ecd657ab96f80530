"""What a running cluster may forget, by hand: trim marks raised, holds listed and released.

Policies raise the marks by themselves: ``docs/retention.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from waltz_ray.client.bounds import check_partition
from waltz_ray.client.credentials import Credentials
from waltz_ray.client.range_reader import RangeReader
from waltz_ray.client.times import in_milliseconds
from waltz_ray.coordination.hold_store import Hold
from waltz_ray.errors import InvalidInput
from waltz_ray.handle import ClusterHandle
from waltz_ray.protocol import trimming as rules
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.spaces import DEFAULT_SPACE, Space

__all__ = ["KeptFor", "RetentionByHand", "Trimming"]


@dataclass(frozen=True)
class KeptFor:
    """A hold: in each of its partitions (space, its number there) the records from that ID on are kept."""

    name: str
    why: str
    positions: dict[tuple[str, int], int]


@dataclass(frozen=True)
class Trimming:
    """What ``RetentionByHand.trim`` did, or would do. ``mark_before``, ``mark``: the trim mark then, and now.

    ``wanted_id``: the mark that was asked for; ``held_by``: what keeps it from being that.
    """

    wanted_id: int
    mark_before: int
    mark: int
    held_by: tuple[KeptFor, ...]

    @property
    def records(self) -> int:
        """How many more may go."""
        return self.mark - self.mark_before


class RetentionByHand(ClusterHandle):
    """``with RetentionByHand("demo") as retention: retention.trim(0, 5000)``; it finds the cluster as ``connect``."""

    def trim(
        self, partition_id: int, before: int | datetime, space: str = DEFAULT_SPACE, dry_run: bool = False
    ) -> Trimming:
        """Let go of the records of a space's partition before an ID, or before a point in time, as far as holds let.

        Nothing is changed with ``dry_run``, nor where they may go already. InvalidInput for what is not committed yet,
        or is a layer's to decide; SpaceNotFound, SpaceGone; DataUnavailable if no server answers.
        """
        found = self._store.spaces.get(space)
        check_partition(partition_id, found.count)
        if found.settings.get("compact") or found.kind == "kv":
            why = "compacted" if found.settings.get("compact") else "of kind kv"
            raise InvalidInput(f"space {space!r} is {why}: its layer says what may go, and nobody else")
        wanted_id = self._checked_id(found, partition_id, before)
        number, trims = found.first + partition_id, self._store.trims
        mark_before = trims.marks().get(number, 0)
        holds = trims.keeping(number, wanted_id)
        mark = rules.raised_marks({number: mark_before}, {number: wanted_id}, [each.positions for each in holds])
        if not dry_run:
            mark = trims.raise_marks({number: wanted_id})
        spaces = self._store.spaces.table().present()
        held_by = tuple(_kept_for(each, spaces) for each in holds)
        return Trimming(wanted_id, mark_before, mark.get(number, mark_before), held_by)

    def _checked_id(self, space: Space, partition_id: int, before: int | datetime) -> int:
        """``before`` as a transaction ID, all of what is below it committed."""
        with RangeReader(
            self._server_of(space.first),
            first=space.first,
            credentials=Credentials.of().where_tls_is_asked_for(self._store.access.tls_only()),
            cluster_key=str(self._store.info().cluster_key),
        ) as reader:
            if isinstance(before, datetime):
                return reader.first_id_at(partition_id, in_milliseconds("before", before))
            last_id = reader.high_water_mark(partition_id)
        if not 0 <= before <= rules.highest_mark(last_id):
            raise InvalidInput(
                f"partition {partition_id} of space {space.name!r} cannot be trimmed before {before}: only what is "
                f"committed may go, and its last committed transaction is {last_id}"
            )
        return before

    def holds(self) -> list[KeptFor]:
        """All holds, by name."""
        spaces = self._store.spaces.table().present()
        return [_kept_for(hold, spaces) for _, hold in sorted(self._store.trims.holds.all().items())]

    def release(self, name: str) -> None:
        """Keep nothing for this hold any more; it must be nobody's that still runs. InvalidInput if there is none."""
        if self._store.trims.holds.find(name) is None:
            raise InvalidInput(f"cluster {self._store.cluster!r} has no hold {name!r}; see: waltz holds list")
        self._store.trims.holds.release(name)

    def _server_of(self, first: int) -> Callable[[int], Endpoint | None]:
        def resolve(partition_id: int) -> Endpoint | None:
            owner = self._store.assignment()[0].owner(first + partition_id)
            server = self._store.servers().get(owner.server_id) if owner else None
            return server.endpoint if server else None

        return resolve


def _kept_for(hold: Hold, spaces: Sequence[Space]) -> KeptFor:
    """With the partitions as their spaces number them; those of a space that was deleted are left out."""
    named = {number: (space.name, number - space.first) for space in spaces for number in space.partitions}
    positions = {named[number]: first_id for number, first_id in sorted(hold.positions.items()) if number in named}
    return KeptFor(hold.name, hold.why, positions)
