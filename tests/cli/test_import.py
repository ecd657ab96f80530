"""``waltz import``: what carries over, what is refused; neither a kill nor a second import doubles anything."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.storage.originals import Record, write_original
from waltz_ray.cli import import_run
from waltz_ray.cli.import_run import ImportPartition, import_directory
from waltz_ray.cli.load_progress import LoadProgress
from waltz_ray.client.client import WaltzClient
from waltz_ray.errors import AppendFailed, Corruption, InvalidInput, PartitionNotReady
from waltz_ray.storage import original
from waltz_ray.storage.disk import OsDisk
from waltz_ray.storage.original import OriginalDirectory, open_original
from waltz_ray.testing import InMemoryCluster

RECORDS: list[Record] = [(n - 20, b"%d;" % n * (n % 5)) for n in range(50)]
PARTITIONS = [RECORDS, [], RECORDS[::-1]]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return write_original(tmp_path / "old", PARTITIONS, [(3, 40, 40), (3, -1, -1), (3, 49, 49)])


@pytest.fixture
def opened(old: Path) -> Iterator[OriginalDirectory]:
    with open_original(OsDisk(), str(old)) as found:
        yield found


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster(partitions=1, servers=2) as cluster:
        cluster.create_space("old", 3)
        yield cluster


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(original, "_MOST_RECORDS", 6)
    monkeypatch.setattr(original, "_MOST_BYTES", 250)


def imported(opened: OriginalDirectory, client: WaltzClient) -> tuple[int, int]:
    """(appended, there before)."""
    work = import_directory(opened, client, "old", LoadProgress(True))
    return work.appended, work.before


def in_the_space(client: WaltzClient) -> list[list[Record]]:
    return [[(one.header, one.data) for one in client.feed(p)] for p in range(client.partitions)]


def files_of(directory: Path) -> dict[str, tuple[bytes, int]]:
    found = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in found}


def test_header_data_order_and_ids_carry_over_and_the_directory_stays_as_it_is(
    cluster: InMemoryCluster, old: Path
) -> None:
    before = files_of(old)
    with cluster.connect(space="old") as client:
        with open_original(OsDisk(), str(old)) as opened:
            assert imported(opened, client) == (100, 0)
            assert imported(opened, client) == (0, 100)
        assert in_the_space(client) == PARTITIONS
        client.append(0, b"whoever uses it now").result(10)
        with open_original(OsDisk(), str(old)) as opened:
            assert imported(opened, client) == (0, 100)
    assert files_of(old) == before


@pytest.mark.parametrize("seed", range(12))
def test_killed_anywhere_and_begun_again_each_transaction_is_there_once(
    cluster: InMemoryCluster, opened: OriginalDirectory, seed: int
) -> None:
    """What a killed import has sent arrives at any time, the next one's comparison and appends in between."""
    choose = random.Random(seed)
    with cluster.connect(space="old") as client:
        for p in (0, 2):
            dead = [ImportPartition(opened, client, p, "old") for _ in range(3)]
            sent: list[Future[Any]] = []
            for one in dead:
                one.compare()
                for _ in range(choose.randrange(4)):
                    batch = one.next_batch().slice(0, choose.randrange(1, 7))
                    fate = one.append(batch)
                    if choose.random() < 0.5:
                        one.settle(batch, fate)
                    else:
                        sent.append(fate)
                        break
            if choose.random() < 0.5:
                cluster.kill_server(1 + choose.randrange(2))
        appended, before = imported(opened, client)
        assert appended + before <= 100
        assert in_the_space(client) == PARTITIONS
        assert all(fate.done() for fate in sent)


def test_two_imports_at_once_while_servers_are_killed(cluster: InMemoryCluster, old: Path) -> None:
    counts: list[int] = []

    def run() -> None:
        with open_original(OsDisk(), str(old)) as opened, cluster.connect(space="old") as client:
            work = import_directory(opened, client, "old", LoadProgress(True))
            counts.append(work.appended)

    # Signals are the main thread's: the others need no Ctrl-C.
    threads = [threading.Thread(target=run) for _ in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_run, "ctrl_c_between_steps", _NoCtrlC)
        for thread in threads:
            thread.start()
        for _ in range(3):
            cluster.kill_server(1)
            cluster.kill_server(2)
        for thread in threads:
            thread.join(60)
    assert len(counts) == 2
    assert sum(counts) <= 100
    with cluster.connect(space="old") as client:
        assert in_the_space(client) == PARTITIONS


class _NoCtrlC:
    def __enter__(self) -> Callable[[], None]:
        return lambda: None

    def __exit__(self, *error: object) -> None:
        pass


def test_a_space_with_something_else_in_it_is_refused(cluster: InMemoryCluster, opened: OriginalDirectory) -> None:
    with cluster.connect(space="old") as client:
        client.append(2, RECORDS[-1][1], RECORDS[-1][0]).result(10)
        client.append(2, RECORDS[-2][1], 0).result(10)
        other = r"partition 2 of space 'old' has another transaction 1 than .*/old; a directory is imported into"
        with pytest.raises(InvalidInput, match=other):
            imported(opened, client)
        assert [client.server_high_water_mark(p) for p in range(3)] == [-1, -1, 1], "nothing was appended"


def test_somebody_who_appends_meanwhile_is_noticed(cluster: InMemoryCluster, opened: OriginalDirectory) -> None:
    with cluster.connect(space="old") as client:
        one = ImportPartition(opened, client, 0, "old")
        one.compare()
        client.append(0, b"x").result(10)
        batch = one.next_batch()
        other = r"partition 0 of space 'old' has another transaction 0 than"
        with pytest.raises(InvalidInput, match=other):
            one.settle(batch, one.append(batch))
        one = ImportPartition(opened, client, 2, "old")
        client.append(2, b"x").result(10)
        batch = one.next_batch().slice(0, 1)
        with pytest.raises(InvalidInput, match=r"somebody else has appended to it: transaction 0 of .* has become 1"):
            one.settle(batch, one.append(batch))


def test_what_was_trimmed_away_cannot_be_gone_on_with(
    cluster: InMemoryCluster, opened: OriginalDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster.connect(space="old") as client:
        first = ImportPartition(opened, client, 0, "old")
        batch = first.next_batch()
        first.settle(batch, first.append(batch))
        read = client.read
        monkeypatch.setattr(client, "read", lambda p, first_id, end_id: read(p, max(3, first_id), end_id))
        gone = r"partition 0 of space 'old': .* transaction 0 was trimmed away; the first that can be read is 3"
        with pytest.raises(InvalidInput, match=gone):
            imported(opened, client)


def test_ctrl_c_and_errors_say_how_far_it_came(
    cluster: InMemoryCluster,
    opened: OriginalDirectory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    append, calls = ImportPartition.append, iter(range(1000))

    def then_interrupted(self: ImportPartition, batch: Any) -> Future[Any]:
        if next(calls) == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return append(self, batch)

    monkeypatch.setattr(ImportPartition, "append", then_interrupted)
    with cluster.connect(space="old") as client:
        with pytest.raises(KeyboardInterrupt):
            imported(opened, client)
        told = capsys.readouterr().err
        done = sum(map(len, in_the_space(client)))
        assert 0 < done < 100
        assert told == f"waltz: interrupted: {done} of 100 transactions are in the space; the same command goes on\n"

        def refused(self: ImportPartition, batch: Any) -> Future[Any]:
            fate: Future[Any] = Future()
            fate.set_exception(PartitionNotReady("no space left"))
            return fate

        monkeypatch.setattr(ImportPartition, "append", refused)
        with pytest.raises(AppendFailed, match=f"no space left; {done} of 100 transactions are in the space; the same"):
            imported(opened, client)
        monkeypatch.setattr(ImportPartition, "append", append)
        assert imported(opened, client) == (100 - done, done)
        assert in_the_space(client) == PARTITIONS


def refusal(directory: Path, kind: type[Exception]) -> str:
    with pytest.raises(kind) as told, open_original(OsDisk(), str(directory)):
        pass
    return str(told.value)


def test_what_is_damaged_is_refused_with_file_offset_and_reason(old: Path, tmp_path: Path) -> None:
    victim = old / "2" / "0000000000000000014.seg"
    content = victim.read_bytes()
    victim.write_bytes(content[:140] + b"\xff" + content[141:])
    assert refusal(old, Corruption) == f"{victim}: damaged at byte 128: record 14 has a wrong checksum"
    victim.write_bytes(content)
    (old / "2" / "0000000000000000021.seg").unlink()
    assert "0000000000000000028.seg: damaged at byte 32: begins with record 28" in refusal(old, Corruption)
    behind = write_original(tmp_path / "behind", [RECORDS[:9]], [(2, 9, 8)])
    assert "the log ends with 8, and its control file says that 9 was committed: take" in refusal(behind, Corruption)
    assert "is not a directory" in refusal(tmp_path / "nowhere", InvalidInput)


def test_what_changes_after_it_was_verified_is_not_imported(cluster: InMemoryCluster, old: Path) -> None:
    with open_original(OsDisk(), str(old)) as opened, cluster.connect(space="old") as client:
        (old / "0" / "0000000000000000007.seg").write_bytes(b"")
        with pytest.raises(
            Corruption, match=r"0000007\.seg: damaged at byte 128: it has changed since it was verified"
        ):
            imported(opened, client)
