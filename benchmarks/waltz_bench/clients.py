"""Clients of one cluster, made once and used by all cases of a benchmark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from waltz_bench.cluster import Waltz
from waltz_bench.loads import AppendLoad, Call, batches, pairs, single_appends
from waltz_bench.measure import Load, Sample, measure
from waltz_bench.processes import Processes
from waltz_ray.client.client import WaltzClient
from waltz_ray.config import ClientConfig

__all__ = ["READY_S", "WindowOptions", "clients_of", "many_load", "single_load", "window"]

READY_S = 60.0
MOST_BYTES = 24_000_000  # outstanding of one partition: below what a server queues (ServerConfig.append_queue_bytes)

WindowOptions = tuple[float, float]
"""Seconds measured, seconds of warm-up before."""


@contextmanager
def clients_of(
    waltz: Waltz, count: int, partitions: int, transport: str = "tcp", outstanding: int = 100_000
) -> Iterator[list[WaltzClient]]:
    """``count`` clients of the first ``partitions`` partitions, all of them mounted; closed at the end.

    ``outstanding`` is where each of them blocks.
    """
    config = ClientConfig(outstanding_appends=outstanding)
    with ExitStack() as stack:
        clients = [
            stack.enter_context(waltz.client(config=config, partitions=tuple(range(partitions)), transport=transport))
            for _ in range(count)
        ]
        for client in clients:
            client.wait_ready(READY_S)
        yield clients


def single_load(
    clients: Sequence[WaltzClient], outstanding: int, size_bytes: int = 1024, partitions: int = 1
) -> Callable[[], AppendLoad]:
    """Loads of single appends: client i appends to partition i modulo ``partitions``; one client goes round them."""
    calls = _spread(clients, partitions, lambda client, partition: single_appends(client, partition, size_bytes))
    fitting = min(outstanding, max(len(calls), MOST_BYTES * partitions // size_bytes))
    return lambda: AppendLoad(pairs(calls, fitting))


def many_load(
    clients: Sequence[WaltzClient], outstanding: int, records: int = 100, size_bytes: int = 1024, partitions: int = 1
) -> Callable[[], AppendLoad]:
    """Loads of ``append_many``; ``outstanding`` counts calls of ``records`` each."""
    calls = _spread(clients, partitions, lambda client, partition: batches(client, partition, size_bytes, records))
    fitting = min(outstanding, max(1, MOST_BYTES * partitions // (size_bytes * records)))
    return lambda: AppendLoad(pairs(calls, fitting), records)


def _spread(clients: Sequence[WaltzClient], partitions: int, call: Callable[[WaltzClient, int], Call]) -> list[Call]:
    count = max(len(clients), partitions)
    return [call(clients[i % len(clients)], i % partitions) for i in range(count)]


def window(
    load: Callable[[], Load],
    processes: Processes,
    options: WindowOptions,
    probe: Callable[[], Mapping[str, float]] = dict,
) -> Callable[[], Sample]:
    """A case's ``run``: a new load for each sample."""
    return lambda: measure(load(), processes, *options, probe)
