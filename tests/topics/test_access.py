"""Rights, tokens and limits, live: what is in ZooKeeper holds from the next request on, at masters and at slots."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest

from tests.topics.foreign_client import Fields, ForeignClient, ForeignReply, message, payloads_of, text
from tests.topics.members import brokers_in
from tests.topics.servers import CLUSTER, TopicCluster, topic_cluster
from waltz_ray import compat
from waltz_ray.coordination.topic_store import TopicStore
from waltz_ray.topics.serving import deliveries

RULES: dict[str, Any] = {
    "authenticate": True,
    "users": {"alice": "s3cret", "bob": "b"},
    "rights": [{"user": "alice", "topic": "orders", "may": ["produce", "consume"]}],
}


async def rules(cluster: TopicCluster, document: dict[str, Any], name: str = "access") -> None:
    """They are there, and everybody has heard of them."""
    store = TopicStore(cluster._manager, CLUSTER)
    assert store.set_document(name, json.dumps(document).encode(), store.document(name)[1])
    if name == "access":
        wanted = bool(document.get("authenticate")), len(document.get("users", {})), len(document.get("blacklist", {}))

        def heard() -> bool:
            known = [server.access.now.rules for server in cluster.servers.values()]
            return all((each.authenticate, len(each.users), len(each.blacklist)) == wanted for each in known)

        await cluster.until(heard)


def signed(user: str, password: str) -> bytes:
    """MasterCertificateInfo, by hand."""
    now = int(time.time() * 1000)
    found = hmac.new(password.encode(), f"{user}{now}42".encode(), hashlib.sha1).digest()
    proof = quote(base64.b64encode(found).decode(), safe="")
    return message({1: message({1: text(user), 2: now, 3: 42, 4: b"", 5: text(proof)})})


def producer(certificate: bytes | None, topic: str = "orders") -> Fields:
    head: Fields = {1: text("p"), 2: text(topic), 3: -1, 4: text("h")}
    return head if certificate is None else {**head, 5: certificate}


async def sends(broker: ForeignClient, shown: bytes | None) -> ForeignReply:
    head: Fields = {1: text("p"), 2: text("orders"), 3: 0, 4: b"x", 5: 0, 6: -1, 7: 0}
    return await broker.ask(13, head if shown is None else {**head, 10: shown})


def test_t40_t42_t43_who_signs_is_given_a_token_that_slots_accept() -> None:
    async def run() -> None:
        async with topic_cluster(2) as cluster:
            await cluster.create("orders", 1)
            await cluster.create("bills", 1)
            await cluster.until(cluster.settled)
            master = await cluster.master()
            free = await master.ask(1, producer(None))
            assert free.code == 200
            broker = await cluster.client(brokers_in(free.texts(5))[1])
            assert (await sends(broker, None)).code == 200
            await rules(cluster, RULES)
            assert (await master.ask(1, producer(None))).code == 401
            assert (await master.ask(1, producer(signed("alice", "wrong")))).code == 415
            assert (await master.ask(1, producer(signed("nobody", "x")))).code == 415
            assert (await master.ask(1, producer(signed("bob", "b")))).code == 403
            assert (await master.ask(1, producer(signed("alice", "s3cret"), "bills"))).code == 403
            known = await master.ask(1, producer(signed("alice", "s3cret")))
            assert known.code == 200
            [rights] = known.parts(6)
            token = rights.data(2)
            assert rights.number(1) == 0, "no topic is guarded"
            assert (await sends(broker, None)).code == 401
            assert (await sends(broker, message({1: 0, 2: token}))).code == 200
            assert (await sends(broker, message({1: 0, 2: token[:-1] + b"!"}))).code == 415
            again = await master.ask(1, producer(message({2: token})))
            assert again.code == 200, "the token is taken in place of the signature"
            assert (await master.ask(3, {1: text("p")})).code == 401, "T14"
            assert (await master.ask(3, {1: text("p"), 2: message({2: token})})).code == 200
            await rules(cluster, {**RULES, "users": {"alice": "another", "bob": "b", "eve": "e"}})
            assert (await sends(broker, message({1: 0, 2: token}))).code == 415, "of another password"

    asyncio.run(run())


def test_clocks_that_were_set_back_stop_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the actors were an hour fast: rules of flow hold nobody up for that hour, and who signs is known."""
    fast_ms = 3_600_000

    def time_ns() -> int:
        return time.time_ns() + 1_000_000 * fast_ms

    monkeypatch.setattr(deliveries, "time", SimpleNamespace(time_ns=time_ns, monotonic_ns=time.monotonic_ns))

    async def run() -> None:
        nonlocal fast_ms
        async with topic_cluster(1) as cluster:
            await cluster.create("orders", 1)
            await cluster.until(cluster.settled)
            master = await cluster.master()
            broker = await cluster.client(brokers_in((await master.ask(1, producer(None))).texts(5))[1])
            await rules(cluster, {"groups": {"g": [{"type": 3, "rule": [{"normFreqInMs": 50}]}]}}, "flow")
            await cluster.until(lambda: bool(cluster.servers[0].access.flow.groups))
            assert (await sends(broker, None)).code == 200
            assert (await broker.register("g", "orders")).code == 200
            assert (await broker.pull("g", "orders")).code == 200
            fast_ms = 0
            async with compat.timeout(10.0):
                while (code := (await broker.pull("g", "orders")).code) == 452:
                    pass
            assert code == 404
            await rules(cluster, RULES)
            known = await master.ask(1, producer(signed("alice", "s3cret")))
            assert known.code == 200
            assert (await sends(broker, message({1: 0, 2: known.parts(6)[0].data(2)}))).code == 200

    asyncio.run(run())


def test_t20_t41_a_guarded_topic_is_for_who_has_been_at_the_master() -> None:
    async def run() -> None:
        async with topic_cluster(2) as cluster:
            await cluster.create("orders", 1)
            await cluster.until(cluster.settled)
            await cluster.until(lambda: all(each.access.now.visit.current for each in cluster.servers.values()))
            master = await cluster.master()
            await rules(cluster, {"guarded": ["orders"], "blacklist": {"x": ["orders"]}})
            registered = await master.ask(1, producer(None))
            visit = registered.parts(6)[0].number(1)
            assert visit != 0
            broker = await cluster.client(brokers_in(registered.texts(5))[1])
            assert (await sends(broker, message({1: 0}))).code == 401
            assert (await sends(broker, message({1: visit + 1}))).code == 401
            assert (await sends(broker, message({1: visit}))).code == 200
            assert (await broker.register("g", "orders")).code == 401
            assert (await broker.register("g", "orders", visit=visit)).code == 200
            leader = cluster.leader()
            assert leader is not None
            for number in (1, 2):  # the clock goes on by more than an hour, twice
                cluster.servers[leader].access.rotate(int(time.time() * 1000) + number * 3_700_000)
            beat = await master.ask(2, {1: text("p"), 2: registered.number(4), 3: text("h"), 4: text("orders")})
            newer = beat.parts(8)[0].number(1)
            assert newer != visit
            assert (await sends(broker, message({1: newer}))).code == 200
            assert (await sends(broker, message({1: visit}))).code == 401, "two tokens ago"

    asyncio.run(run())


def test_t43_groups_on_the_blacklist_and_groups_with_filters() -> None:
    async def run() -> None:
        async with topic_cluster(1) as cluster:
            await cluster.create("orders", 1)
            await cluster.until(cluster.settled)
            filters = [{"group": "some", "topic": "orders", "choose_from": ["aaa", "bbb"]}]
            await rules(cluster, {"blacklist": {"banned": ["*"]}, "filters": filters})
            master = await cluster.master()
            for group, condition, code in (
                ("banned", "", 450),
                ("some", "", 455),
                ("some", "orders#aaa,ccc", 455),
                ("some", "orders#aaa", 200),
                ("free", "", 200),
            ):
                head: Fields = {1: text("c"), 2: text(group), 3: text("h"), 4: text("orders")}
                asked = await master.ask(4, {**head, 6: text(condition)} if condition else head)
                assert (group, condition, asked.code) == (group, condition, code)
            broker = await cluster.client(cluster.servers[0].node.ports[1])
            assert (await broker.register("banned", "orders")).code == 450
            assert (await broker.register("some", "orders")).code == 455
            assert (await broker.register("some", "orders", filters=["aaa"])).code == 200

    asyncio.run(run())


def test_t45_t46_flow_rules_hold_at_once_and_are_told_to_consumers() -> None:
    async def run() -> None:
        async with topic_cluster(1) as cluster:
            await cluster.create("orders", 1)
            await cluster.until(cluster.settled)
            broker = await cluster.client(cluster.servers[0].node.ports[1])
            await broker.register("slow", "orders")
            await broker.register("fast", "orders")
            for group in ("slow", "fast"):
                assert (await broker.pull(group, "orders")).code == 404
            flow = {"groups": {"slow": [{"type": 1, "rule": [{"zeroCnt": 1, "freqInMs": 60_000}]}]}}
            await rules(cluster, flow, "flow")
            await cluster.until(
                lambda: bool(cluster.servers[0].access.flow.groups) or bool(cluster.servers[0].access.problem)
            )
            assert cluster.servers[0].access.problem == ""
            assert (await broker.pull("slow", "orders")).code == 404, "the first that counts"
            limited = await broker.pull("slow", "orders")
            assert limited.code == 452
            assert 0 < limited.number(6) <= 60_000
            assert (await broker.pull("fast", "orders")).code == 404
            master = await cluster.master()
            told = await master.ask(4, {1: text("c"), 2: text("slow"), 3: text("h"), 4: text("orders")})
            assert json.loads(told.data(9))[0]["type"] == 1
            beat = await master.ask(5, {1: text("c"), 2: text("slow"), 4: 0, 7: told.number(8)})
            assert (beat.number(8), beat.data(9)) == (told.number(8), b""), "it has them"
            sent = await broker.produce("orders", b"x")
            assert sent.code == 200
            assert payloads_of(await broker.pull("fast", "orders")) == [b"x"]

    asyncio.run(run())


def test_a_document_without_sense_changes_nothing_and_is_seen() -> None:
    async def run() -> None:
        async with topic_cluster(1) as cluster:
            await cluster.create("orders", 1)
            await cluster.until(cluster.settled)
            server = cluster.servers[0]
            await rules(cluster, RULES)
            store = TopicStore(cluster._manager, CLUSTER)
            assert store.set_document("access", b"{", store.document("access")[1])
            await cluster.until(lambda: not server.status().serving)
            assert server.status().reason.startswith("access: the access rules")
            assert server.access.now.rules.authenticate
            await rules(cluster, {})
            await cluster.until(lambda: server.status().serving)

    asyncio.run(run())
