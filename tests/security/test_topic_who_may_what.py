"""Every request to masters and slots of topics, as everybody: what docs/security.md says of each is what happens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.security.test_who_may_what import table_of
from tests.topics.foreign_client import ForeignClient
from tests.topics.servers import TopicCluster, topic_cluster
from tests.topics.test_access import rules
from waltz_ray.topics.authentication import signed
from waltz_ray.topics.codes import RpcMethod
from waltz_ray.topics.messages import AuthorizedInfo, ClusterMeantRequest, MasterCertificateInfo
from waltz_ray.topics.messages_consumer import (
    CloseRequestC2M,
    CommitOffsetRequestC2B,
    GetMessageRequestC2B,
    HeartBeatRequestC2B,
    HeartRequestC2M,
    ProgressRequestC2B,
    RegisterRequestC2B,
    RegisterRequestC2M,
)
from waltz_ray.topics.messages_producer import (
    CloseRequestP2M,
    HeartRequestP2M,
    RegisterRequestP2M,
    SendMessageRequestP2B,
)
from waltz_ray.topics.rpc import RpcCall, RpcFault
from waltz_ray.topics.serving.connection_proofs import ConnectionProofs
from waltz_ray.topics.serving.master_port import MasterPort
from waltz_ray.topics.tokens import issue_auth_token
from waltz_ray.topics.wire import TopicRequest, encode_request

COLUMNS = ("nobody", "wrong password", "no right", "producer", "consumer")
TABLE = table_of("topics", COLUMNS)
AS_ANOTHER = table_of("topics, as another", COLUMNS[:-1])
USERS = {"no right": "n", "producer": "p", "consumer": "c"}
RULES: dict[str, Any] = {
    "authenticate": True,
    "users": USERS,
    "rights": [
        {"user": "producer", "topic": "orders", "may": ["produce"]},
        {"user": "consumer", "topic": "orders", "may": ["consume"]},
    ],
}
REFUSALS = {401, 403, 415, 411}
"""Wrong, none or no right; the last is who has nothing registered. 404: there is nothing new, which is an answer."""


@asynccontextmanager
async def guarded_topics(document: dict[str, Any] = RULES) -> AsyncIterator[TopicCluster]:
    async with topic_cluster(1) as cluster:
        await cluster.create("orders", 1)
        await cluster.until(cluster.settled)
        await rules(cluster, document)
        yield cluster


@dataclass
class TopicComer:
    name: str
    cluster: TopicCluster
    connections: dict[bool, ForeignClient] = field(default_factory=dict)

    def certificate(self) -> MasterCertificateInfo | None:
        if self.name == "nobody":
            return None
        user = "producer" if self.name == "wrong password" else self.name
        return MasterCertificateInfo(signed(user, USERS.get(self.name, "wrong"), int(time.time() * 1000), 42))

    def token(self) -> AuthorizedInfo | None:
        if self.name == "nobody":
            return None
        user = "producer" if self.name == "wrong password" else self.name
        secrets = self.cluster.servers[0].access.now.secrets
        token = issue_auth_token(secrets, user, USERS.get(self.name, "wrong"), int(time.time() * 1000))
        return AuthorizedInfo(0, token)

    def requests(self, of: str = "") -> dict[str, TopicRequest]:
        """Each method once, in an order in which each that needs another comes after it. ``of``: in whose name."""
        number = COLUMNS.index(of or self.name)
        client, group = f"c{number}", f"group_{number}"
        shown, token = self.certificate(), self.token()
        found: list[TopicRequest] = [
            RegisterRequestP2M(client, ("orders",), -1, "h", shown),
            HeartRequestP2M(client, -1, "h", ("orders",), shown),
            RegisterRequestC2M(client, group, "h", ("orders",), auth_info=shown),
            HeartRequestC2M(client, group, (), False, auth_info=shown),
            SendMessageRequestP2B(client, "orders", 0, b"x", 0, -1, 0, auth_info=token),
            RegisterRequestC2B(31, client, group, "orders", 0, 0, auth_info=token),
            HeartBeatRequestC2B(client, group, 0, (), auth_info=token),
            GetMessageRequestC2B(client, 0, group, "orders"),
            CommitOffsetRequestC2B(client, "orders", 0, group, True),
            ProgressRequestC2B(client, group, "orders", 0, -1, 0),
            CloseRequestP2M(client, shown),
            CloseRequestC2M(client, group, shown),
            ClusterMeantRequest(self.cluster.key),
        ]
        return {encode_request(each)[0].name: each for each in found}

    async def connection(self, method: RpcMethod) -> ForeignClient:
        at_master = method <= RpcMethod.CONSUMER_CLOSE
        if at_master not in self.connections:
            port = self.cluster.servers[0].node.ports[1]
            self.connections[at_master] = await (self.cluster.master() if at_master else self.cluster.client(port))
        return self.connections[at_master]

    async def code(self, request: TopicRequest) -> int:
        method, body = encode_request(request)
        return (await (await self.connection(method)).ask(method, body)).code


def compare(column: str, table: Mapping[str, tuple[str, ...]], codes: Mapping[str, int]) -> None:
    found = {name: "no" if code in REFUSALS else "yes" for name, code in codes.items()}
    assert {*codes.values()} <= {200, 404, *REFUSALS}, "a request was wrong in itself"
    assert found == {name: cells[COLUMNS.index(column)] for name, cells in table.items()}, column


def test_the_tables_have_every_method_and_no_other() -> None:
    assert set(TABLE) == set(AS_ANOTHER) == {method.name for method in RpcMethod}


@pytest.mark.parametrize("column", COLUMNS)
def test_what_the_table_says_is_what_happens(column: str) -> None:
    async def run() -> None:
        async with guarded_topics() as cluster:
            comer = TopicComer(column, cluster)
            compare(column, TABLE, {name: await comer.code(each) for name, each in comer.requests().items()})

    asyncio.run(run())


@pytest.mark.parametrize("column", COLUMNS[:-1])
def test_in_the_name_of_a_consumer_that_has_registered(column: str) -> None:
    """Who knows its ID and group, over another connection."""

    async def run() -> None:
        async with guarded_topics() as cluster:
            consumer = TopicComer("consumer", cluster)
            for name, request in consumer.requests().items():
                if name in ("CONSUMER_REGISTER", "PARTITION_REGISTER"):
                    assert await consumer.code(request) == 200
            comer = TopicComer(column, cluster)
            codes = {name: await comer.code(each) for name, each in comer.requests("consumer").items()}
            compare(column, AS_ANOTHER, codes)

    asyncio.run(run())


def test_nobody_renews_or_gives_back_what_another_users_consumer_has() -> None:
    """Not even one with the same rights, to whom a partition of the group could go."""
    rights = [*RULES["rights"], {"user": "no right", "topic": "orders", "may": ["consume", "produce"]}]
    document = RULES | {"rights": rights}

    async def run() -> None:
        async with guarded_topics(document) as cluster:
            consumer, other = TopicComer("consumer", cluster), TopicComer("no right", cluster)
            requests = consumer.requests()
            for name in ("CONSUMER_REGISTER", "PARTITION_REGISTER"):
                assert await consumer.code(requests[name]) == 200
            client, group = f"c{COLUMNS.index('consumer')}", f"group_{COLUMNS.index('consumer')}"
            shown, token = other.certificate(), other.token()
            closing = CloseRequestC2M(client, group, shown)
            assert await other.code(closing) == 415
            assert await other.code(RegisterRequestC2M(client, "g", "h", ("orders",), auth_info=shown)) == 415
            for operation in (31, 32):
                taken = RegisterRequestC2B(operation, client, group, "orders", 0, 0, auth_info=token)
                assert await other.code(taken) == 415
            place = f"1:127.0.0.1:{cluster.servers[0].node.ports[1]}#orders:0"

            async def beat(comer: TopicComer) -> list[bytes | int]:
                shown = HeartBeatRequestC2B(client, group, 0, (place,), auth_info=comer.token())
                method, body = encode_request(shown)
                reply = await (await comer.connection(method)).ask(method, body)
                return reply.fields.get(5, [])

            assert await beat(consumer) == []
            assert [b"415" in failure for failure in await beat(other) if isinstance(failure, bytes)] == [True]
            assert await consumer.code(CloseRequestC2M(client, group, consumer.certificate())) == 200
            again = RegisterRequestC2M(client, group, "h", ("orders",), auth_info=shown)
            assert await other.code(again) == 200, "it is free once its client has gone"

    asyncio.run(run())


def test_who_connects_again_shows_again_who_it_is() -> None:
    async def run() -> None:
        async with guarded_topics() as cluster:
            comer = TopicComer("consumer", cluster)
            requests = comer.requests()
            proofs = {"PARTITION_REGISTER": 200, "GET_MESSAGE": 404, "COMMIT_OFFSET": 200}
            assert {name: await comer.code(requests[name]) for name in proofs} == proofs
            for proof in ("PARTITION_HEARTBEAT", "PARTITION_REGISTER"):
                comer.connections.clear()  # another one, beside it
                assert await comer.code(requests["GET_MESSAGE"]) == await comer.code(requests["PROGRESS"]) == 411
                assert await comer.code(requests[proof]) == 200
                assert await comer.code(requests["GET_MESSAGE"]) in (200, 404)

    asyncio.run(run())


def test_who_has_proved_himself_with_a_password_that_was_changed_proves_himself_again() -> None:
    async def run() -> None:
        async with guarded_topics() as cluster:
            comer = TopicComer("consumer", cluster)
            requests = comer.requests()
            for name, code in {"PARTITION_REGISTER": 200, "GET_MESSAGE": 404, "COMMIT_OFFSET": 200}.items():
                assert await comer.code(requests[name]) == code
            await rules(cluster, RULES | {"users": USERS | {"consumer": "another"}})
            await cluster.until(lambda: cluster.servers[0].access.now.rules.users["consumer"] == "another")
            for name in ("GET_MESSAGE", "COMMIT_OFFSET", "PROGRESS"):
                assert await comer.code(requests[name]) == 411, name
            assert await comer.code(requests["PARTITION_REGISTER"]) == 415, "its token ended, too"

    asyncio.run(run())


def test_what_strangers_say_is_not_even_taken_apart() -> None:
    """It may be long: lists of partitions, of which each has to be read."""

    async def run() -> None:
        async with guarded_topics() as cluster:
            for name, code in {"nobody": 401, "wrong password": 415, "consumer": 400}.items():
                comer = TopicComer(name, cluster)
                nonsense = RegisterRequestC2M("c", "g", "h", ("orders",), ("nonsense",), auth_info=comer.certificate())
                assert await comer.code(nonsense) == code, name

    asyncio.run(run())


def test_a_heartbeat_names_no_more_than_a_slot_has() -> None:
    """Who has shown who he is may send one, without a right: each partition costs the slot some microseconds."""

    async def run() -> None:
        async with guarded_topics() as cluster:
            comer = TopicComer("no right", cluster)
            for count, code in {1024: 200, 1025: 400}.items():
                places = tuple(f"1:127.0.0.1:80#topic{number}:0" for number in range(count))
                assert await comer.code(HeartBeatRequestC2B("c", "g", 0, places, auth_info=comer.token())) == code
            many = tuple(f"c@g#1:127.0.0.1:80#topic{number}:0" for number in range(16_385))
            for more, code in {many[1:]: 411, many: 400}.items():  # to the master, of which the consumer is none
                assert await comer.code(HeartRequestC2M("c", "g", more, True, auth_info=comer.certificate())) == code

    asyncio.run(run())


def test_who_does_not_lead_takes_nothing_apart() -> None:
    async def stores(group: str, offsets: object, still: object) -> str:
        return ""

    answers: list[object] = []
    nonsense = RegisterRequestC2M("c", "g", "h", ("orders",), ("nonsense",))
    MasterPort(stores, 1000).submit(nonsense, RpcCall(RpcMethod.CONSUMER_REGISTER, b"", 1), 1, answers.append)
    [answer] = answers
    assert isinstance(answer, RpcFault)
    assert answer.is_standby


def test_proofs_are_a_bounded_memory() -> None:
    proofs = ConnectionProofs()
    for number in range(20_000):
        proofs.shown(number, "ann", "a")
        proofs.shown(1_000_000, f"user {number}", "a")
    assert (proofs.has(0, "ann", "a"), proofs.has(19_999, "ann", "a"), proofs.has(0, "", None)) == (False, True, True)
    assert (proofs.has(1_000_000, "user 0", "a"), proofs.has(1_000_000, "user 19999", "a")) == (False, True)
    assert sum(map(len, proofs._users.values())) < 9000
    proofs.shown(1, "", "")
    assert not proofs.has(1, "ann", "a")


def test_without_rules_everybody_may_everything() -> None:
    async def run() -> None:
        async with guarded_topics({}) as cluster:
            comer = TopicComer("nobody", cluster)
            codes = {name: await comer.code(each) for name, each in comer.requests().items()}
            assert {*codes.values()} == {200}, codes

    asyncio.run(run())
