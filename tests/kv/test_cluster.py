"""The key/value layer as a whole: real processes on a real Ray, ZooKeeper, files; clients of the document and our own.

The tests build on each other, in order: a cluster costs many seconds to start. It grows in the first of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import resource
import shutil
import socketserver
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest
from waltz_bench.cluster import Waltz

from tests.kv.foreign_client import HEADER, ForeignClient, fnv, string
from tests.kv.real_cluster import RealCluster, check_claims, real_cluster, until
from tests.kv.recording import Recorder
from tests.projections.test_kv_state import damage
from waltz_ray import kv
from waltz_ray.actors.supervision import ask, kv_name
from waltz_ray.cli import main
from waltz_ray.config import KvConfig
from waltz_ray.errors import InvalidInput, KvLockTaken
from waltz_ray.kv.routing import Unit
from waltz_ray.protocol.ids import Endpoint

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

CONFIG = KvConfig(actors=1, fewest_buckets=12, fullwait_ms=6000, max_value_bytes=1 << 20, compact_bytes=2 << 20)


@pytest.fixture(scope="module")
def cluster(ray_head: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with real_cluster("kvreal", tmp_path_factory.mktemp("kvreal"), ray_head, CONFIG) as running:
        running.wait_served(1)
        yield running


def foreign(cluster: RealCluster, updates: bool = True, dialect: str = "doc") -> ForeignClient:
    return ForeignClient(min(cluster.servers().values()), dialect, updates, patience_s=40.0)


class OldClient(threading.Thread):
    """A client that never learns of a larger mask. It writes and reads its keys, over and over."""

    def __init__(self, cluster: RealCluster, keys: int, dialect: str) -> None:
        super().__init__(name="old client")
        self.client = foreign(cluster, updates=False, dialect=dialect)
        self.mask = self.client.mask
        self.names = [b"key %d" % n for n in range(keys)]
        self.wrong: list[str] = []
        self.values: dict[bytes, int] = {}
        self._ends = threading.Event()

    def run(self) -> None:
        value = 0
        try:
            while not self._ends.is_set() or len(self.values) < len(self.names):
                value += 1
                name = self.names[value % len(self.names)]
                if self.client.set_int(name, value).opcode != 1:
                    self.wrong.append(f"{name!r} was not set")
                self.values[name] = value
                name = self.names[value * 7919 % len(self.names)]
                self.see(name)
        except (OSError, AssertionError, ValueError) as error:
            self.wrong.append(f"{type(error).__name__}: {error}")

    def see(self, name: bytes) -> None:
        found = self.client.get_int(name)
        if found != self.values.get(name):
            self.wrong.append(f"{name!r} is {found}, not {self.values.get(name)}")

    def end(self) -> None:
        self._ends.set()
        self.join()


def split_under_load(cluster: RealCluster, keys: int, mask: int, dialect: str = "doc") -> None:
    """From one actor to three. No call waits for longer than five seconds."""
    old = OldClient(cluster, keys, dialect)
    old.start()
    added, longest_s = 0, 0.0
    with kv.connect(cluster.name, zookeeper=cluster.zookeeper) as native:
        try:
            native.add("counter")
            added += 1
            for actors in (2, 3):
                cluster.grow(actors)
                grown = threading.Thread(target=cluster.wait_served, args=(actors, 120.0))
                grown.start()
                while grown.is_alive():
                    added, begin_s = added + 1, time.monotonic()
                    assert native.add("counter") == added
                    longest_s = max(longest_s, time.monotonic() - begin_s)
                    table = cluster.table()
                    assert [unit.bucket for unit in sorted(table.places)] == list(range(table.level + 1)), "O04"
                    assert all(place.primary != place.secondary for place in table.places.values()), "O04"
                grown.join()
        finally:
            old.end()
    assert old.wrong == []
    assert longest_s < 5.0
    for name in old.names:
        old.see(name)
    assert old.wrong == []
    assert old.client.mask == old.mask < mask, "it has learned"
    assert len(old.client.table) == old.mask + 1
    old.client.close()
    assert cluster.table().level == mask
    assert check_claims(cluster.claims()) > mask


def test_o09_to_o14_masks_grow_under_a_client_that_does_not_know(cluster: RealCluster) -> None:
    """O04, O09, O10, O11, O13, O14 and O50: every answer is right, nothing is lost, one primary at a time."""
    split_under_load(cluster, 1_000, 0xFF)


def test_o49_everybody_has_a_share(cluster: RealCluster) -> None:
    """O04, O49: primaries within one, secondaries within one; on two actors each."""
    places = cluster.table().places.values()
    for role in ([place.primary for place in places], [place.secondary for place in places]):
        shares = Counter(role)
        assert set(shares) == {0, 1, 2}
        assert max(shares.values()) - min(shares.values()) <= 1


def test_o02_to_o16_a_new_client_knows_all_buckets(cluster: RealCluster) -> None:
    """O02, O05, O08, O16: from one address, and each key is found at once; a bucket is the hash under the mask."""
    with foreign(cluster) as client:
        for server in client.servers:
            client.connect(server)
        assert (client.mask, len(client.table)) == (0xFF, 256)
        assert client.table == cluster.owners()
        assert fnv(b"something") & 0xFF == 0x6B
        assert client.set_int(b"something", 45).opcode == 1
        assert (client.get_int(b"something"), client.get_type(b"something"), client.elsewhere) == (45, 2, 0)


def test_o06_a_secondary_sends_on_while_the_primary_lives(cluster: RealCluster) -> None:
    servers, name = cluster.servers(), b"something"
    with foreign(cluster) as client:
        client.set_int(name, 45)
        for actor, server in servers.items():
            reply = client.connect(server).ask(2100, struct.pack(">II", 0, fnv(name)))
            if actor == cluster.primary(name):
                assert reply.opcode == 2105
            else:
                assert (reply.opcode, reply.payload) == (4, string(servers[cluster.primary(name)].encode()))


def test_what_cannot_be_is_refused_and_everything_else_goes_on(cluster: RealCluster) -> None:
    """Names, values, types, hashes, times, masks: a failinfo each, and the connections stay."""

    def code(reply: tuple[int, int, int, bytes]) -> int:
        assert reply[0] == 3, reply
        return int(struct.unpack_from(">i", reply[3])[0])

    with foreign(cluster) as client, kv.connect(cluster.name, zookeeper=cluster.zookeeper) as native:
        assert client.set_string(b"costarring", b"x").opcode == 1
        used = {server: id(client.connect(server)) for server in client.servers}
        assert code(client.set_int(b"early", 1, expires=-1)) == 1
        assert code(client.set_string(b"n" * 481, b"")) == 18
        assert code(client.set_string(b"large", b"v" * ((1 << 20) + 1))) == 18
        assert code(client.set_string(b"liquid", b"y")) == 17
        with pytest.raises(ValueError, match="failinfo 5"):
            client.get_int(b"costarring")
        for server in client.servers:
            assert client.connect(server).ask(110, struct.pack(">II", 0x7F, 0)).opcode in (1, 3), "a mask nobody knows"
            assert client.connect(server).ask(7777).opcode == 9
        with pytest.raises(InvalidInput):
            native.set("n" * 481, 1)
        with pytest.raises(InvalidInput):
            native.set("large", b"v" * ((1 << 20) + 1))
        with pytest.raises(InvalidInput):
            native.set("early", 1, expires=-1)
        native.set("liquid", "keyed by its name")
        assert client.get_int(b"early") is None
        assert native.get("costarring") == b"x"
        assert used == {server: id(client.connect(server)) for server in client.servers}


def test_o43_fullwait_waits_for_one_that_can_have_it(cluster: RealCluster) -> None:
    """With the secondary stopped, 0 acknowledges; 1 does not until another one has it."""
    name = b"something"
    with foreign(cluster) as client:
        assert client.set_int(name, 1, fullwait=1).opcode == 1
        stopped = cluster.secondary(name)
        with cluster.stopped(f"kv/{stopped}"):
            begin_s = time.monotonic()
            assert client.set_int(name, 2).opcode == 1
            assert cluster.secondary(name) == stopped, "it waited for no other one"
            assert client.set_int(name, 3, fullwait=1).opcode == 1
            assert time.monotonic() - begin_s > 1.0, "nobody had it"
            assert cluster.secondary(name) != stopped
    cluster.wait_served(3)


def test_o07_o42_o47_o48_a_killed_primary(cluster: RealCluster) -> None:
    """What was acknowledged is there; what expires does so at its time; who had a lock has it, codes go on rising."""
    name = b"something"
    with foreign(cluster) as client, kv.connect(cluster.name, zookeeper=cluster.zookeeper) as native:
        begin_s = time.monotonic()
        assert client.set_int(name, 46, expires=5).opcode == 1
        set_s = time.monotonic()
        client.set_int(b"something else", 47)
        code, short = client.lock(name, 60, 0), client.lock(b"short", 1, 0)
        assert code is not None
        assert short is not None
        time.sleep(max(0.0, begin_s + 2 - time.monotonic()))
        victim = cluster.primary(name)
        cluster.kill(f"kv/{victim}")
        found = native.get(name, timeout=30)
        assert found == 46 or time.monotonic() > begin_s + 5, "unless another one was long in taking over"
        asked_s = time.monotonic()
        while native.get(name) == 46:
            assert asked_s < set_s + 6, "O42: it is over"
            asked_s = time.monotonic()
        assert time.monotonic() > begin_s + 4, "it is not its time yet"
        assert native.get(name) is None
        assert client.get_int(name) is None
        assert client.get_int(b"something else") == 47, "O48"
        assert client.lock(name, 60, 0) is None, "O47: it is had"
        later = client.lock(b"short", 60, 10)
        assert later is not None
        assert later > short, "a fencing token rises"
        assert not client.unlock(b"short", short), "a zombie frees nothing"
        assert client.unlock(b"short", later)
        assert client.unlock(name, code)
    cluster.wait_served(3)


class Fence:
    """What a lock guards: it refuses who comes with a lower code than the highest it has seen."""

    def __init__(self) -> None:
        self.highest, self.writes = 0, list[str]()

    def write(self, code: int, what: str) -> bool:
        if code < self.highest:
            return False
        self.highest = code
        self.writes.append(what)
        return True


def test_o47_a_zombie_is_fenced(cluster: RealCluster) -> None:
    """Its primary stops, its lease runs out meanwhile, another is given the lock by the successor."""
    fence = Fence()
    with kv.connect(cluster.name, zookeeper=cluster.zookeeper) as native, foreign(cluster) as zombie:
        code = zombie.lock(b"guard", 1, 0)
        assert code is not None
        assert fence.write(code, "zombie")
        with cluster.stopped(f"kv/{cluster.primary(b'guard')}"), native.lock("guard", wait=30) as lock:
            assert fence.write(lock.code, "successor")
            assert not fence.write(code, "zombie, late")
    cluster.wait_served(3)


async def kills(cluster: RealCluster, seed: int, rounds: list[str], keys: int = 4) -> int:
    """Clients record while something happens to somebody in every round; the number of calls."""
    random = Random(seed)
    cluster.grow(3)  # there are, unless this test is run alone
    await asyncio.to_thread(cluster.wait_served, 3, 100.0)
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(await kv.connect_async(cluster.name, zookeeper=cluster.zookeeper))
            for _ in range(3)
        ]
        recorder, ends = Recorder(clients, keys, 2, seed), asyncio.Event()
        running = asyncio.ensure_future(recorder.run(ends))
        try:
            for what in rounds:
                await asyncio.to_thread(one_round, cluster, what, seed, random)
        finally:
            ends.set()
            await asyncio.wait_for(running, 60)
        return await recorder.check()


def one_round(cluster: RealCluster, what: str, seed: int, random: Random) -> None:
    time.sleep(random.uniform(0.2, 0.6))
    if what.startswith("split"):
        cluster.split()
        time.sleep(random.uniform(0.0, 0.4))
        what = what.removeprefix("split, ")
    if what.startswith(("stop", "kill")):
        verb, whom = what.split()
        name = f"kv/{cluster.primary(b'key %d 0' % seed)}" if whom == "primary" else whom
        if verb == "kill":
            cluster.kill(name)
        else:
            with cluster.stopped(name):
                time.sleep(random.uniform(2.0, 4.0))
        cluster.wait_served(3, 100.0)
    else:
        assert what == "look"
        cluster.wait_served(3, 100.0)


def test_kills_leave_a_linearizable_history(cluster: RealCluster) -> None:
    """A primary stopped until its buckets have moved, then woken; a primary killed; a server of the log killed."""
    assert asyncio.run(kills(cluster, 1, ["stop primary", "kill primary", "kill server/0"])) > 100
    check_claims(cluster.claims())


def test_o50_the_manager_is_not_needed_to_find_things(cluster: RealCluster) -> None:
    """Killed, with clients that begin meanwhile."""
    cluster.kill("cluster-manager")
    with foreign(cluster) as client:
        assert client.set_int(b"without", 1).opcode == 1
        assert client.get_int(b"without") == 1
    cluster.wait_served(3)


def overwrite(cluster: RealCluster, keys: int, rounds: int) -> None:
    """The log, what replicas have of it on their disks, and projections stay within three times the live data, and what
    docs/opencluster.md says that there is besides; a projection that is lost is folded anew."""
    names = [f"over {n}" for n in range(keys)]
    with kv.connect(cluster.name, zookeeper=cluster.zookeeper) as native:
        for number in range(rounds):
            for first in range(0, keys, 500):
                native.set_many(dict.fromkeys(names[first : first + 500], b"%08d" % number * 128))
        live = keys * 1024
        until(lambda: cluster.log_bytes() <= 3 * live, "the log is compacted")
        besides = 16 * (256 << 10)
        until(lambda: cluster.replica_bytes() <= 3 * live + besides + CONFIG.compact_bytes, "replicas drop segments")
        for actor in range(3):
            kept = cluster.projection_bytes(actor)
            assert kept <= 3 * live + 16 * (384 << 10), f"kv/{actor} keeps {kept} bytes for {live}"
        shutil.rmtree(cluster.projection(0))  # its process has the files open, its successor has none
        cluster.kill("kv/0")
        cluster.wait_served(3, 100.0)
        last = b"%08d" % (rounds - 1) * 128
        assert native.get_many(names) == dict.fromkeys(names, last)
        assert native.count("over ") == keys


def test_overwritten_data_goes_and_a_lost_projection_comes_back(cluster: RealCluster) -> None:
    overwrite(cluster, 3000, 6)


def test_a_damaged_projection_is_folded_anew(cluster: RealCluster) -> None:
    """Random bytes over a third of the pages of each file, while nobody has it open."""
    names = [f"damaged {n}" for n in range(2000)]
    with kv.connect(cluster.name, zookeeper=cluster.zookeeper) as native:
        native.set_many(dict.fromkeys(names, b"value" * 20))
        files = sorted(cluster.projection(0).rglob("*.lmdb"))
        assert len(files) == 16
        for seed, path in enumerate(files):
            damage(path, seed)  # its process has the one before open, its successor has this
        cluster.kill("kv/0")
        cluster.wait_served(3, 100.0)
        native.set_many(dict.fromkeys(names, b"new" * 20))  # comes upon the damage, if the start has not
        until(lambda: not cluster.trouble(0), "what was damaged is folded anew")
        cluster.wait_served(3, 100.0)
        assert native.get_many(names) == dict.fromkeys(names, b"new" * 20)
        assert native.count("damaged ") == len(names)


def test_an_actor_whose_disk_is_full_says_so_and_others_serve(cluster: RealCluster) -> None:
    """Its files cannot grow; it serves again soon after they can."""
    names = [f"full {n}" for n in range(500)]
    with kv.connect(cluster.name, zookeeper=cluster.zookeeper) as native:
        native.set_many(dict.fromkeys(names, b"small"))
        pid = cluster.pid("kv/0")
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, before[1]))
        native.set_many(dict.fromkeys(names, b"large" * 1000))
        said = re.compile("cannot be (written|opened): .*disk")  # not of damage, from the test before
        until(lambda: said.search(cluster.trouble(0)), "it says what is wrong")
        until(lambda: set(cluster.servers()) == {1, 2}, "it has left")
        native.set_many(dict.fromkeys(names, b"again" * 1000))
        assert native.get_many(names) == dict.fromkeys(names, b"again" * 1000)
        assert cluster.trouble(0)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
        cluster.wait_served(3, 100.0)
        until(lambda: not cluster.trouble(0), "it has what it should")
        assert cluster.pid("kv/0") == pid
        assert native.get_many(names) == dict.fromkeys(names, b"again" * 1000)


@pytest.mark.long
def test_it_is_measured(
    cluster: RealCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``waltz bench kv``, from the command line to what it prints; on this cluster, not on one that it starts.

    A window must be long enough for one call of each kind, also on a busy machine."""

    @contextlib.contextmanager
    def this(*_: object, **wanted: object) -> Iterator[Waltz]:
        assert wanted == {"kv": 2}
        yield Waltz(cluster.name, str(cluster.directory), cluster.zookeeper, 1)

    monkeypatch.setattr("waltz_bench.kv.waltz_cluster", this)
    monkeypatch.setattr("waltz_bench.kv.CLIENTS", 4)  # each finds the cluster by itself
    with pytest.raises(SystemExit) as leaving:
        main(["bench", "kv", "--runs", "1", "--seconds", "0.5", "--json"])
    said = capsys.readouterr()
    assert leaving.value.code == 0, said.err
    found = json.loads(said.out)
    assert found["benchmark"] == "kv"
    measured = {(row["system"], row["case"]): row for row in found["rows"]}
    cases = {"set, 1 outstanding", "set, 64 clients with 1 each", "get, 1 outstanding", "get, pipelined"}
    cases |= {"set_many(100)", "the log's append, 1 outstanding"}
    assert measured.keys() == {("waltz_ray", case) for case in cases}
    assert {case for (_, case), row in measured.items() if row["rate"] <= 0 or row["p50_us"] <= 0} == set()
    assert "kv-0" in measured["waltz_ray", "get, pipelined"]["cpu_share"]
    assert {"set by the log's append, p50", "get, p50 by 0.3 ms"} < found["ratios"].keys()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_10_000_keys_overwritten_20_times(cluster: RealCluster) -> None:
    cluster.grow(3)
    cluster.wait_served(3, 120.0)
    overwrite(cluster, 10_000, 20)


ROUNDS = ["stop primary", "kill primary", "stop kv/0", "kill server/1", "kill replica/0", "stop server/0", "kill kv/1"]


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(10, 15))
def test_many_kills(cluster: RealCluster, seed: int) -> None:
    """The same for longer: everybody, in an order of its own. The shared cluster has grown by now."""
    cluster.grow(3)
    cluster.wait_served(3, 120.0)
    random = Random(seed)
    rounds = [*ROUNDS, *["stop primary"] * 4, "kill replica/1", "kill cluster-manager"]
    random.shuffle(rounds)
    assert asyncio.run(kills(cluster, seed, rounds)) > 1000
    check_claims(cluster.claims())


def test_o17_the_largest_mask_under_clients(cluster: RealCluster) -> None:
    """0xFF to 0xFFF, while clients record."""
    cluster.split()
    assert asyncio.run(kills(cluster, 2, ["look"])) > 10
    assert cluster.table().level == 0xFFF
    with foreign(cluster) as client:
        wait_told(cluster, client)
        assert client.mask == 0xFFF
    check_claims(cluster.claims())


def wait_told(cluster: RealCluster, client: ForeignClient) -> None:
    """Each server tells its own buckets when a client connects, and what it comes to have or gives up later: a bucket
    on its way between two of them is in the words of neither, until its new owner tells it."""
    for server in [*client.servers]:
        client.connect(server)

    def knows_all() -> bool:
        for server in client.open.values():
            server.drain()
        return client.table == cluster.owners()

    until(knows_all, "each bucket was told, one by one", 10.0)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("verbs", [("kill", "stop"), ("stop", "kill")])
def test_kills_inside_splits(ray_head: str, tmp_path_factory: pytest.TempPathFactory, verbs: tuple[str, str]) -> None:
    """A primary is killed, or stopped until its buckets have moved and woken, while 0xF becomes 0xFF, then 0xFFF."""
    with real_cluster("kvsplit", tmp_path_factory.mktemp("kvsplit"), ray_head, KvConfig(actors=3)) as running:
        running.wait_served(3)
        for seed, verb in enumerate(verbs):
            assert asyncio.run(kills(running, seed, [f"split, {verb} primary", "look"])) > 20
        assert running.table().level == 0xFFF
        assert check_claims(running.claims()) > 0xFFF


@pytest.fixture(scope="module")
def wide(ray_head: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """It speaks as servers of 2012 did, and its masks grow with each actor."""
    config = KvConfig(actors=1, fewest_buckets=200, dialect="2012")
    with real_cluster("kvwide", tmp_path_factory.mktemp("kvwide"), ray_head, config) as running:
        running.wait_served(1)
        yield running


@pytest.mark.long
@pytest.mark.timeout(900)
def test_10_000_keys_while_the_largest_mask_comes(wide: RealCluster) -> None:
    """O15, O17 in the dialect 2012: one actor has 0xFF from the start, the third one leads to 0xFFF. Then a client that
    knows 0xFF only finds what a killed primary had at the secondary of the larger mask."""
    with foreign(wide, updates=False, dialect="2012") as old:
        split_under_load(wide, 10_000, 0xFFF, "2012")
        assert old.set_int(b"something", 45).opcode == 1
        successor = wide.secondary(b"something")
        wide.kill(f"kv/{wide.primary(b'something')}")
        assert old.get_int(b"something") == 45
        assert wide.primary(b"something") == successor
        assert old.mask == 0xFF
    wide.wait_served(3, 100.0)


@pytest.mark.long
def test_a_client_of_2012_and_all_that_it_says(wide: RealCluster) -> None:
    """O24, O35 to O47, D16: whatever the mask has become; a native client sees the same."""
    name = b"something else"
    with foreign(wide, dialect="2012") as client, kv.connect(wide.name, zookeeper=wide.zookeeper) as native:
        wait_told(wide, client)
        assert client.mask == wide.table().level
        assert client.set_int(name, -7).opcode == 1
        assert (client.get_int(name), client.get_type(name), native.get(name)) == (-7, 2, -7)
        assert client.set_long(name, 1 << 40, map_hash=3).opcode == 1
        assert (client.get_long(name, map_hash=3), client.get_int(name)) == (1 << 40, -7)
        assert client.set_string(name, b"a\0b", fullwait=1).opcode == 1
        assert (client.get_string(name), native.get(name)) == (b"a\0b", b"a\0b")
        code = client.lock(name, 30, 0)
        assert code is not None
        with pytest.raises(KvLockTaken):
            native.lock(name, wait=0).acquire()
        assert client.unlock(name, code)
        assert client.set_int(name, 1, expires=1).opcode == 1
        until(lambda: client.get_int(name) is None, "it has expired", 5.0)
        native.set_many({f"many {n}": n for n in range(500)})
        assert native.count("many ") == 500
        assert all(client.get_long(b"many %d" % n) == n for n in range(0, 500, 50))
        assert client.elsewhere == 0


class Member(socketserver.ThreadingTCPServer):
    """Somebody who is registered as an actor, acks whatever he is told and remembers it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), MemberConnection)
        self.told: list[tuple[int, bytes]] = []


class MemberConnection(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, Member)
        while len(header := self.rfile.read(12)) == 12:
            opcode, replied_to, message_id, size = HEADER.unpack(header)
            payload = self.rfile.read(size)
            if not replied_to:
                self.server.told.append((opcode, payload))
                self.wfile.write(HEADER.pack(1, opcode, message_id, 0))


@pytest.mark.long
def test_what_real_actors_tell_another_member(wide: RealCluster) -> None:
    """O26, O32: who asks for a second copy says who he is, and tells it when he shuts down."""
    wide.grow(3)
    with foreign(wide, dialect="2012") as client, Member() as member:  # he could be sent to the member otherwise
        threading.Thread(target=member.serve_forever, daemon=True).start()
        endpoint = Endpoint("127.0.0.1", member.server_address[1])
        registration = wide.units.register(3, endpoint, lambda event: None, time.monotonic)
        try:
            until(lambda: 3 in {place.secondary for place in wide.table().places.values()}, "the member is a secondary")
            table = wide.table()
            names = [b"copied %d" % n for n in range(100)]
            found = {name: table.places[Unit(table.level, fnv(name) & table.level)] for name in names}
            name, place = next((name, place) for name, place in found.items() if place.secondary == 3)
            assert client.set_int(name, 1, fullwait=1).opcode == 1
            assert place.primary is not None
            assert (130, string(wide.servers()[place.primary].encode())) in member.told
            assert {500, 130} <= {opcode for opcode, _ in member.told}
            ask(wide.name, kv_name(place.primary), "shutdown", 30.0)
            assert (15, b"") in member.told
        finally:
            registration.cancel()
            member.shutdown()
