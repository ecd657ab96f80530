"""The rights of clients on a kv port: who comes, what becomes of it when they change, links between actors, clients."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.actors.test_feed_pace import in_loop
from tests.kv.dict_port import DictPort
from tests.kv.fake_cluster import FakePlace
from tests.security.keys import SECRET
from tests.security.kv_rights import KV_RULES, KV_TOKEN, KvDoor, guarded_gateway, set_rules
from tests.security.rights import Comes
from waltz_ray.actors.access_guard import MOST_REFUSALS
from waltz_ray.actors.member_credentials import MemberCredentials
from waltz_ray.actors.settings import Settings, to_json
from waltz_ray.cli import main
from waltz_ray.config import ClusterConfig, KvConfig, ServerConfig
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.layer_store import LayerStore
from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer
from waltz_ray.errors import AccessRefused, ConfigError, KvNotReady
from waltz_ray.finding.find import FoundCluster
from waltz_ray.kv.client.aio import AsyncKvClient
from waltz_ray.kv.client.errands import PutJob
from waltz_ray.kv.client.settings import KvClientConfig
from waltz_ray.kv.messages import (
    Ack,
    Fail,
    FailCode,
    FailInfo,
    Get,
    Goodbye,
    Hashmasks,
    KvHello,
    LockCommand,
    Op,
    Opcode,
    OpKind,
    Ping,
    Reply,
    SecondaryHas,
    ShowKvToken,
)
from waltz_ray.kv.serving.gateway import Gateway
from waltz_ray.kv.serving.peer_link import PeerLink
from waltz_ray.net.tls import ServerTls
from waltz_ray.protocol.access import ANY, SpaceRight, SpaceRules
from waltz_ray.protocol.authentication import Secret
from waltz_ray.security.certificates import make_certificates
from waltz_ray.security.member_token import member_token

READ = frozenset({SpaceRight.READ})
GET, LOCK = Get(Opcode.GET_INT, 0, 1), LockCommand(b"l", 10, 0)
TLS_ONLY = replace(KV_RULES, tls_only=True)


def word(reply: Reply | None) -> str:
    """What is said of a right: "" = it is there."""
    return reply.text if isinstance(reply, FailInfo) and reply.code == FailCode.NOT_ALLOWED else ""


# ---- who comes


@in_loop
async def test_a_refusal_says_what_where_and_what_to_do() -> None:
    gateway = guarded_gateway()
    nobody, reader, eve = (KvDoor(gateway, Comes(name)) for name in ("", "reader", "eve"))
    assert word(nobody.say(GET)) == "who comes without a name may not read in space 'kv': show a certificate or a token"
    assert word(reader.say(LOCK)) == "client 'reader' may not append in space 'kv': ask the operator for the right"
    assert word(eve.say(KvHello())) == "client 'eve' is not known here: ask the operator to add it"
    assert gateway.counts.access_refused == {"nobody": 1, "no_right": 1, "unknown_client": 1}


@in_loop
async def test_a_token_says_who_comes_in_place_of_the_certificate() -> None:
    door = KvDoor(guarded_gateway(), Comes("reader"))
    assert word(door.say(ShowKvToken("guessed"))) == "the token is nobody's here: ask the operator for another one"
    assert word(door.say(GET)), "what the certificate says counts no more"
    assert door.say(ShowKvToken(KV_TOKEN)) == Ack()
    assert not word(door.say(GET))
    assert not word(door.say(LOCK))


@in_loop
async def test_a_token_over_a_plain_connection_is_refused() -> None:
    gateway = guarded_gateway()
    for token in (KV_TOKEN, member_token(SECRET)):
        door = KvDoor(gateway, Comes(tls=False))
        assert "a token is taken over TLS only" in word(door.say(ShowKvToken(token)))
        assert word(door.say(GET))
    assert gateway.counts.access_refused["plain_token"] == 2


@in_loop
async def test_tls_only_refuses_who_comes_without_whatever_it_may() -> None:
    open_to_all = SpaceRules(rights={(ANY, ANY): frozenset(SpaceRight)}, tls_only=True)
    gateway = guarded_gateway(open_to_all)
    assert not word(KvDoor(gateway, Comes()).say(LOCK))
    assert "for TLS only: connect with the authority" in word(KvDoor(gateway, Comes(tls=False)).say(KvHello()))


@in_loop
async def test_of_actors_only_who_knows_the_secret_is_believed() -> None:
    node = DictPort()
    gateway = guarded_gateway(node=node)
    member = KvDoor(gateway, Comes(member=True))
    assert member.say(SecondaryHas(0, 1)) == Ack()
    stranger = KvDoor(gateway, Comes())
    assert word(stranger.say(ShowKvToken(member_token(Secret(bytes(32))))))
    assert word(stranger.say(SecondaryHas(0, 1)))
    known = KvDoor(gateway, Comes("reader"))
    assert "actors of the cluster say this to each other" in word(known.say(SecondaryHas(0, 1)))
    assert gateway.counts.access_refused == {"wrong_token": 2, "not_member": 1}
    assert len(node.submitted) == 1


# ---- bounds


@in_loop
async def test_refusals_are_counted_and_told_seldom(caplog: pytest.LogCaptureFixture) -> None:
    gateway = guarded_gateway()
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            door = KvDoor(gateway, Comes())
            for _ in range(10):
                door.say(GET)
    assert [each for each in caplog.messages if "refused" in each] == [
        "kv/0: refused 10.0.0.1:4711: get_int(2100): who comes without a name may not read in space 'kv': show a "
        "certificate or a token"
    ]
    assert gateway.counts.access_refused == {"nobody": 50}


@in_loop
async def test_who_goes_on_asking_what_is_refused_is_closed() -> None:
    door = KvDoor(guarded_gateway(), Comes())
    for _ in range(MOST_REFUSALS):
        assert word(door.say(GET))
    before = door.wire.ended
    assert word(door.say(GET)), "the last one is answered, too"
    assert (before, door.wire.ended) == ("", "closed")


@in_loop
async def test_a_token_is_in_no_word_about_it() -> None:
    assert KV_TOKEN not in repr(ShowKvToken(KV_TOKEN))


# ---- rights that change


@in_loop
async def test_a_right_that_is_given_holds_from_the_next_command_on() -> None:
    gateway = guarded_gateway()
    door = KvDoor(gateway, Comes("eve"))
    assert word(door.say(GET))
    set_rules(gateway, replace(KV_RULES, clients=KV_RULES.clients | {"eve"}, rights={("eve", "kv"): READ}))
    assert door.say(GET) == Fail()


@in_loop
async def test_a_right_that_is_taken_is_refused_at_once_and_ends_the_connections_that_have_used_it() -> None:
    gateway = guarded_gateway()
    used, unused = KvDoor(gateway, Comes("reader")), KvDoor(gateway, Comes("appender"))
    assert used.say(GET) == Fail()
    set_rules(gateway, SpaceRules(frozenset({"reader", "appender"})))
    assert "client 'reader' may not read in space 'kv'" in word(used.say(GET))
    used.part()
    assert used.wire.ended == "closed"
    assert unused.say(Ping()) == Ack()
    assert not unused.parted


@in_loop
async def test_a_token_that_is_withdrawn_is_refused_at_once_and_ends_the_connections_that_have_shown_it() -> None:
    gateway = guarded_gateway()
    door = KvDoor(gateway, Comes())
    assert door.say(ShowKvToken(KV_TOKEN)) == Ack()
    assert door.say(GET) == Fail()
    set_rules(gateway, replace(KV_RULES, tokens={}))
    assert word(door.say(GET)) == "the token is nobody's here: ask the operator for another one"
    door.part()
    assert door.wire.ended == "closed"


@in_loop
async def test_who_was_there_before_there_were_rights_has_to_come_again_and_may_no_more_meanwhile() -> None:
    gateway = guarded_gateway(rules=None)
    nobody, reader = KvDoor(gateway, Comes(tls=False)), KvDoor(gateway, Comes("reader"))
    assert nobody.say(GET) == reader.say(GET) == Fail()
    set_rules(gateway, KV_RULES)
    assert word(nobody.say(GET))
    assert reader.say(GET) == Fail()
    for door in (nobody, reader):
        door.part()
        assert door.wire.ended == "closed"


@in_loop
async def test_rights_that_are_taken_away_as_a_whole_let_everybody_in() -> None:
    gateway = guarded_gateway()
    door = KvDoor(gateway, Comes(tls=False))
    assert word(door.say(GET))
    set_rules(gateway, None)
    assert door.say(GET) == Fail()


@in_loop
async def test_goodbye_needs_no_right() -> None:
    door = KvDoor(guarded_gateway(TLS_ONLY), Comes(tls=False))
    assert door.say(Goodbye()) == Ack()
    assert door.wire.ended == "closed"


# ---- links and clients, over real TLS


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    make_certificates(directory, ["127.0.0.1"], ["reader", "appender", "eve"], 2)
    token = directory / "loader.token"
    with open(os.open(token, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write(KV_TOKEN + "\n")
    return directory


async def listening(files: Path, rules: SpaceRules | None, node: DictPort) -> tuple[Gateway, str]:
    tls = ServerTls(f"{files}/server.pem", f"{files}/server.key", f"{files}/authority.pem", optional=True)
    gateway = guarded_gateway(rules, node=node, tls=tls)
    server = f"127.0.0.1:{await gateway.listen('127.0.0.1', 0)}"
    node.members = [server]
    return gateway, server


def shown(files: Path, name: str = "", token: bool = False, timeout_s: float = 5) -> KvClientConfig:
    return KvClientConfig(
        timeout_s=timeout_s,
        tls=True,
        tls_authority=f"{files}/authority.pem",
        tls_certificate=f"{files}/{name}.pem" if name else "",
        tls_key=f"{files}/{name}.key" if name else "",
        token_file=f"{files}/loader.token" if token else "",
    )


@in_loop
async def test_links_between_actors_go_on_under_tls_only(files: Path, caplog: pytest.LogCaptureFixture) -> None:
    gateway, server = await listening(files, TLS_ONLY, DictPort())
    link = PeerLink(server, "me:1", shown=MemberCredentials(f"{files}/authority.pem", lambda: SECRET))
    assert await link.ask(SecondaryHas(0, 1), 5) == Ack()
    set_rules(gateway, replace(TLS_ONLY, rights={}))
    assert await link.ask(SecondaryHas(0, 2), 5) == Ack(), "a member needs none of these rights"
    assert not gateway.counts.access_refused
    plain = PeerLink(server, "me:2")
    assert word(await plain.ask(SecondaryHas(0, 3), 5))
    assert f"{server} does not believe that we are of its cluster: this port is for TLS only" in caplog.text
    await asyncio.gather(link.close(), plain.close())
    await gateway.close()


@in_loop
async def test_a_link_whose_files_cannot_be_used_is_tried_again(files: Path, tmp_path: Path) -> None:
    gateway, server = await listening(files, KV_RULES, DictPort())
    authority = tmp_path / "authority.pem"
    link = PeerLink(server, "me:1", shown=MemberCredentials(str(authority), lambda: SECRET), longest_pause_ms=10)
    with pytest.raises(TimeoutError):
        await link.ask(Ping(), 0.05)
    authority.write_bytes((files / "authority.pem").read_bytes())
    assert await link.ask(SecondaryHas(0, 1), 5) == Ack()
    await link.close()
    await gateway.close()


@in_loop
async def test_a_client_of_python_shows_a_certificate_or_a_token(files: Path) -> None:
    gateway, server = await listening(files, TLS_ONLY, DictPort())
    for config in (shown(files, "reader"), shown(files, token=True)):
        async with AsyncKvClient(FakePlace([server]), config) as items:
            assert await items.get("colour", default="none") == "none"
    async with AsyncKvClient(FakePlace([server]), shown(files, "appender")) as items:
        with pytest.raises(AccessRefused, match=f"'colour' was refused by {server}: client 'appender' may not read"):
            await items.get("colour")
        with pytest.raises(AccessRefused, match=r"a scan was refused by .*: client 'appender' may not read in space"):
            [each async for each in items.scan()]
    async with AsyncKvClient(FakePlace([server]), shown(files, "reader")) as items:
        with pytest.raises(AccessRefused, match="client 'reader' may not append in space 'kv': ask the operator"):
            await items.set("colour", "red")
        with pytest.raises(AccessRefused, match="client 'reader' may not append"):
            async with items.lock("leader"):
                raise AssertionError("it was given")
    await gateway.close()


@in_loop
async def test_a_client_that_is_not_let_in_says_so_at_once_and_comes_in_when_it_may(files: Path) -> None:
    gateway, server = await listening(files, KV_RULES, DictPort())
    for config, why in (
        (shown(files, "eve"), "client 'eve' is not known here"),
        (shown(files), "who comes without a name may not read or append in space 'kv': show a certificate or a token"),
        (KvClientConfig(timeout_s=5), "who comes without a name may not read or append"),
    ):
        async with AsyncKvClient(FakePlace([server]), config) as items:
            with pytest.raises(AccessRefused, match=why):
                await items.get("colour")
            with pytest.raises(AccessRefused, match=why):
                [each async for each in items.scan()]
            with pytest.raises(AccessRefused, match=why):
                await items.routes()
    async with AsyncKvClient(FakePlace([server]), shown(files, "eve")) as items:
        with pytest.raises(AccessRefused):
            await items.get("colour")
        set_rules(gateway, replace(KV_RULES, clients=KV_RULES.clients | {"eve"}, rights={("eve", "kv"): READ}))
        while items.statistics()["connected"] == 0:
            await asyncio.sleep(0.01)
        assert await items.get("colour", default="none") == "none"
    await gateway.close()


@in_loop
async def test_who_may_only_append_does_not_ask_again_and_again_who_has_an_item(files: Path) -> None:
    """It asks by reading, which would be refused each time, and end the connection after so many."""
    gateway, server = await listening(files, KV_RULES, DictPort(Hashmasks(0xF, ())))
    async with AsyncKvClient(FakePlace([server]), shown(files, "appender", timeout_s=1.5)) as items:
        with pytest.raises(KvNotReady):
            await items.set("colour", "red")
    assert gateway.counts.access_refused == {"no_right": 1}
    await gateway.close()


@in_loop
async def test_files_that_cannot_be_used_are_told_at_once(files: Path, tmp_path: Path) -> None:
    for config in (
        KvClientConfig(tls=True, tls_authority=str(tmp_path / "none.pem")),
        KvClientConfig(tls=True, tls_authority=f"{files}/authority.pem", token_file=str(tmp_path / "none.token")),
    ):
        with pytest.raises(ConfigError, match=r"none\."):
            await AsyncKvClient(FakePlace(["127.0.0.1:1"]), config).start()


@in_loop
async def test_a_client_whose_right_is_taken_is_told_so(files: Path) -> None:
    gateway, server = await listening(files, KV_RULES, DictPort())
    async with AsyncKvClient(FakePlace([server]), shown(files, "reader")) as items:
        assert await items.get("colour", default="none") == "none"
        set_rules(gateway, replace(KV_RULES, rights={}))
        with pytest.raises(AccessRefused, match="client 'reader' may not read"):
            await items.get("colour")
    await gateway.close()


@in_loop
async def test_a_port_that_knows_no_rights_takes_a_token_for_what_it_is(files: Path) -> None:
    gateway, server = await listening(files, None, DictPort())
    async with AsyncKvClient(FakePlace([server]), shown(files, token=True)) as items:
        assert await items.get("colour", default="none") == "none"
    await gateway.close()


def test_the_environment_counts_where_the_configuration_says_nothing(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WALTZ_TLS_AUTHORITY", f"{files}/authority.pem")
    monkeypatch.setenv("WALTZ_TOKEN_FILE", f"{files}/loader.token")
    of_environment = KvClientConfig().credentials()
    assert (of_environment.authority, of_environment.token()) == (f"{files}/authority.pem", KV_TOKEN)
    assert KvClientConfig(tls=True).credentials().token_file == ""
    log_config = shown(files, "reader").of_the_log()
    assert log_config is not None
    assert (log_config.tls_certificate, log_config.token_file) == (f"{files}/reader.pem", "")
    assert KvClientConfig(tls=True).of_the_log() is None


def test_files_without_tls_or_half_of_them_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"KvClientConfig\.token_file says something about TLS, and tls is off"):
        KvClientConfig(token_file="/t")
    with pytest.raises(ConfigError, match="go together"):
        KvClientConfig(tls=True, tls_key="/k")
    with pytest.raises(ConfigError, match=r"KvConfig\.tls_clients .* needs tls_certificate"):
        KvConfig(tls_clients="/a")


def test_a_write_that_was_sent_before_it_was_refused_may_have_happened() -> None:
    job = PutJob(Op(OpKind.SET, b"colour"))
    job.unknown = True
    job.not_allowed("it was refused")
    with pytest.raises(AccessRefused, match="it was refused; it was sent before, and may have happened"):
        job.check("setting", 1)
    assert not issubclass(AccessRefused, KvNotReady)


# ---- waltz access set


@pytest.mark.parametrize(
    ("actors", "authority", "port_certificate", "why"),
    [
        ({}, "", "", ""),
        ({"kv": 1}, "", "/c.pem", "key/value or topic actors, which would be refused"),
        ({"topic": 1}, "", "", "key/value or topic actors, which would be refused"),
        ({"kv": 1}, "/a.pem", "", "the key/value actors of cluster 'c' speak no TLS"),
        ({"kv": 1}, "/a.pem", "/c.pem", ""),
    ],
)
def test_rights_that_would_shut_the_cluster_s_own_actors_out_are_not_set(
    actors: dict[str, int],
    authority: str,
    port_certificate: str,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Those that there are by now; the settings say how many there were at the first start."""
    server = MemoryZooKeeperServer()
    monkeypatch.setattr("waltz_ray.coordination.zookeeper.KazooZooKeeper", lambda where: MemoryZooKeeper(server))
    monkeypatch.setattr("waltz_ray.finding.find.find_cluster", lambda *said: FoundCluster("c", "zoo"))
    config = ClusterConfig(
        "c",
        "/x",
        server=ServerConfig(tls_certificate="/c.pem", tls_key="/k.pem", tls_authority=authority),
        kv=KvConfig(tls_certificate=port_certificate, tls_key="/k.pem" if port_certificate else ""),
    )
    zookeeper = MemoryZooKeeper(server)
    store = ClusterStore(zookeeper, "c")
    store.initialize(1, [0], to_json(Settings(config, {})))
    for layer, count in actors.items():
        LayerStore(zookeeper, "c").raise_actors(layer, count)
    (tmp_path / "rights.json").write_text("{}")
    with pytest.raises(SystemExit) as ended:
        main(["access", "set", str(tmp_path / "rights.json")])
    assert (ended.value.code or 0) == (1 if why else 0)
    assert why in capsys.readouterr().err
    assert (store.access.rules() is None) == bool(why)
