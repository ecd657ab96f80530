"""A web page that follows a feed: ``python examples/feed_page.py [cluster] [port]``, then http://127.0.0.1:8080/.

Server-sent events: each carries its transaction's ID, a browser that was away asks for what came after the last one it
has seen (``Last-Event-ID``), and so sees every transaction once. One client serves all pages; a page that is slow is
fed slowly, by the feed's credit, and holds nobody up.
"""

from __future__ import annotations

import asyncio
import json
import sys

from aiohttp import web

from waltz_ray import AsyncWaltzClient, connect_async
from waltz_ray.errors import InvalidInput, WaltzError

PAGE = """<!doctype html>
<title>The feed of partition %(partition)d</title>
<h1>Partition %(partition)d</h1>
<ol id="feed"></ol>
<script>
  new EventSource("/events/%(partition)d").onmessage = (event) => {
    const item = document.createElement("li");
    item.value = event.lastEventId;
    item.textContent = JSON.parse(event.data).text;
    document.getElementById("feed").prepend(item);
  };
</script>
"""
CLIENT: web.AppKey[AsyncWaltzClient] = web.AppKey("client", AsyncWaltzClient)


def partition_of(request: web.Request) -> int:
    """That the path names; 404 if there is no such partition."""
    text = request.match_info.get("partition", "0")
    if not text.isdecimal() or int(text) >= request.app[CLIENT].partitions:
        raise web.HTTPNotFound(text=f"there is no partition {text}")
    return int(text)


def start_of(request: web.Request) -> int:
    """What comes after the last that the browser has seen; 400 if it says something that we cannot have sent."""
    seen = request.headers.get("Last-Event-ID", "")
    if seen and not (seen.isdecimal() and len(seen) < 19):  # 2^63 has 19 digits
        raise web.HTTPBadRequest(text="Last-Event-ID is no transaction ID")
    return int(seen) + 1 if seen else 0


async def page(request: web.Request) -> web.Response:
    return web.Response(text=PAGE % {"partition": partition_of(request)}, content_type="text/html")


async def events(request: web.Request) -> web.StreamResponse:
    """The feed from where the browser is, for ever."""
    partition_id = partition_of(request)
    start = start_of(request)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    async with request.app[CLIENT].feed(partition_id, start=start, follow=True) as feed:
        async for transaction in feed:
            data = json.dumps({"text": transaction.data.decode(errors="replace"), "header": transaction.header})
            await response.write(f"id: {transaction.transaction_id}\ndata: {data}\n\n".encode())
    return response


async def append(request: web.Request) -> web.Response:
    """What is posted is a transaction."""
    try:
        transaction_id = await request.app[CLIENT].append(partition_of(request), await request.read())
    except InvalidInput as error:
        raise web.HTTPBadRequest(text=str(error)) from error
    return web.json_response({"transaction_id": transaction_id})


def runner_of(served: web.Application) -> web.AppRunner:
    """Feeds never end by themselves: they do when their browser leaves, and are not waited for when we do."""
    return web.AppRunner(served, handler_cancellation=True, shutdown_timeout=0.5)


def application(client: AsyncWaltzClient) -> web.Application:
    """For a client of the loop that serves it."""
    made = web.Application()
    made[CLIENT] = client
    made.add_routes([web.get("/", page), web.get("/events/{partition}", events), web.post("/{partition}", append)])
    return made


async def main(cluster: str | None = None, port: str = "8080") -> None:
    async with await connect_async(cluster) as client:
        runner = runner_of(application(client))
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", int(port)).start()
            print(f"http://127.0.0.1:{port}/ follows partition 0; append with: curl -d hello http://127.0.0.1:{port}/0")
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()


if __name__ == "__main__":
    try:
        asyncio.run(main(*sys.argv[1:]))
    except KeyboardInterrupt:
        print()
    except (WaltzError, OSError) as error:  # OSError: the port is taken
        sys.exit(f"error: {error}")
