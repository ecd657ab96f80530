"""What all peers of a port together have not taken is bounded, and who reads is sent what he asks for."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from waltz_ray.net.untaken import Untaken


@dataclass
class Peer:
    unsent_bytes: int = 0


def send(shared: Untaken, peer: Peer, size: int) -> bool:
    allowed = shared.allows(size, peer.unsent_bytes)
    peer.unsent_bytes += size * allowed
    return allowed


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Its time, the first of it."""
    now = [100.0]
    monkeypatch.setattr("waltz_ray.net.untaken.time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.mark.parametrize("count", [1, 7, 1000])
def test_however_many_take_nothing_it_is_not_much_more_than_once_and_a_share_of_it(count: int) -> None:
    peers = [Peer() for _ in range(count)]
    shared = Untaken(1_000_000, lambda: peers)
    for _ in range(1000):
        for peer in peers:
            send(shared, peer, 2000)
    assert 900_000 < sum(peer.unsent_bytes for peer in peers) <= 2_000_000 + 1000 * count


def test_who_reads_is_sent_everything_beside_those_who_do_not(clock: list[float]) -> None:
    peers = [Peer() for _ in range(10)]
    shared = Untaken(1_000_000, lambda: peers)
    reader, others = peers[0], peers[1:]
    for turn in range(1000):
        clock[0] = 100 + turn / 1000
        assert send(shared, reader, 50_000)
        reader.unsent_bytes = 0
        for other in others:
            send(shared, other, 50_000)
    assert sum(other.unsent_bytes for other in others) <= 1_450_000


def test_what_was_taken_is_free_again(clock: list[float]) -> None:
    peers = [Peer(), Peer()]
    shared = Untaken(1_000_000, lambda: peers)
    for _ in range(20):
        send(shared, peers[0], 100_000)
    assert peers[0].unsent_bytes == 1_000_000
    peers[0].unsent_bytes = 600_000
    assert not send(shared, peers[0], 100_000), "it is counted now and then"
    clock[0] += 0.011
    assert send(shared, peers[0], 100_000)
    peers.clear()
    clock[0] += 0.011
    assert shared.allows(900_000, 0)
