"""The fold of a kv partition: from the first transaction, and from any whole snapshot on."""

from __future__ import annotations

import pytest

from tests.kv.walk import check_walk


@pytest.mark.parametrize("seed", range(60))
def test_a_walk(seed: int) -> None:
    check_walk(seed, 300)


def test_walks_have_everything() -> None:
    walks = [check_walk(seed, 300) for seed in range(5)]
    assert sum(len(walk.ended) for walk in walks) > 5
    assert all(walk.plain.items and walk.plain.owners for walk in walks)
    assert any(walk.plain.locks for walk in walks)
    assert any(walk.plain.requests for walk in walks)
