"""PostgreSQL's frames, and the check that every answer is the expected one, cut at every byte."""

from __future__ import annotations

import pytest
from waltz_bench.compare import ONE, PIPELINED
from waltz_bench.compare_postgres import postgres_ratios
from waltz_bench.postgres_load import ConstantAnswers, bind_and_execute

from tests.bench.test_reports import row
from waltz_ray.errors import AppendFailed

ANSWER = b"2\0\0\0\x04C\0\0\0\x0fINSERT 0 1\0Z\0\0\0\x05I"


def test_answers_are_counted_wherever_the_stream_is_cut() -> None:
    whole = ANSWER * 3
    for cut in range(len(whole) + 1):
        answers = ConstantAnswers(ANSWER)
        assert answers.feed(whole[:cut]) + answers.feed(whole[cut:]) == 3, cut


def test_anything_else_is_an_error_wherever_it_is_cut() -> None:
    bad = ANSWER + b"E\0\0\0\x20SERROR\0C53100\0Mdisk full\0\0" + ANSWER
    for cut in range(len(bad) + 1):
        answers = ConstantAnswers(ANSWER)
        with pytest.raises(AppendFailed, match="PostgreSQL refused an insert"):
            sum(answers.feed(piece) for piece in (bad[:cut], bad[cut:]))


def test_frames() -> None:
    bind = b"B\0\0\0\x16" + b"\0" + b"i\0" + b"\0\x01\0\x01" + b"\0\x01" + b"\0\0\0\x03abc" + b"\0\0"
    assert bind_and_execute(b"abc") == bind + b"E\0\0\0\x09\0\0\0\0\0"


def test_ratios_have_no_gate() -> None:
    rows = [
        row(ONE, 100, p50_us=400.0),
        row(ONE, 100, "PostgreSQL", p50_us=800.0),
        row(PIPELINED, 300),
        row(PIPELINED, 100, "PostgreSQL"),
    ]
    found = postgres_ratios(rows)
    assert {name: (each["value"], each["gate_met"]) for name, each in found.items()} == {
        "1 outstanding, p50": (0.5, None),
        "pipelined single, rate": (3.0, None),
    }
