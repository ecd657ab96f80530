"""Whose turn it is: what the partitions of one server do after the input that is there, and in which order."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Protocol

from waltz_ray.net.outgoing import Outgoing
from waltz_ray.runtime.watchdog import SLOW_S

__all__ = ["TakesTurns", "Turns"]


class TakesTurns(Protocol):
    """What takes turns: a partition's driver."""

    def end_turn(self) -> None:
        """What waited in the sockets has been handed over."""

    def feed_turn(self) -> None:
        """Other input, and the partitions that asked before, had their turn."""


class Turns:
    """The turns of one event loop. ``outgoing``: what holds the frames of one turn together."""

    def __init__(self, outgoing: Outgoing) -> None:
        self._outgoing = outgoing
        self._loop = asyncio.get_running_loop()
        self._ending: deque[TakesTurns] = deque()
        self._feeding: deque[TakesTurns] = deque()

    def end_turn_of(self, driver: TakesTurns) -> None:
        """Call ``driver.end_turn`` soon: when what is waiting in the sockets has been handed over."""
        if not self._ending:
            self._loop.call_soon(self._end_turns)
        self._ending.append(driver)

    def _end_turns(self) -> None:
        """Those of all partitions together, so that their frames are; but other input must not wait for too many."""
        turns, self._ending = self._ending, deque()
        until = time.monotonic() + SLOW_S / 2
        with self._outgoing:
            while turns:
                turns.popleft().end_turn()
                if turns and time.monotonic() > until:
                    break
        if turns:
            if not self._ending:
                self._loop.call_soon(self._end_turns)
            self._ending.extendleft(reversed(turns))

    def feed_turn_of(self, driver: TakesTurns) -> None:
        """Call ``driver.feed_turn``, of one driver a turn of the loop, in the order in which they asked."""
        if not self._feeding:
            self._loop.call_soon(self._feed_turn)
        self._feeding.append(driver)

    def _feed_turn(self) -> None:
        driver = self._feeding.popleft()
        if self._feeding:
            self._loop.call_soon(self._feed_turn)
        with self._outgoing:
            driver.feed_turn()
