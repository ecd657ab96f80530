"""What the checkers look at: the history, and every replica's log as it is on disk at the end."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from tests.simulation.history import History
from tests.simulation.payload import Payload
from waltz_ray.protocol.ids import ReqId
from waltz_ray.protocol.records import HEADER_DTYPE, RECORD_HEADER_BYTES
from waltz_ray.storage.time_lookup import TimeLookup

__all__ = ["Outcome"]


class Outcome:
    """``logs``: per partition the records of each replica it is assigned to; the first one's are *the* log once they
    are known equal. ``times``: per partition what each of these replicas knows of times; ``now_ms``: a right clock;
    ``opaque``: partitions whose records are no payloads."""

    def __init__(
        self,
        history: History,
        logs: list[dict[int, list[bytes]]],
        times: list[dict[int, TimeLookup]],
        now_ms: int,
        opaque: Sequence[int] = (),
    ) -> None:
        self.history = history
        self.logs = logs
        self.times = times
        self.now_ms = now_ms
        self.opaque = opaque

    @cached_property
    def log(self) -> list[list[bytes]]:
        """Per partition the records of the log."""
        return [next(iter(replicas.values())) for replicas in self.logs]

    @cached_property
    def payloads(self) -> list[list[Payload]]:
        """Per partition what the applications had written into each record."""
        return [
            [] if p in self.opaque else [Payload.decode(record[RECORD_HEADER_BYTES:-4]) for record in log]
            for p, log in enumerate(self.log)
        ]

    @cached_property
    def req_ids(self) -> list[list[ReqId]]:
        """Per partition who asked for each record."""
        found = []
        for log in self.log:
            heads = np.frombuffer(b"".join(record[:RECORD_HEADER_BYTES] for record in log), dtype=HEADER_DTYPE)
            names = ("client_id", "generation", "partition_id", "sequence_number")
            columns = [heads[name].tolist() for name in names]
            found.append([ReqId(*row) for row in zip(*columns, strict=True)])
        return found

    @cached_property
    def places(self) -> dict[str, list[tuple[int, int]]]:
        """uid -> every (partition, transaction ID) that carries it."""
        found: dict[str, list[tuple[int, int]]] = {}
        for partition_id, payloads in enumerate(self.payloads):
            for transaction_id, payload in enumerate(payloads):
                found.setdefault(payload.uid, []).append((partition_id, transaction_id))
        return found
