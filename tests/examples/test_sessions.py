"""``examples/sessions.py`` without Ray: what its workers do, and what its judge notices."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from examples.sessions import Report, Worker, _arguments_of_command, told, wrong
from tests.examples.refused import refused
from tests.kv.fake_cluster import FakeKvCluster
from waltz_ray.client.codecs import JsonCodec
from waltz_ray.kv import KvClient, KvClientConfig


def test_workers_share_sessions_through_trouble() -> None:
    with FakeKvCluster() as cluster:
        connect = partial(KvClient, cluster.place(), KvClientConfig(timeout_s=10), JsonCodec())
        workers = [Worker(connect, number) for number in range(2)]
        reports: list[Report] = []
        threads = [threading.Thread(target=lambda w=w: reports.append(w.run(1.5))) for w in workers]
        for thread in threads:
            thread.start()
        for number in range(6):
            actor = cluster.actors[number % 3]
            actor.faults.extend(["after", "before"])
            cluster.move(number, (number + 1) % 3)
            actor.kill()
            actor.revive()
            threads[0].join(0.1)
        for thread in threads:
            thread.join()
        for actor in cluster.actors:
            actor.faults.clear()
        with connect() as client:
            assert wrong(client, reports) == []
            assert all(report.visits and report.own for report in reports)
            assert any(report.terms for report in reports)
            assert len(list(told(reports))) == 3

            lost = next(iter(reports[0].own))
            client.map(f"sessions of worker {reports[0].worker}").delete(lost)
            reports[1].visits += 1
            reports[1].terms += reports[0].terms[:1] or reports[1].terms[:1]
            assert len(wrong(client, reports)) >= 3


@pytest.mark.parametrize("given", ["--workers 0", "--seconds 0", "--seconds nan", "--kill --cluster x"])
def test_options_with_which_nobody_works(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every session of nobody would be there."""
    refused(_arguments_of_command, given, monkeypatch)
