"""Appends and reads over HTTP, by Ray Serve on the log's own Ray: ``python examples/serve_endpoint.py [cluster]``.

::

    curl -d hello http://127.0.0.1:8000/0          -> {"transaction_id": 17}
    curl 'http://127.0.0.1:8000/0?after=15'        -> {"transactions": [{"id": 16, ...}, ...]}

Each replica of the deployment has a client for coroutines: hundreds of requests wait for their commits in one process.
Which errors mean "try again" is in their class (``retriable``).
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from waltz_ray import AsyncWaltzClient, connect_async, init_ray
from waltz_ray.errors import InvalidInput, WaltzError

AT_MOST = 100  # transactions in one answer


class LogEndpoint:
    """``client`` is given by tests; a replica connects to ``cluster`` when the first request comes."""

    def __init__(self, cluster: str | None, client: AsyncWaltzClient | None = None) -> None:
        self._cluster = cluster
        self._client = client
        self._connecting = asyncio.Lock()

    async def _connected(self) -> AsyncWaltzClient:
        async with self._connecting:
            if self._client is None:
                self._client = await connect_async(self._cluster)
        return self._client

    async def __call__(self, request: Request) -> JSONResponse:
        try:
            client, partition_id = await self._connected(), int(request.url.path.strip("/") or 0)
            if request.method == "POST":
                return JSONResponse({"transaction_id": await client.append(partition_id, await request.body())})
            return JSONResponse(await self._read(client, partition_id, int(request.query_params.get("after", -1))))
        except (ValueError, InvalidInput) as error:
            return JSONResponse({"error": str(error)}, 400)
        except WaltzError as error:
            return JSONResponse({"error": str(error)}, 503 if error.retriable else 500)

    async def _read(self, client: AsyncWaltzClient, partition_id: int, after: int) -> dict[str, Any]:
        found = [
            {"id": transaction.transaction_id, "data": transaction.data.decode(errors="replace")}
            async for transaction in client.read(partition_id, after + 1, after + 1 + AT_MOST)
        ]
        return {"transactions": found}


def deploy(cluster: str | None) -> None:
    """On the Ray that this process has joined; the endpoint is up when it returns."""
    from ray import serve  # seconds, which the endpoint itself need not wait for

    deployment = serve.deployment(ray_actor_options={"num_cpus": 0})(LogEndpoint)
    serve.run(deployment.bind(cluster), name="waltz-log")


def main(cluster: str | None = None) -> None:
    from ray import serve

    init_ray(cluster)  # joins the log's Ray, or says that there is no such cluster
    try:
        deploy(cluster)
        print("http://127.0.0.1:8000/0 is partition 0; end it with Return")
        input()
    except EOFError:
        print("there is no more input")
    finally:  # Serve does not end with this process: also after ^C
        serve.shutdown()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        print()
    except WaltzError as error:
        sys.exit(f"error: {error}")
