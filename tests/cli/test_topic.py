"""``waltz topic`` without a cluster."""

from __future__ import annotations

import io
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waltz_spark.offset_log import OffsetLog, StreamOf

from tests.cli.test_commands import run
from tests.kv.fake_cluster import FakeKvCluster
from waltz_ray.cli import topic
from waltz_ray.config import ClientConfig
from waltz_ray.errors import SpaceGone
from waltz_ray.kv import KvClient
from waltz_ray.topics.client.positions import positions
from waltz_ray.topics.offset_item import OffsetItem, encode_offset, offset_name


class NoTopics:
    """Takes all messages, whoever is asked for."""

    def __init__(self, *place: str) -> None:
        self.sent: list[bytes] = []
        self.asked: list[int] = []

    def __enter__(self) -> NoTopics:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def partitions(self, name: str) -> int:
        return 1

    def client(self, *who: object) -> Any:
        return nullcontext(self)

    def producer(self) -> Any:
        return nullcontext(self)

    def consumer(self, group: str, topics: object) -> Any:
        return nullcontext(self)

    def pull(self, most: int) -> Any:
        """Three messages at most; when there are no more, Ctrl-C."""
        self.asked.append(most)
        if not self.sent:
            raise KeyboardInterrupt
        taken, self.sent = self.sent[: min(most, 3)], self.sent[min(most, 3) :]
        return [SimpleNamespace(data=data) for data in taken]

    def confirm(self, batch: object) -> None:
        pass

    def send(self, name: str, data: bytes, *how: object, **more: object) -> Any:
        self.sent.append(data)
        return SimpleNamespace(partition=0, offset=len(self.sent))


@pytest.mark.parametrize("words", [["\udcff\udcfe", "ü", ""], []])
def test_messages_are_the_bytes_that_were_given(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A word's, or a line's; whether they are UTF-8 or not is nobody's business."""
    there = NoTopics()
    monkeypatch.setattr(topic, "_Topics", lambda *place: there)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"\xff\xfe\n\xc3\xbc\n\n")))
    assert run("topic", "produce", "orders", *words) == 0
    assert there.sent == [b"\xff\xfe", "ü".encode(), b""]


def test_a_line_that_never_ends_is_no_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there, most = NoTopics(), ClientConfig().max_frame_bytes
    monkeypatch.setattr(topic, "_Topics", lambda *place: there)
    endless = io.BytesIO(b"first\n" + bytes(most + 2))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=endless))
    assert run("topic", "produce", "orders") == 1
    assert (there.sent, endless.tell()) == ([b"first"], len(b"first\n") + most + 1)
    assert capsys.readouterr().err == (
        f"waltz: line too long: more than {most} bytes, as no message has; those before it are sent\n"
    )


@pytest.mark.parametrize(
    ("options", "asked", "printed", "code"),
    [
        ([], [1000] * 4, 7, 130),  # for ever: however many have been printed
        (["--limit", "5"], [5, 2], 5, 0),
        (["--limit", "1"], [1], 1, 0),
        (["--limit", "1001"], [1000, 998, 995, 994], 7, 130),
    ],
)
def test_as_many_messages_are_asked_for_as_are_wanted(
    options: list[str],
    asked: list[int],
    printed: int,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    there = NoTopics()
    there.sent = [b"%d" % number for number in range(7)]
    monkeypatch.setattr(topic, "_Topics", lambda *place: there)
    assert run("topic", "consume", "orders", "--group", "g", *options) == code
    assert there.asked == asked
    assert capfdbinary.readouterr().out.split() == [b"%d" % number for number in range(printed)]


class ATopic(NoTopics):
    """Topic "orders" has one partition with ten messages; "gone" was deleted. ``offsets``: of groups."""

    def __init__(self, items: KvClient) -> None:
        super().__init__()
        self.offsets = items
        self.found, self.zookeeper = SimpleNamespace(name="shop"), None

    def items(self) -> KvClient:
        return self.offsets

    def partitions(self, name: str) -> int:
        if name == "gone":
            raise SpaceGone("space 'gone' was deleted")
        return 1

    def log(self, name: str) -> Any:
        self.partitions(name)
        return SimpleNamespace(
            server_high_water_mark=lambda partition: 9,
            first_id_at=lambda partition, when: 0,
            read=lambda partition, first, end: [
                SimpleNamespace(transaction_id=each, data=b"\x01") for each in range(first, end)
            ],
        )


def test_lag_leaves_out_what_nobody_consumes_any_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Offsets stay when a topic is deleted; and members of bound groups could name partitions that there are not."""
    with FakeKvCluster(1) as cluster, KvClient(cluster.place()) as items:
        for topic_name, partition in (("gone", 0), ("orders", 0), ("orders", 7), ("orders", -1)):
            items.set(offset_name("g", topic_name, partition), encode_offset(OffsetItem(4, 1, 1, 0)))
        there = ATopic(items)
        monkeypatch.setattr(topic, "_Topics", lambda *place: there)
        assert run("topic", "lag", "--json") == 0
        (row,) = json.loads(capsys.readouterr().out)
        assert (row["group"], row["topic"], row["partition"], row["lag"]) == ("g", "orders", 0, 6)
        assert run("topic", "lag", "--topic", "gone") == 1, "which was asked for"
        assert "was deleted" in capsys.readouterr().err


def test_lag_has_every_stream_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints = [tmp_path / query / "checkpoint" for query in ("one", "other")]

    def begin(checkpoint: Path, read: int) -> None:
        OffsetLog(checkpoint, StreamOf("shop/orders", "a-key", 1, (0,)), lambda _: {0: read}).close()

    for read, each in enumerate(checkpoints, 4):
        begin(each, read)
    info = SimpleNamespace(cluster_key="a-key")
    monkeypatch.setattr(
        "waltz_ray.coordination.cluster_store.ClusterStore", lambda *_: SimpleNamespace(info=lambda: info)
    )
    with FakeKvCluster(1) as cluster, KvClient(cluster.place()) as items:
        there = ATopic(items)
        monkeypatch.setattr(topic, "_Topics", lambda *place: there)
        assert run("topic", "lag", "--json", *(f"--stream={each}" for each in checkpoints)) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["group"], row["offset"]) for row in rows] == [
        (f"stream {each}", read) for read, each in enumerate(checkpoints, 4)
    ]


@pytest.mark.parametrize("group", ["a\nb", "", " ", "a:b", "a b"])
def test_no_group_has_such_a_name(
    group: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a line's end in it the name of its offset could not be read again."""
    with FakeKvCluster(1) as cluster, KvClient(cluster.place()) as items:
        there = ATopic(items)
        monkeypatch.setattr(topic, "_Topics", lambda *place: there)
        assert run("topic", "reset", group, "orders", "--to", "earliest", "--yes") == 1
        assert "the group" in capsys.readouterr().err
        assert not positions(items)
