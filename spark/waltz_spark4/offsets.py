"""How far a stream has come: the next transaction ID of each partition, as Spark keeps it in its checkpoint. Pure.

Spark compares two offsets by the bytes of their JSON, so a partition's ID is a string and they stand in order.
"""

from __future__ import annotations

from collections.abc import Mapping

from waltz_ray.errors import ClientAhead, InvalidInput

__all__ = ["Offsets", "admitted", "offsets_of", "partitions_of", "same_partitions"]

Offsets = dict[str, int]


def offsets_of(next_ids: Mapping[int, int]) -> Offsets:
    return {str(partition_id): next_ids[partition_id] for partition_id in sorted(next_ids)}


def partitions_of(offsets: Offsets) -> dict[int, int]:
    """Partition ID -> next transaction ID."""
    return {int(partition_id): next_id for partition_id, next_id in offsets.items()}


def same_partitions(start: Mapping[int, int], end: Mapping[int, int]) -> None:
    """InvalidInput unless both are of the same partitions: a checkpoint cannot be continued with others."""
    if start.keys() != end.keys():
        raise InvalidInput(
            f"the checkpoint is of the partitions {sorted(start)}, the query of {sorted(end)}; "
            f"give the option partitions as it was, or begin with a new checkpoint"
        )


def admitted(start: Mapping[int, int], reached: Mapping[int, int], max_records: int | None) -> dict[int, int]:
    """The end of a batch from ``start``: at most ``max_records`` (None: no limit) further, at most at ``reached``.

    Partitions share the limit equally; what one has no use for goes to the others, so a batch is empty only if there
    is nothing. ClientAhead if ``start`` is behind the end of the log, InvalidInput for other partitions.
    """
    same_partitions(start, reached)
    for partition_id, next_id in start.items():
        if next_id > reached[partition_id]:
            raise ClientAhead(
                f"partition {partition_id}: the checkpoint has transaction {next_id - 1}, the log ends with "
                f"{reached[partition_id] - 1}; it is another log, or it has lost transactions"
            )
    if max_records is None:
        return dict(reached)
    end = dict(start)
    waiting = sorted(start, key=lambda partition_id: reached[partition_id] - start[partition_id])
    for place, partition_id in enumerate(waiting):
        share = max_records // (len(waiting) - place)
        taken = min(share, reached[partition_id] - start[partition_id])
        end[partition_id] += taken
        max_records -= taken
    return end
