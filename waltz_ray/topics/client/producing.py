"""Messages to a topic through the actors' ports, one after the other."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence

from waltz_ray.errors import InvalidInput, PartitionNotReady
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.topics.authentication import signed
from waltz_ray.topics.client.caller import TopicCaller, ask_master
from waltz_ray.topics.codes import TopicCode
from waltz_ray.topics.messages import AuthorizedInfo, MasterAuthorizedInfo, MasterCertificateInfo
from waltz_ray.topics.messages_producer import (
    RegisterRequestP2M,
    RegisterResponseM2P,
    SendMessageRequestP2B,
    SendMessageResponseB2P,
)
from waltz_ray.topics.payload import check_sum, packed_payload
from waltz_ray.topics.rpc import RpcFault
from waltz_ray.topics.texts import parse_broker, producer_id

__all__ = ["TopicSender", "certificate"]

_AGAIN_S = 0.1
_LATER = (TopicCode.NOT_READY, TopicCode.MOVED, TopicCode.RECEIVE_OVERFLOW, TopicCode.UNAVAILABLE)


def certificate(user: str, password: str) -> MasterCertificateInfo | None:
    """Who we are, signed now; None: nobody."""
    if not user:
        return None
    nonce = int.from_bytes(os.urandom(4), "big", signed=True)
    return MasterCertificateInfo(signed(user, password, time.time_ns() // 1_000_000, nonce))


class TopicSender:
    """To ``topic``. A message of which nobody can say whether it arrived is not sent again."""

    def __init__(
        self, masters: Sequence[Endpoint], topic: str, timeout_s: float, user: str = "", password: str = ""
    ) -> None:
        self._masters, self._topic, self._timeout_s = masters, topic, timeout_s
        self._user, self._password = user, password
        self._client_id = producer_id("127.0.0.1", os.getpid(), time.time_ns() // 1_000_000, 1, "waltz")
        self._slots: Mapping[int, Endpoint] = {}
        self._rights: MasterAuthorizedInfo | None = None
        self._callers: dict[Endpoint, TopicCaller] = {}
        self._turn = 0

    async def close(self) -> None:
        for caller in self._callers.values():
            await caller.close()

    async def send(
        self, data: bytes, partitions: int, msg_type: str = "", partition: int | None = None
    ) -> tuple[int, int]:
        """(partition, message ID). InvalidInput if it is refused; PartitionNotReady: it could not be sent in time."""
        if partition is None:
            partition, self._turn = self._turn % partitions, self._turn + 1
        payload, flag = packed_payload(data)
        request = SendMessageRequestP2B(
            self._client_id, self._topic, 0, payload, flag, check_sum(payload), 0x7F000001, msg_type or None
        )
        until_s = asyncio.get_running_loop().time() + self._timeout_s
        trouble = "its slot has no address"
        while asyncio.get_running_loop().time() < until_s:
            if partition + 1 not in self._slots:
                await self._register()
            endpoint = self._slots.get(partition + 1)
            if endpoint is not None:
                answer = await self._ask(endpoint, request)
                if isinstance(answer, SendMessageResponseB2P):
                    if answer.success and answer.message_id is not None:
                        return partition, answer.message_id
                    if answer.err_code not in _LATER:
                        raise InvalidInput(f"the message is refused ({answer.err_code}): {answer.err_msg}")
                    trouble = answer.err_msg
                else:
                    trouble = answer
            self._slots = {}
            await asyncio.sleep(_AGAIN_S)
        raise PartitionNotReady(f"partition {partition} of topic {self._topic} takes no message: {trouble}")

    async def _ask(self, endpoint: Endpoint, request: SendMessageRequestP2B) -> SendMessageResponseB2P | str:
        """The answer, or why there was none and the message was not sent."""
        rights = self._rights
        shown = None if rights is None else AuthorizedInfo(rights.visit_authorized_token, rights.auth_authorized_token)
        try:
            if endpoint not in self._callers:
                self._callers[endpoint] = await TopicCaller.open(endpoint, self._timeout_s)
        except (OSError, TimeoutError) as error:
            return f"{endpoint}: {error}"
        try:
            answer = await self._callers[endpoint].ask(_with(request, shown))
        except (OSError, TimeoutError) as error:
            await self._callers.pop(endpoint).close()
            raise PartitionNotReady(f"{endpoint}: {error}; nobody can say whether the message is in the log") from error
        if isinstance(answer, RpcFault):
            return answer.text
        assert isinstance(answer, SendMessageResponseB2P)
        return answer

    async def _register(self) -> None:
        request = RegisterRequestP2M(
            self._client_id, (self._topic,), -1, "127.0.0.1", certificate(self._user, self._password)
        )
        caller, answer = await ask_master(self._masters, request, self._timeout_s)
        await caller.close()
        assert isinstance(answer, RegisterResponseM2P)
        if not answer.success:
            raise InvalidInput(f"the master refuses us ({answer.err_code}): {answer.err_msg}")
        found = [parse_broker(each) for each in answer.broker_infos]
        self._slots = {each.broker_id: Endpoint(each.host, each.port) for each in found}
        self._rights = answer.authorized_info


def _with(request: SendMessageRequestP2B, shown: AuthorizedInfo | None) -> SendMessageRequestP2B:
    fields = (request.client_id, request.topic_name, request.partition_id, request.data, request.flag)
    return SendMessageRequestP2B(*fields, request.check_sum, request.sent_addr, request.msg_type, None, shown)
