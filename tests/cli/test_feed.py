from __future__ import annotations

import io
import json
from datetime import datetime

import pytest

from waltz_ray.cli.feed import as_line, as_object, data_text, print_feed
from waltz_ray.client.application import Transaction
from waltz_ray.protocol.ids import ReqId


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
