"""One client of the demo: an actor that submits its share of the flights and applies the whole feed to its database."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from waltz_ray import connect
from waltz_ray.config import ClientConfig
from waltz_ray.demo.application import AircraftBook, BookCallbacks, FlightContext
from waltz_ray.demo.flights import read_flights

__all__ = ["ClientReport", "FlightClient", "start_client"]

_OUTSTANDING = 64  # contexts under way in one client: enough to fill batches, and conflicts between clients occur
_CONTEXT_THREADS = 2
_READY_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class ClientReport:
    """What a client has to say at the end. ``seen``: see ``BookCallbacks.seen``."""

    database: str
    statistics: dict[str, int]
    errors: list[str]
    seen: dict[int, list[float]]


class FlightClient:
    """Client ``number`` of ``clients`` submits the rows number, number + clients, ...

    Neighbouring rows go to different clients, so the legs of one aircraft do, too, and the clients' locks conflict.
    A Ray actor keeps its state in its process; this one's is a database that is filled from the log again by any
    successor.
    """

    def __init__(self, cluster: str, directory: str, number: int, clients: int, flights: int) -> None:
        self._share = number, clients, flights
        self._database = Path(directory, f"client-{number}.db")
        self._book = AircraftBook(self._database)
        self._callbacks = BookCallbacks(self._book)
        config = ClientConfig(context_threads=_CONTEXT_THREADS)
        self._client = connect(cluster, self._callbacks, config=config)
        self._room = threading.Semaphore(_OUTSTANDING)
        self._lock = threading.Lock()
        self._committed = 0
        self._errors: list[str] = []
        self._thread = threading.Thread(target=self._deal, name="dealer", daemon=True)

    def wait_ready(self) -> None:
        """Until every partition is mounted."""
        self._client.wait_ready(_READY_TIMEOUT_S)

    def start(self) -> None:
        """Begin to submit this client's flights."""
        self._thread.start()

    def progress(self) -> tuple[int, bool]:
        """Flights committed by this client, and whether all of its share have their fate."""
        return self._committed, self._thread.ident is not None and not self._thread.is_alive()

    def report(self, high_water_marks: dict[int, int], timeout_s: float) -> ClientReport:
        """Once everything up to the servers' marks has been applied here, or with an error after ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        errors = [*self._errors]
        for partition_id, mark in high_water_marks.items():
            while self._book.mark(partition_id) < mark and time.monotonic() < deadline:
                time.sleep(0.02)
            if self._book.mark(partition_id) != mark:
                errors.append(
                    f"partition {partition_id}: applied {self._book.mark(partition_id)}, the log is at {mark}"
                )
        errors += self._callbacks.errors
        return ClientReport(str(self._database), self._client.statistics(), errors, self._callbacks.seen)

    def close(self) -> None:
        """Let go of the log and of the database."""
        self._client.close()
        self._book.close()

    def _deal(self) -> None:
        number, clients, flights = self._share
        try:
            for flight in read_flights(flights):
                if flight.row % clients == number:
                    self._room.acquire()
                    self._client.submit(FlightContext(self._book, flight, self._done))
            for _ in range(_OUTSTANDING):  # the last ones have their fate when all room is there again
                self._room.acquire()
        except Exception as error:  # noqa: BLE001 - nobody waits for this thread: the report carries it
            self._errors.append(f"dealing stopped: {error!r}")

    def _done(self, error: BaseException | None) -> None:
        with self._lock:
            if error is None:
                self._committed += 1
            else:
                self._errors.append(repr(error))
        self._room.release()


def start_client(*arguments: Any) -> Any:
    """A ``FlightClient`` as a Ray actor; the handle."""
    import ray

    return ray.remote(FlightClient).options(num_cpus=0, max_concurrency=2).remote(*arguments)
