"""What is sent while one piece of input is handled leaves together, in order, and never stays behind."""

from __future__ import annotations

import asyncio

import pytest

from waltz_ray.net.outgoing import Outgoing, Outlet


class Transport(asyncio.Transport):
    def __init__(self, name: str = "", writes: list[tuple[str, bytes]] | None = None) -> None:
        super().__init__()
        self._name = name
        self.writes = [] if writes is None else writes
        self.ended = ""

    def write(self, data: object) -> None:
        assert isinstance(data, bytes)
        assert not self.ended
        self.writes.append((self._name, data))

    def get_write_buffer_size(self) -> int:
        return 5

    def abort(self) -> None:
        self.ended = "aborted"

    def close(self) -> None:
        self.ended = "closed"


def test_frames_of_one_input_are_one_write_per_connection_in_their_order() -> None:
    outgoing, writes = Outgoing(), list[tuple[str, bytes]]()
    one, other = (Outlet(outgoing, Transport(name, writes)) for name in ("one", "other"))
    with outgoing:
        one.write(b"1")
        other.write(b"2")
        with outgoing:  # one piece of input may lead to another
            one.write(b"3")
        assert writes == []
        assert one.unsent_bytes == 7
    assert writes == [("one", b"13"), ("other", b"2")]
    one.write(b"4")
    assert writes[2:] == [("one", b"4")], "outside of a block nothing is held"


def test_a_large_frame_does_not_wait_for_others() -> None:
    outgoing, transport = Outgoing(), Transport()
    outlet = Outlet(outgoing, transport)
    with outgoing:
        outlet.write(b"small")
        outlet.write(bytes(100_000))
        assert [len(data) for _, data in transport.writes] == [100_005]
        outlet.write(b"next")
    assert [data for _, data in transport.writes[1:]] == [b"next"]


def test_what_is_held_leaves_also_when_the_input_was_wrong() -> None:
    outgoing, transport = Outgoing(), Transport()
    outlet = Outlet(outgoing, transport)

    def handle() -> None:
        with outgoing:
            outlet.write(b"answer")
            raise ValueError("the next message")

    with pytest.raises(ValueError, match="the next message"):
        handle()
    assert transport.writes == [("", b"answer")]
    outlet.write(b"later")
    assert len(transport.writes) == 2


def test_closing_sends_what_is_held_and_aborting_does_not() -> None:
    outgoing = Outgoing()
    closed, aborted = Transport(), Transport()
    with outgoing:
        for transport in (closed, aborted):
            outlet = Outlet(outgoing, transport)
            outlet.write(b"last")
            outlet.close() if transport is closed else outlet.abort()
            outlet.write(b"too late")
    assert closed.writes == [("", b"last")]
    assert aborted.writes == []
    assert (closed.ended, aborted.ended) == ("closed", "aborted")


def test_what_is_held_is_not_written_to_a_connection_that_is_gone() -> None:
    """It may go while its frames wait for those of others, and some event loops raise at such a write."""
    outgoing, transport = Outgoing(), Transport()
    outlet = Outlet(outgoing, transport)
    with outgoing:
        outlet.write(b"never")
        outlet.lost()
        transport.ended = "by the peer"
        outlet.write(b"never")
    outlet.write(b"never")
    assert transport.writes == []
