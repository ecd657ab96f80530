"""What an application is told, in which order, and what happens when it raises."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from tests.client.conftest import PATIENCE_S, MakeClient, Recorder
from tests.client.fake_server import FakeServer
from waltz_ray.client import SubmitResult, Transaction, TransactionBuilder, TransactionContext
from waltz_ray.config import ClientConfig
from waltz_ray.errors import InvalidInput


class Announced(TransactionContext):
    """Puts its completion among the recorder's events."""

    def __init__(self, recorder: Recorder, name: str) -> None:
        self.recorder = recorder
        self.name = name

    def partition_id(self, partitions: int) -> int:
        return 0

    def execute(self, builder: TransactionBuilder) -> bool:
        builder.data = self.name.encode()
        return True

    def on_completion(self, committed: bool) -> None:
        with self.recorder.changed:
            self.recorder.events.append(("completed", self.name, committed))


def test_on_completion_comes_before_apply(server: FakeServer, make_client: MakeClient) -> None:
    recorder = Recorder()
    client = make_client(recorder)
    futures = [client.submit(Announced(recorder, f"c{i}")) for i in range(20)]
    assert all(future.result(PATIENCE_S) for future in futures)
    recorder.wait_for(lambda: len(recorder.applied) == 20)
    for _, transaction_id, _, data in recorder.applied:
        completed = recorder.events.index(("completed", data.decode(), True))
        assert completed < recorder.events.index(("applied", transaction_id))


def test_the_mark_stays_below_a_refused_transaction(server: FakeServer, make_client: MakeClient) -> None:
    recorder = Recorder()
    refused = threading.Event()
    marks: list[int] = []

    def look(partition: int, transaction: int) -> None:
        marks.append(client.high_water_mark(0))
        recorder.fail_on = {3} if len(marks) < 3 else set()
        refused.set()

    recorder.on_uncaught = look
    recorder.fail_on = {3}
    client = make_client(recorder, partitions=[0])
    client.wait_ready(PATIENCE_S)
    server.append_directly(0, [b"%d" % i for i in range(5)])
    recorder.wait_for(lambda: recorder.ids()[-1:] == [4])
    assert recorder.ids() == [0, 1, 2, 3, 4]
    assert len(recorder.uncaught) == 3
    assert max(marks) <= 2


def test_nothing_comes_again_before_the_application_can_say_how_far_it_is(
    server: FakeServer, make_client: MakeClient
) -> None:
    """Its database goes away between two transactions, and for longer than the first pause."""

    class Away(Recorder):
        left = 0  # questions that find it away

        def apply_transaction(self, transaction: Transaction) -> None:
            self.left = 5 if transaction.transaction_id in self.fail_on else 0
            super().apply_transaction(transaction)

        def client_high_water_mark(self, partition_id: int) -> int:
            self.left -= 1
            if self.left >= 0:
                raise OSError("the database is away")
            return super().client_high_water_mark(partition_id)

    recorder = Away()
    recorder.fail_on = {3}
    server.append_directly(0, [b"%d" % i for i in range(5)])
    client = make_client(recorder, partitions=[0])
    recorder.wait_for(lambda: recorder.ids()[-1:] == [4])
    assert recorder.ids() == [0, 1, 2, 3, 4]
    assert [str(error) for _, _, error in recorder.uncaught].count("the database is away") == 5
    client.wait_applied(0, 4, PATIENCE_S)


def test_the_application_may_skip_by_moving_its_mark(server: FakeServer, make_client: MakeClient) -> None:
    recorder = Recorder()
    recorder.fail_on = {1}

    def skip(partition: int, transaction: int) -> None:
        recorder.marks[partition] = transaction

    recorder.on_uncaught = skip
    server.append_directly(0, [b"a", b"poison", b"c"])
    make_client(recorder, partitions=[0])
    recorder.wait_for(lambda: recorder.ids()[-1:] == [2])
    assert recorder.ids() == [0, 2]


def test_an_exception_in_one_partition_does_not_hold_up_another(server: FakeServer, make_client: MakeClient) -> None:
    recorder = Recorder()
    recorder.fail_on = {0}

    def again(partition: int, transaction: int) -> None:
        recorder.fail_on = {0} if not recorder.ids(1) else set()

    recorder.on_uncaught = again
    client = make_client(recorder)
    client.wait_ready(PATIENCE_S)
    server.append_directly(0, [b"poison"])
    recorder.wait_for(lambda: bool(recorder.uncaught))
    server.append_directly(1, [b"a", b"b"])
    # ID 0 of partition 1 is poison too, until it is applied at the first clean attempt.
    recorder.fail_on = set()
    recorder.wait_for(lambda: recorder.ids(1) == [0, 1] and recorder.ids(0) == [0])


def test_credit_bounds_what_waits(server: FakeServer, make_client: MakeClient) -> None:
    recorder = Recorder()
    recorder.gate = threading.Event()
    for i in range(200):
        server.append_directly(0, [b"%1000d" % i])
    client = make_client(recorder, ClientConfig(feed_credit_bytes=10_000), partitions=[0])

    def sent() -> int:
        mount = server.mounts.get((0, client.client_id))
        return mount.sent + 1 if mount is not None and mount.credit <= 0 else 0

    while not (frames := server.do(sent)):
        continue
    assert 1000 * frames <= 10_000 + 1100  # the limit, and one frame of overdraft
    server.drop_connections()  # a new mount is given only the credit that is left
    while len(server.mount_marks) < 2:
        continue
    assert server.do(lambda: max((mount.sent for mount in server.mounts.values()), default=0)) < frames
    recorder.gate.set()
    recorder.wait_for(lambda: len(recorder.applied) == 200)
    assert recorder.ids() == list(range(200))


class Waits(Recorder):
    """An application that calls its own client while it applies, and remembers what that raises."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, Callable[[], object]] = {}
        self.ended: list[str] = []

    def apply_transaction(self, transaction: Transaction) -> None:
        while self.calls:
            name, call = self.calls.popitem()
            try:
                call()
                self.ended.append(name)
            except InvalidInput as error:
                self.ended.append(f"{name}: {error}")
        super().apply_transaction(transaction)


def test_a_callback_does_not_wait_for_what_ends_behind_it(server: FakeServer, make_client: MakeClient) -> None:
    """A context ends on the thread that applies: who waits there for one would wait for ever."""
    recorder = Waits()
    client = make_client(recorder)
    submitted: list[Future[SubmitResult]] = []

    def submit() -> Future[SubmitResult]:
        submitted.append(client.submit(Announced(recorder, "c")))
        return submitted[-1]

    def flush_behind_a_context() -> None:
        submit()
        client.flush()

    recorder.calls = {
        "result": lambda: submit().result(),
        "exception": lambda: submit().exception(),
        "flush": flush_behind_a_context,
    }
    client.append(0, b"x").result(PATIENCE_S)
    client.flush(PATIENCE_S)
    client.wait_applied(0, 0, PATIENCE_S)
    assert [one.result(PATIENCE_S).committed for one in submitted] == [True, True, True]
    assert [text.partition(":")[0] for text in recorder.ended] == ["flush", "exception", "result"]
    assert "a callback, behind which the contexts end" in recorder.ended[0]
    assert "waits for a context" in recorder.ended[1]
    assert "waits for a context" in recorder.ended[2]


def test_a_callback_may_wait_for_appends(server: FakeServer, make_client: MakeClient) -> None:
    recorder = Waits()
    client = make_client(recorder)
    recorder.calls = {"append": lambda: client.append(0, b"of the callback").result(), "flush": client.flush}
    client.append(0, b"x").result(PATIENCE_S)
    client.wait_applied(0, 1, PATIENCE_S)
    assert recorder.ended == ["flush", "append"]
