"""The acknowledgement counter, cut at every byte; the frames, byte by byte."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waltz_bench.nats_wire import AckCounter, atomic_batch, publish, subscribe

from waltz_ray.errors import AppendFailed, WireError


def ack(number: int, batch: str = "") -> bytes:
    more = f',"batch":"{batch}","count":100' if batch else ""
    payload = f'{{"stream":"BENCH","seq":{number}{more}}}'.encode()
    return b"MSG _R.0 1 %d\r\n%s\r\n" % (len(payload), payload)


STREAM = (
    b'INFO {"server_id":"X","cluster":"bench"} \r\n' + ack(1) + b"PING\r\n" + ack(22) + ack(333, "_R.0-3") + b"PING\r\n"
)
ERROR = b'{"error":{"code":503,"err_code":10077,"description":"no space"},"stream":"BENCH","seq":0}'


def count(pieces: list[bytes]) -> tuple[int, int]:
    counter = AckCounter()
    return sum(counter.feed(piece) for piece in pieces), counter.pings


def test_acks_are_counted_wherever_the_stream_is_cut() -> None:
    for cut in range(len(STREAM) + 1):
        assert count([STREAM[:cut], STREAM[cut:]]) == (3, 2), cut


def test_acks_are_counted_byte_by_byte() -> None:
    assert count([STREAM[i : i + 1] for i in range(len(STREAM))]) == (3, 2)


@given(st.lists(st.integers(0, len(STREAM) * 3), max_size=8))
def test_acks_are_counted_in_any_pieces(cuts: list[int]) -> None:
    whole = STREAM * 3
    bounds = [0, *sorted(cuts), len(whole)]
    assert count([whole[a:b] for a, b in pairwise(bounds)]) == (9, 6)


def test_an_ack_counts_only_when_it_is_complete() -> None:
    counter = AckCounter()
    assert counter.feed(ack(7)[:-1]) == 0
    assert counter.feed(b"\n") == 1


def test_an_error_is_never_counted_wherever_it_is_cut() -> None:
    bad = b"MSG _R.0 1 %d\r\n%s\r\n" % (len(ERROR), ERROR)
    for cut in range(len(bad) + 1):
        counter = AckCounter()
        with pytest.raises(AppendFailed, match="no space"):
            sum(counter.feed(piece) for piece in (ack(1) + bad[:cut], bad[cut:]))


@pytest.mark.parametrize(
    "bad",
    [
        b"-ERR 'Authorization Violation'\r\n",
        b"HMSG _R.0 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n",
        b"HMSG _R.0 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n" + ack(1),
        b'MSG _R.0 1 12\r\n{"what":"no"}\r\n',
    ],
)
def test_what_is_no_ack_is_an_error(bad: bytes) -> None:
    with pytest.raises(AppendFailed, match="NATS"):
        AckCounter().feed(bad)


def test_bytes_that_never_end_are_an_error() -> None:
    counter = AckCounter()
    with pytest.raises(WireError, match="no acknowledgement"):
        sum(counter.feed(b"MSG " + b"x" * 1000) for _ in range(100))


def test_frames() -> None:
    assert subscribe("_R.0") == b"SUB _R.0 1\r\n"
    assert publish("bench", "_R.0", b"abc") == b"PUB bench _R.0 3\r\nabc\r\n"


def test_an_atomic_batch_asks_for_one_ack_at_its_end() -> None:
    first = b"NATS/1.0\r\nNats-Batch-Id: b\r\nNats-Batch-Sequence: 1\r\n\r\n"
    last = b"NATS/1.0\r\nNats-Batch-Id: b\r\nNats-Batch-Sequence: 2\r\nNats-Batch-Commit: 1\r\n\r\n"
    assert atomic_batch("bench", "_R.0", "b", [b"xy", b"z"]) == (
        b"HPUB bench %d %d\r\n" % (len(first), len(first) + 2)
        + first
        + b"xy\r\n"
        + b"HPUB bench _R.0 %d %d\r\n" % (len(last), len(last) + 1)
        + last
        + b"z\r\n"
    )
