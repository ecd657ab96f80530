"""Whatever the server does, every append has one fate and the log agrees with it (a property test).

The drops and refusals are drawn first; the appends run against them; in the end the log holds exactly the appends
whose futures have an ID, at that ID. ``test_the_checker_has_teeth`` breaks the client and expects to be told.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.client.conftest import PATIENCE_S, Recorder
from tests.client.fake_server import Connection, FakeDirectory, FakeServer
from tests.simulation.mutations import WALKED
from waltz_ray.client import WaltzClient
from waltz_ray.client.tcp import TcpTransport
from waltz_ray.config import ClientConfig
from waltz_ray.errors import AppendFailed
from waltz_ray.protocol.messages.client import RejectionCode
from waltz_ray.protocol.records import AppendBatch

FAULTS = ["none", "none", "drop_after", "drop_before", "queue_full", "not_mounted", "lose_first", "drop_half", "others"]


class ScriptedServer(FakeServer):
    """One fault per batch that arrives, in the order drawn; then none."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__(partitions=1)
        self.faults = iter([*faults])

    def fault(self, connection: Connection, batch: AppendBatch) -> None:
        fault = next(self.faults, "none")
        script = self.script
        if fault == "drop_after":
            script.drop_after_admitting = 1
        elif fault == "drop_before":
            script.drop_before_admitting = 1
        elif fault == "queue_full":
            script.queue_full = 1
        elif fault == "not_mounted":
            script.reject_code = RejectionCode.NOT_MOUNTED
        elif fault == "lose_first":
            script.lose_first = len(batch) // 2  # never all: an own entry has to follow
        elif fault == "drop_half":  # half of it is in the log, the rest never will be, and nobody says so
            self.logs[0].append(batch, range((len(batch) + 1) // 2))
            script.drop_before_admitting = 1
        elif fault == "others":
            self._append_directly(0, [b"other"], 0)


@pytest.fixture(autouse=True)
def _faults_before_appends(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Connection.append

    def append(self: Connection, batch: AppendBatch) -> None:
        if isinstance(self.server, ScriptedServer):
            self.server.fault(self, batch)
        original(self, batch)

    monkeypatch.setattr(Connection, "append", append)


def run_and_check(faults: list[str], sizes: list[int], retry: bool, batch_records: int, fed: bool) -> None:
    recorder = Recorder() if fed else None
    config = ClientConfig(batch_records=batch_records, outstanding_appends=16)
    numbers = itertools.count()
    with (
        ScriptedServer(faults) as server,
        WaltzClient(FakeDirectory({0: server}), TcpTransport(), recorder, config) as client,
    ):
        expected: dict[int, bytes] = {}
        futures = []
        for size in sizes:
            datas = [b"%d" % next(numbers) for _ in range(size)]
            if size == 1:
                futures.append((datas, client.append(0, datas[0], retry=retry)))
            else:
                futures.append((datas, client.append_many(0, datas)))  # type: ignore[arg-type]
        for datas, future in futures:
            try:
                result = future.result(PATIENCE_S)
            except AppendFailed:
                assert not retry
                continue
            ids = [result] if isinstance(result, int) else result.tolist()
            assert len(ids) == len(datas)
            for transaction_id, data in zip(ids, datas, strict=True):
                assert transaction_id not in expected
                expected[transaction_id] = data
        log = server.logs[0].data()
        mine = {i: data for i, data in enumerate(log) if data != b"other"}
        assert mine == expected
        if recorder is not None:
            recorder.wait_for(lambda: len(recorder.applied) >= len(log))
            assert [applied[3] for applied in recorder.applied] == log
            assert recorder.ids() == list(range(len(log)))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    faults=st.lists(st.sampled_from(FAULTS), max_size=8),
    sizes=st.lists(st.sampled_from([1, 1, 1, 2, 5, 20]), min_size=1, max_size=12),
    retry=st.booleans(),
    batch_records=st.sampled_from([1, 3, 100]),
    fed=st.booleans(),
)
def test_log_and_futures_agree(faults: list[str], sizes: list[int], retry: bool, batch_records: int, fed: bool) -> None:
    run_and_check(faults, sizes, retry, batch_records, fed)


def test_the_checker_has_teeth(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that mounts at the server's mark although appends are pending sends them twice."""
    WALKED["own_mount_skips_what_is_pending"](monkeypatch)
    with pytest.raises(AssertionError):
        run_and_check(["none", "drop_after"], [1] * 12, True, 3, False)
