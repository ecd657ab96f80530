from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import datetime

import pytest

from tests.cli.test_commands import run
from waltz_ray.cli.feed import as_line, as_object, data_text, parsed_partitions, print_data_alone, print_feed
from waltz_ray.client import WaltzClient
from waltz_ray.client.application import Transaction
from waltz_ray.errors import InvalidInput
from waltz_ray.protocol.ids import ReqId
from waltz_ray.testing import InMemoryCluster


class Source:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def req_id(self, index: int) -> ReqId:
        return ReqId(12, 3, 1, 45)

    def data(self, index: int) -> bytes:
        return self._data

    def appended_at(self, index: int) -> datetime | None:
        return None


def transaction(data: bytes, transaction_id: int = 7, header: int = -2) -> Transaction:
    return Transaction(1, transaction_id, header, Source(data), 0)


def test_json_text_and_binary() -> None:
    common = {
        "transaction_id": 7,
        "partition_id": 1,
        "client_id": 12,
        "generation": 3,
        "sequence_number": 45,
        "header": -2,
    }
    assert as_object(transaction("aü\n".encode())) == common | {"data": "aü\n"}
    assert as_object(transaction(b"\xff\x00")) == common | {"data_base64": "/wA="}
    assert as_object(transaction(b"")) == common | {"data": ""}


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"plain", "plain"),
        ("ü✓".encode(), "ü✓"),
        (b"\xff\x00", "0xff00"),
        (b"a\nb\x1b[31m", "a\\nb\\x1b[31m"),
        (b"", ""),
    ],
)
def test_text_cannot_upset_a_terminal(data: bytes, text: str) -> None:
    assert data_text(data) == text


def test_lines_are_shortened_to_the_width() -> None:
    whole = as_line(transaction(b"x" * 500), None)
    assert whole.endswith("x" * 500)
    assert "7  client 12" in whole
    assert "header -2" in whole
    short = as_line(transaction(b"x" * 500), 80)
    assert len(short) == 80
    assert short.endswith("…")
    assert as_line(transaction(b"x"), 80) == as_line(transaction(b"x"), None)


def test_one_json_object_per_line() -> None:
    out = io.StringIO()
    print_feed([transaction(b"a\nb", 0), transaction(b"c", 1)], out, True, None)
    assert [json.loads(line)["transaction_id"] for line in out.getvalue().splitlines()] == [0, 1]


def test_closed_pipe_is_not_swallowed_here() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        print_feed([transaction(b"a")], Closed(), False, 80)


def test_the_data_alone_byte_for_byte() -> None:
    for behind, told in ((b"\n", b"a\nb\n\xff\n"), (b"\0", b"a\nb\0\xff\0"), (b"", b"a\nb\xff")):
        out = io.BytesIO()
        print_data_alone([transaction(b"a\nb"), transaction(b"\xff")], out, behind)
        assert out.getvalue() == told


@pytest.mark.parametrize(
    ("texts", "partitions"),
    [(["2"], [2]), (["1,0"], [0, 1]), (["3", "0, 3"], [0, 3]), (["all"], None), (["all,"], InvalidInput)]
    + [([text], InvalidInput) for text in ("", "-1", "1-3", "0,all", "²")],
)
def test_which_partitions(texts: list[str], partitions: list[int] | type[InvalidInput] | None) -> None:
    if partitions is InvalidInput:
        with pytest.raises(InvalidInput, match="--partition"):
            parsed_partitions(texts)
    else:
        assert parsed_partitions(texts) == partitions


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[WaltzClient]:
    with InMemoryCluster(partitions=3) as cluster, cluster.connect() as client:
        monkeypatch.setattr("waltz_ray.cli.feed.open_client", lambda *where, space: cluster.connect(space=space))
        for partition in range(3):
            client.append_many(partition, [b"%d-%d" % (partition, number) for number in range(2)]).result(10)
        yield client


def test_several_partitions_one_after_the_other(
    client: WaltzClient, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    for arguments, lines in (
        (["-p", "0,2"], ["0-0", "0-1", "2-0", "2-1"]),
        (["-p", "1"], ["1-0", "1-1"]),
        (["--limit", "3"], ["0-0", "0-1", "1-0"]),
    ):
        assert run("feed", "--format", "lines", *arguments) == 0
        assert capsysbinary.readouterr().out.decode().splitlines() == lines
    assert run("feed", "-p", "all", "--format", "null") == 0
    assert capsysbinary.readouterr().out.count(b"\0") == 6
    assert run("feed", "-p", "0,1") == 0
    names = [line.split()[0] for line in capsysbinary.readouterr().out.decode().splitlines()]
    assert names == ["0/0", "0/1", "1/0", "1/1"]
    assert run("feed", "-p", "1") == 0
    assert capsysbinary.readouterr().out.split()[0] == b"0"
    for form in (["--json"], ["--format", "json"]):
        assert run("feed", "-p", "1,2", *form) == 0
        found = [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]
        assert [(each["partition_id"], each["transaction_id"]) for each in found] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert run("feed", "--json", "--format", "raw") == 1
    assert run("feed", "-p", "3") == 1
    assert b"there is no partition 3" in capsysbinary.readouterr().err


def test_several_are_followed_as_they_come(client: WaltzClient, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run("feed", "--follow", "--limit", "6", "--format", "lines") == 0
    found = capsysbinary.readouterr().out.decode().splitlines()
    assert sorted(found) == [f"{partition}-{number}" for partition in range(3) for number in range(2)]
