"""What a server says of itself and its replicas when it is asked."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from waltz_ray.actors.client_requests import answer
from waltz_ray.protocol.ids import Endpoint, ReqId
from waltz_ray.protocol.messages.original import CheckConnectivityRequest, CheckConnectivityResponse


def test_replicas_that_never_said_where_they_listen_are_told_one_by_one() -> None:
    up, away = SimpleNamespace(endpoint=Endpoint("10.0.0.1", 7), up=True), SimpleNamespace(endpoint=None, up=False)
    server: Any = SimpleNamespace(links={0: up, 1: away, 2: away})
    asked = ReqId(1, 0, 0, 5)
    told = asyncio.run(answer(server, CheckConnectivityRequest(asked)))
    assert told == CheckConnectivityResponse(asked, {"10.0.0.1:7": True, "replica 1": False, "replica 2": False})
