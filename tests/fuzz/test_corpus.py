"""What fuzzing has found before, again; and a little of it anew: ``make fuzz`` does it for as long as you like."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.fuzz.mutation import mutations
from tests.fuzz.target import Found, FuzzTarget
from tests.fuzz.targets import CORPUS, TARGETS, kept
from waltz_ray.errors import WireError

ANEW = 150
"""Of each target; those that open a whole replica take a millisecond each."""


@pytest.mark.parametrize("name", TARGETS)
def test_samples_are_taken(name: str) -> None:
    samples = list(TARGETS[name].samples())
    assert sum(map(TARGETS[name].feed, samples)) > 0, "a target whose samples are all refused is not reached"


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_and_some_mutations_are_taken_or_refused(name: str) -> None:
    target = TARGETS[name]
    corpus = kept(name)
    for data in corpus:
        target.feed(data)
    seen = [target.feed(data) for data in islice(mutations([*target.samples(), *corpus], seed=19), ANEW)]
    assert len(seen) == ANEW


EXTREMES = [
    *(b"[" * 20_000, b'{"a":' * 20_000, b'{"version": 1, "x": ' + b"[" * 20_000, b"{" * 20_000, b"- " * 10_000),
    *(b"9" * 5000, b"1e999999", b'{"version": 1, "current": ' + b"9" * 5000 + b"}", b"\xff" * 4096, bytes(4096)),
]


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_very_deep_or_very_long_is_taken_or_refused(name: str) -> None:
    for data in EXTREMES:
        for begin in (b"", b"\x07"):  # of those whose first byte says what the rest is
            TARGETS[name].feed(begin + data)


def test_every_corpus_has_its_target_and_is_small() -> None:
    assert {path.name for path in CORPUS.iterdir() if path.is_dir()} <= set(TARGETS)
    sizes = [path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()]
    assert sum(sizes) < 500_000
    assert max(sizes, default=0) <= 4096


def test_a_wrong_exception_is_found() -> None:
    def read(data: bytes) -> None:
        if data[:1] == b"\xff":
            raise KeyError("x")
        if data:
            raise WireError("no")

    target = FuzzTarget("x", read, (WireError,), lambda: [b""])
    assert (target.feed(b""), target.feed(b"a")) == (True, False)
    with pytest.raises(Found, match=r"x: KeyError \('x'\) for ff00"):
        target.feed(b"\xff\x00")


def test_mutations_are_the_same_for_the_same_seed() -> None:
    first, again, other = (list(islice(mutations([b"abc", b""], seed), 500)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert len(set(first)) > 300
