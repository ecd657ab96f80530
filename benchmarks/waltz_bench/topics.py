"""``waltz bench topics``: messages of the native client, beside the log's own appends and NATS JetStream, in turn.

All of one stream, or one partition, but for consuming: that is a group of four members on four partitions, which
confirm each batch before they take the next one; of NATS one durable pull consumer with four connections.
"""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from waltz_bench.clients import READY_S, clients_of, window
from waltz_bench.cluster import Waltz, pid_of, waltz_cluster
from waltz_bench.compare import BATCH_RECORDS, BATCHES, PIPELINED_RECORDS
from waltz_bench.loads import AppendLoad, PipelinedLoad, pairs, payloads, single_appends
from waltz_bench.measure import Case, Figure, alternate, measure, ratio, warm_up
from waltz_bench.nats_cluster import Nats, nats_cluster
from waltz_bench.nats_consume import NatsConsumeLoad
from waltz_bench.nats_load import NatsLoad, Shape
from waltz_bench.processes import DRIVER, Processes
from waltz_bench.report import report
from waltz_ray.errors import AppendTimeout, InvalidInput
from waltz_ray.spaces import Spaces
from waltz_ray.topics import TopicClient, TopicConsumer, TopicProducer, connect

__all__ = ["MEMBERS", "TopicOptions", "topic_ratios", "topics"]

WALTZ, NATS = "waltz_ray", "NATS"
ONE, PIPELINED, BATCHED, CONSUMED = (
    "produce, 1 outstanding",
    "produce, pipelined",
    f"send_many({BATCH_RECORDS})",
    "consume and confirm, 4 members",
)
ROUND_TRIP = "produce until it is consumed, 1 outstanding"
APPEND = "the log's append, pipelined"
MEMBERS = 4
_TOPIC, _FILLED = "bench-sent", "bench-filled"
_PULLED = 1000
_END_S = 60.0


@dataclass(frozen=True)
class TopicOptions:
    """``seconds`` measured in each run after ``warmup_s``; ``messages`` of ``size_bytes`` to be consumed."""

    runs: int = 5
    seconds: float = 2.0
    warmup_s: float = 0.5
    size_bytes: int = 1024
    messages: int = 400_000
    peers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        unknown = [peer for peer in self.peers if peer != "nats"]
        if unknown:
            raise InvalidInput(f"there is no comparison with {unknown[0]!r}; there is: nats")


class _ConsumeLoad:
    """See ``measure.Load``: a new group's members, each in a thread, from the beginning of the topic. Use it once."""

    def __init__(self, client: TopicClient, members: int = MEMBERS) -> None:
        self.records_per_call = 1
        self.latencies_s: list[float] = []
        self.failed = threading.Event()
        self.errors: list[BaseException] = []
        self._stopped = False
        group = f"g{uuid.uuid4().hex}"
        self._consumers = [client.consumer(group, _FILLED) for _ in range(members)]
        self._threads = [threading.Thread(target=self._run, args=(each,), daemon=True) for each in self._consumers]

    def start(self) -> None:
        """See ``measure.Load``. When each member has its partition."""
        for each in self._consumers:
            each.start()
        until_s = perf_counter() + READY_S
        while any(len(each.partitions) != 1 for each in self._consumers):
            if perf_counter() > until_s:
                raise AppendTimeout(
                    f"the members have {[each.partitions for each in self._consumers]} after {READY_S} s"
                )
            self.failed.wait(0.01)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """See ``measure.Load``."""
        self._stopped = True
        for thread in self._threads:
            thread.join(_END_S)
        for each in self._consumers:
            each.close()
        if self.errors:
            raise self.errors[0]

    def _run(self, consumer: TopicConsumer) -> None:
        try:
            while not self._stopped:
                began = perf_counter()
                batch = consumer.pull(_PULLED, timeout=0.1)
                if batch is None:  # that was all: once more
                    for topic, partition in consumer.partitions:
                        consumer.seek(topic, partition, "earliest")
                    continue
                count = sum(len(message.data) > 0 for message in batch)
                consumer.confirm(batch)
                self.latencies_s.extend([perf_counter() - began] * count)
        except BaseException as error:  # noqa: BLE001 - raised by stop()
            self.errors.append(error)
            self.failed.set()


class _RoundTrips:
    """See ``measure.Load``: a message, and the next one when a consumer has it. Use it once."""

    def __init__(self, client: TopicClient, producer: TopicProducer, size_bytes: int) -> None:
        self.records_per_call = 1
        self.latencies_s: list[float] = []
        self.failed = threading.Event()
        self.errors: list[BaseException] = []
        self._stopped = False
        self._consumer = client.consumer(f"g{uuid.uuid4().hex}", _TOPIC, start="end")
        self._producer, self._data = producer, payloads(size_bytes, 1)[0]
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """See ``measure.Load``."""
        self._consumer.start()
        until_s = perf_counter() + READY_S
        while not self._consumer.partitions:
            if perf_counter() > until_s:
                raise AppendTimeout(f"the consumer has no partition after {READY_S} s")
            self.failed.wait(0.01)
        self._thread.start()

    def stop(self) -> None:
        """See ``measure.Load``."""
        self._stopped = True
        self._thread.join(_END_S)
        self._consumer.close()
        if self.errors:
            raise self.errors[0]

    def _run(self) -> None:
        try:
            while not self._stopped:
                began = perf_counter()
                self._producer.send_nowait(_TOPIC, self._data, partition=0)
                batch = self._consumer.pull(1, timeout=_END_S)
                if batch is None:
                    raise AppendTimeout(f"a message was not consumed within {_END_S:g} s")
                self.latencies_s.append(perf_counter() - began)
                batch.topic  # noqa: B018 - it is here; confirming is not what is measured
        except BaseException as error:  # noqa: BLE001 - raised by stop()
            self.errors.append(error)
            self.failed.set()


def topics(
    directory: Path, options: TopicOptions, running: str = "", progress: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """All in ``directory``, every case in turn."""
    with ExitStack() as stack:
        waltz = stack.enter_context(waltz_cluster(directory, running, progress, kv=1, topics=2))
        nats = stack.enter_context(nats_cluster(directory / "nats", progress)) if options.peers else None
        with Spaces(waltz.name, zookeeper=waltz.zookeeper) as spaces:
            spaces.create(_TOPIC, 1, "topic")
            spaces.create(_FILLED, MEMBERS, "topic")
        client = stack.enter_context(connect(waltz.name, zookeeper=waltz.zookeeper))
        producer = stack.enter_context(client.producer())
        progress(f"filling a topic with {options.messages} messages")
        _fill(producer, options)
        [appending] = stack.enter_context(clients_of(waltz, 1, 1, outstanding=PIPELINED_RECORDS))
        append = single_appends(appending, 0, options.size_bytes)
        processes, times = _processes(waltz), (options.seconds, options.warmup_s)
        cases = [Case(APPEND, window(lambda: PipelinedLoad(append), processes, times), WALTZ)]
        for name, load in _loads(client, producer, options).items():
            cases.append(Case(name, window(load, processes, times), WALTZ))
            if nats is not None and name != ROUND_TRIP:
                cases.append(_nats_case(name, nats, options))
        if nats is not None:
            _fill_nats(nats, options, progress)
        warm_up(cases, progress)
        rows = alternate(cases, options.runs, progress)
        versions = {"nats-server": nats.version} if nats is not None else {}
        return report("topics", rows, topic_ratios(rows), directory, versions=versions, notes=_notes(rows))


def _processes(waltz: Waltz) -> Processes:
    actors = {f"topic-{number}": actor for number, actor in sorted(waltz.status().topics.items())}
    return Processes(waltz.pids() | {name: pid_of(name, actor) for name, actor in actors.items()})


def _fill(producer: TopicProducer, options: TopicOptions) -> None:
    datas = payloads(options.size_bytes, BATCH_RECORDS)
    for n in range(options.messages // BATCH_RECORDS):
        producer.send_many_nowait(_FILLED, datas, partition=n % MEMBERS)
    producer.send(_TOPIC, datas[0])
    producer.flush(_END_S)


def _fill_nats(nats: Nats, options: TopicOptions, progress: Callable[[str], None]) -> None:
    progress("filling NATS")
    shape = Shape(outstanding=BATCHES * BATCH_RECORDS, chunk=BATCH_RECORDS, size_bytes=options.size_bytes)
    while nats.stored() < options.messages:
        measure(NatsLoad(nats.port, shape), nats.processes(), 1.0, 0.0)


def _loads(client: TopicClient, producer: TopicProducer, options: TopicOptions) -> dict[str, Callable[[], Any]]:
    datas = itertools.cycle(payloads(options.size_bytes))
    batch = payloads(options.size_bytes, BATCH_RECORDS)

    def one() -> Any:
        return producer.send_nowait(_TOPIC, next(datas), partition=0)

    def many() -> Any:
        return producer.send_many_nowait(_TOPIC, batch, partition=0)

    return {
        ONE: lambda: AppendLoad([one]),
        ROUND_TRIP: lambda: _RoundTrips(client, producer, options.size_bytes),
        PIPELINED: lambda: PipelinedLoad(one),
        BATCHED: lambda: AppendLoad(pairs([many], BATCHES), BATCH_RECORDS),
        CONSUMED: lambda: _ConsumeLoad(client),
    }


def _nats_case(name: str, nats: Nats, options: TopicOptions) -> Case:
    size, processes = options.size_bytes, nats.processes()
    shapes = {
        ONE: Shape(size_bytes=size),
        PIPELINED: Shape(outstanding=PIPELINED_RECORDS, size_bytes=size),
        BATCHED: Shape(outstanding=BATCHES * BATCH_RECORDS, chunk=BATCH_RECORDS, size_bytes=size),
    }
    load: Callable[[], Any] = partial(NatsConsumeLoad, nats, MEMBERS)
    if name != CONSUMED:
        load = partial(NatsLoad, nats.port, shapes[name])
    return Case(name, lambda: measure(load(), processes, options.seconds, options.warmup_s), NATS)


def _notes(rows: Sequence[Figure]) -> list[str]:
    shares = [f"{row.system}, {row.case}: {row.cpu_share[DRIVER]:.0%} of a core" for row in rows]
    return [f"load generator: {'; '.join(shares)}"]


def topic_ratios(rows: Sequence[Figure]) -> dict[str, dict[str, Any]]:
    """What was promised: by the log's own append, by NATS, and in numbers."""
    found = {(row.system, row.case): row for row in rows}

    def rate(case: str, system: str = WALTZ) -> float:
        return found[system, case].rate

    ratios = {
        "produce pipelined, rate by the log's append": ratio(rate(PIPELINED) / rate(APPEND), 0.7),
        "consume, messages by 100,000/s": ratio(rate(CONSUMED) / 100_000, 1.0),
        "produce until it is consumed, p50 by 2 ms": ratio(
            found[WALTZ, ROUND_TRIP].p50_us / 2000, 1.0, smaller_is_better=True
        ),
    }
    for case, gate in ((PIPELINED, 1.2), (BATCHED, 2.0), (CONSUMED, 2.0)):
        if (NATS, case) in found:
            ratios[f"{case}, rate by NATS"] = ratio(rate(case) / rate(case, NATS), gate)
    return ratios
