"""A producer as the master knows it: registered, heard of, with the topics that it may produce to."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import secrets
import time
from collections.abc import Sequence

from waltz_ray.errors import ClientClosed, PartitionNotReady, TopicRefused
from waltz_ray.topics.client.masters import Masters
from waltz_ray.topics.client.rights import TopicRights
from waltz_ray.topics.client.settings import TopicClientConfig
from waltz_ray.topics.codes import TopicCode
from waltz_ray.topics.messages_producer import (
    CloseRequestP2M,
    HeartRequestP2M,
    HeartResponseM2P,
    RegisterRequestP2M,
    RegisterResponseM2P,
)
from waltz_ray.topics.texts import parse_topic, producer_id

__all__ = ["ProducerRegistration"]

log = logging.getLogger(__name__)

_HOST = "127.0.0.1"  # of the text that masters show; they know our address from the connection
_COUNTS = itertools.count(1)
_SIGN_AGAIN = (TopicCode.UNAUTHORIZED, TopicCode.CERTIFICATE_FAILURE)


class ProducerRegistration:
    """In one event loop. Whoever leads is told again after it was somebody else, or had forgotten us."""

    def __init__(self, masters: Masters, config: TopicClientConfig) -> None:
        self.most_bytes: dict[str, int | None] = {}
        """Of a message, by topic; None: the master does not say."""
        self.refusals: dict[str, TopicRefused] = {}
        """What the master has said last, by topic, if it was no: rights were taken away."""
        self._masters, self._config = masters, config
        self._rights = TopicRights(config.user, config.password)
        started_ms, count = time.time_ns() // 1_000_000, next(_COUNTS)
        version = f"waltz.{secrets.token_hex(4)}"  # by chance: in containers there are many processes of one number
        self._client_id = producer_id(_HOST, os.getpid(), started_ms, count, version)
        self._topics: dict[str, None] = {}
        self._changing = asyncio.Lock()
        self._registered = False
        self._beating: asyncio.Task[None] | None = None
        self._closed = False

    async def know(self, topic: str) -> None:
        """Have the master know that we produce to ``topic``. TopicRefused: we may not; PartitionNotReady: there was no
        master in time; ClientClosed."""
        async with self._changing:
            self._check_open()
            if topic in self._topics:
                return
            await self._beat([topic])  # of it alone: others may be refused
            self._topics[topic] = None
            self._check_open()  # it may have been closed meanwhile
            if self._beating is None:
                self._beating = asyncio.get_running_loop().create_task(self._go_on())

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the producer is closed")

    async def close(self) -> None:
        """Log out. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        if self._registered:
            try:
                await self._masters.ask(lambda: CloseRequestP2M(self._client_id, self._rights.for_master()), 1.0)
            except PartitionNotReady as error:  # whoever leads next does not know us at all
                log.info("producer %s has not logged out: %s", self._client_id, error)

    async def _go_on(self) -> None:
        while not self._closed:  # Python 3.10: it may be cancelled and only be told that a time is over
            await asyncio.sleep(self._config.heartbeat_s)
            try:
                async with self._changing:
                    await self._beat_for_all()
            except PartitionNotReady as error:  # the log takes messages without a master, too
                log.warning("producer %s: %s", self._client_id, error)

    async def _beat_for_all(self) -> None:
        """One heartbeat with all topics; where it is refused one for each, for one right alone may be lacking."""
        refusals: dict[str, TopicRefused] = {}
        try:
            await self._beat([*self._topics])
        except TopicRefused:
            for topic in self._topics:
                try:
                    await self._beat([topic])
                except TopicRefused as error:
                    refusals[topic] = error
        self.refusals = refusals

    async def _beat(self, topics: Sequence[str]) -> None:
        """Register if need be, then one heartbeat, with these topics."""
        for _ in range(3):  # forgotten, and asked for a signature
            if not self._registered:
                answer = await self._masters.ask(lambda: self._registration(topics), self._config.timeout_s)
                assert isinstance(answer, RegisterResponseM2P)
                if not answer.success:
                    self._refused(answer.err_code, answer.err_msg)
                    continue
                self._registered = True
                self._rights.adopt(answer.authorized_info)
            beat = await self._masters.ask(lambda: self._heartbeat(topics), self._config.timeout_s)
            assert isinstance(beat, HeartResponseM2P)
            if beat.success:
                self._rights.adopt(beat.authorized_info, beat.require_auth)
                self.most_bytes.update((each.topic, each.most_bytes) for each in map(parse_topic, beat.topic_infos))
                return
            self._refused(beat.err_code, beat.err_msg)
        raise PartitionNotReady("the master forgets this producer again and again; see the log of the topic actors")

    def _refused(self, code: int, text: str) -> None:
        """TopicRefused, unless it may be tried once more."""
        if code == TopicCode.HB_NO_NODE:
            self._registered = False
        elif code in _SIGN_AGAIN and not self._rights.signs:
            self._rights.sign_again()
        else:
            raise TopicRefused(code, text)

    def _registration(self, topics: Sequence[str]) -> RegisterRequestP2M:
        return RegisterRequestP2M(self._client_id, tuple(topics), -1, _HOST, self._rights.for_master())

    def _heartbeat(self, topics: Sequence[str]) -> HeartRequestP2M:
        return HeartRequestP2M(self._client_id, -1, _HOST, tuple(topics), self._rights.for_master())
