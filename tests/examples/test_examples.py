"""The short examples, each on an in-memory cluster."""

from __future__ import annotations

import asyncio
import io
import json
import runpy
import signal
import sqlite3
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestClient, TestServer
from starlette.requests import Request

import waltz_ray
from examples import append_and_read, audit_trail, plain_sqlite, serve_endpoint
from examples.feed_page import application, runner_of
from examples.leader_election import Act, Candidate, Claim, Office
from examples.serve_endpoint import LogEndpoint
from waltz_ray import compat
from waltz_ray.config import ClusterConfig
from waltz_ray.testing import InMemoryCluster

PATIENCE_S = 20.0


def test_append_and_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with InMemoryCluster() as cluster:
        monkeypatch.setattr(waltz_ray, "connect", lambda name: cluster.connect())
        append_and_read.main("waltz")
    assert "1000 more: transactions 1 to 1000" in capsys.readouterr().out


def test_plain_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Twice: what the first has counted is not counted again."""
    path = str(tmp_path / "words.db")
    with InMemoryCluster(partitions=2) as cluster:
        monkeypatch.setattr(plain_sqlite, "connect", lambda name, callbacks: cluster.connect(callbacks))
        for _ in range(2):
            monkeypatch.setattr("sys.stdin", io.StringIO("to be or\nnot to be\n"))
            plain_sqlite.main("waltz", path)
    with sqlite3.connect(path) as database:
        found = dict(database.execute("SELECT word, count FROM words"))
        assert database.execute("SELECT mark FROM marks WHERE partition_id = 0").fetchone() == (3,)
    database.close()
    assert found == {"to": 4, "be": 4, "or": 2, "not": 2}
    assert capsys.readouterr().err == ""


def test_plain_sqlite_is_not_held_up_by_what_is_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "words.db")
    with InMemoryCluster() as cluster:
        with cluster.connect() as client:
            client.append(0, b"to \xff").result(PATIENCE_S)
        monkeypatch.setattr(plain_sqlite, "connect", lambda name, callbacks: cluster.connect(callbacks))
        monkeypatch.setattr("sys.stdin", io.StringIO("to\n"))
        plain_sqlite.main("waltz", path)
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("2 to\n1 \ufffd\n", "")


def test_the_audit_trail_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with InMemoryCluster() as cluster, cluster.connect() as client:
        client.append_many(0, [b"%d" % number for number in range(20)]).result(PATIENCE_S)
        assert audit_trail.follow(client, 0, path, until=4) == 4
        with open(path, "ab") as file:
            file.write(b'{"id": 5, "torn')  # killed while it wrote
        assert audit_trail.follow(client, 0, path, until=19) == 19
        assert audit_trail.follow(client, 0, path, until=19) == 19
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == list(range(20))


def test_an_audit_trail_is_written_by_one_at_a_time(tmp_path: Path) -> None:
    """Two would each write all lines; the second must not cut off what the first is about to write, either."""
    path = tmp_path / "audit.jsonl"
    with InMemoryCluster() as cluster, cluster.connect() as client:
        with audit_trail.opened(path), pytest.raises(BlockingIOError):
            audit_trail.follow(client, 0, path, until=0)
        client.append(0, b"x").result(PATIENCE_S)
        assert audit_trail.follow(client, 0, path, until=0) == 0


class Watched:
    """What leaders have been told, by name."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.terms: list[tuple[str, int]] = []

    def led(self, name: str, term: int) -> None:
        with self.changed:
            self.terms.append((name, term))
            self.changed.notify_all()

    def wait_for(self, name: str) -> int:
        with self.changed:
            assert self.changed.wait_for(lambda: any(who == name for who, _ in self.terms), PATIENCE_S)
            return next(term for who, term in self.terms if who == name)


def test_one_leads_until_it_ends() -> None:
    watched, offices = Watched(), [Office(), Office()]
    with (
        InMemoryCluster() as cluster,
        cluster.connect(callbacks=offices[0]) as first,
        cluster.connect(callbacks=offices[1]) as second,
    ):
        first.append(0, b"something else").result(PATIENCE_S)
        candidates = {"a": Candidate(first, offices[0], "a", 0.3), "b": Candidate(second, offices[1], "b", 0.3)}
        threads: dict[str, threading.Thread] = {}
        for name, candidate in candidates.items():
            run: Any = candidate.run
            threads[name] = threading.Thread(target=run, args=(lambda term, name=name: watched.led(name, term),))
            threads[name].start()
            if name == "a":
                old_term = watched.wait_for("a")
        candidates["a"].stop()
        new_term = watched.wait_for("b")
        candidates["b"].stop()
        for thread in threads.values():
            thread.join()
        names = [name for name, _ in watched.terms]
        assert names == sorted(names)  # never by turns
        assert new_term > old_term
        # Who has been replaced cannot act, even if it has not heard of it.
        with cluster.suspended(0):
            late = first.submit(Act(offices[0], old_term, "late"))
        assert not late.result(PATIENCE_S)
        assert second.submit(Act(offices[1], new_term, "in time")).result(PATIENCE_S)
        assert not first.submit(Claim(offices[0], "a", 60.0)).result(PATIENCE_S)


def test_of_two_candidates_with_one_name_one_leads() -> None:
    offices = [Office(), Office()]
    with (
        InMemoryCluster() as cluster,
        cluster.connect(callbacks=offices[0]) as first,
        cluster.connect(callbacks=offices[1]) as second,
    ):
        old_term = first.submit(Claim(offices[0], "process 1", 60.0)).result(PATIENCE_S).transaction_id
        assert old_term is not None
        second.wait_applied(0, old_term, PATIENCE_S)
        assert not second.submit(Claim(offices[1], "process 1", 60.0)).result(PATIENCE_S)
        # Its lease is over:
        new_term = second.submit(Claim(offices[1], "process 1", 0.0)).result(PATIENCE_S).transaction_id
        assert new_term is not None
        first.wait_applied(0, new_term, PATIENCE_S)
        assert offices[0].term == new_term > old_term
        assert not first.submit(Act(offices[0], old_term, "late")).result(PATIENCE_S)


def test_a_page_follows_the_feed() -> None:
    async def main() -> None:
        async with (
            InMemoryCluster(partitions=2) as cluster,
            await cluster.connect_async() as client,
            TestClient(TestServer(application(client))) as browser,
        ):
            assert "new EventSource" in await (await browser.get("/")).text()
            for number in range(3):
                answer = await browser.post("/1", data=f"text {number}")
                assert await answer.json() == {"transaction_id": number}
            first = await browser.get("/events/1")
            assert await event_of(first) == (0, "text 0")
            assert await event_of(first) == (1, "text 1")
            first.close()
            again = await browser.get("/events/1", headers={"Last-Event-ID": "1"})
            assert await event_of(again) == (2, "text 2")
            await client.append(1, b"later")
            assert await event_of(again) == (3, "later")
            again.close()
            assert (await browser.get("/events/2")).status == 404

    async def event_of(response: Any) -> tuple[int, str]:
        async with compat.timeout(PATIENCE_S):
            identity, data, _ = [(await response.content.readline()).decode() for _ in range(3)]
        return int(identity.removeprefix("id: ")), json.loads(data.removeprefix("data: "))["text"]

    asyncio.run(main())


def test_a_page_takes_only_ids_that_it_can_have_sent() -> None:
    async def main() -> None:
        async with (
            InMemoryCluster() as cluster,
            await cluster.connect_async() as client,
            TestClient(TestServer(application(client))) as browser,
        ):
            for seen in ("abc", "-5", "9" * 19, "9" * 30):
                answer = await browser.get("/events/0", headers={"Last-Event-ID": seen})
                assert (answer.status, await answer.text()) == (400, "Last-Event-ID is no transaction ID")

    asyncio.run(main())


def test_a_page_that_is_open_does_not_hold_the_server() -> None:
    """Neither its end, nor after the browser has gone: its feed is given up with it."""

    async def main() -> None:
        async with InMemoryCluster() as cluster, await cluster.connect_async() as client:
            await client.append(0, b"x")
            runner = runner_of(application(client))
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            async with ClientSession() as browser:
                gone = await browser.get(f"{site.name}/events/0")
                await gone.content.readline()
                handlers = [task for task in asyncio.all_tasks() if "RequestHandler" in repr(task.get_coro())]
                gone.close()
                async with compat.timeout(PATIENCE_S):
                    await asyncio.wait(handlers)
                stays = await browser.get(f"{site.name}/events/0")
                await stays.content.readline()
                async with compat.timeout(PATIENCE_S):
                    await runner.cleanup()
                stays.close()

    asyncio.run(main())


def test_an_endpoint_for_ray_serve() -> None:
    async def main() -> None:
        async with InMemoryCluster() as cluster, await cluster.connect_async() as client:
            endpoint = LogEndpoint("", client)
            for number in range(2):
                assert await called(endpoint, "POST", b"hello") == (200, {"transaction_id": number})
            found = {"transactions": [{"id": 1, "data": "hello"}]}
            assert await called(endpoint, "GET", query=b"after=0") == (200, found)
            assert await called(endpoint, "GET", query=b"after=x") == (
                400,
                {"error": "invalid literal for int() with base 10: 'x'"},
            )
            status, answer = await called(endpoint, "POST", path="/9")
            assert (status, answer["error"][:24]) == (400, "there is no partition 9;")

    async def called(
        endpoint: LogEndpoint, method: str, body: bytes = b"", query: bytes = b"", path: str = "/0"
    ) -> tuple[int, Any]:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body}

        scope = {"type": "http", "method": method, "path": path, "query_string": query, "headers": []}
        response = await endpoint(Request(scope, receive))
        return response.status_code, json.loads(bytes(response.body))

    asyncio.run(main())


@pytest.mark.parametrize("ends", ["return", KeyboardInterrupt(), EOFError()])
def test_an_endpoint_ends_with_its_program(ends: str | BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """However that ends: what Serve runs on the log's Ray would stay there."""
    calls: list[str] = []

    def asked() -> str:
        calls.append("input")
        if isinstance(ends, BaseException):
            raise ends
        return ends

    monkeypatch.setattr(serve_endpoint, "init_ray", lambda cluster: calls.append("init"))
    monkeypatch.setattr(serve_endpoint, "deploy", lambda cluster: calls.append("deploy"))
    monkeypatch.setattr("builtins.input", asked)
    # Ray Serve's own import warns.
    monkeypatch.setattr(ray, "serve", SimpleNamespace(shutdown=lambda: calls.append("shutdown")), raising=False)
    if isinstance(ends, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            serve_endpoint.main()
    else:
        serve_endpoint.main()
    assert calls == ["init", "deploy", "input", "shutdown"]


@pytest.mark.parametrize("name", ["bank --database sqlite://", "orders", "sessions", "streams_chaos"])
def test_an_interrupted_example_takes_its_cluster_down(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second ^C does not disturb that; nor is there a traceback."""
    undisturbed: list[bool] = []

    def interrupted(config: ClusterConfig) -> None:
        raise KeyboardInterrupt

    def down(directory: Path) -> None:
        undisturbed.append(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)

    monkeypatch.setattr("waltz_ray.bring_up.bring_up", interrupted)
    monkeypatch.setattr("waltz_ray.take_down.take_down_in", down)
    example, *options = name.split()
    monkeypatch.setattr("sys.argv", [example, *options])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(Path(append_and_read.__file__).with_name(f"{example}.py")), run_name="__main__")
    assert (ended.value.code, undisturbed) == (130, [True])
