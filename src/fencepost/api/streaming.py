"""Send a response in parts while the client listens.

`send` waits while the client does not read, and the server disconnects a client that reads nothing for its write
time-out. So a slow client holds up its own stream only, and at most one part waits for it.
"""

from __future__ import annotations

import asyncio

from starlette.types import Receive, Scope, Send

from fencepost.api.context import StreamResponse
from fencepost.http.request_cycle import ClientLeft


async def send_stream(response: StreamResponse, scope: Scope, receive: Receive, send: Send) -> None:
    """Send the parts as they come, and close their source when they end or the client disconnects."""
    try:
        if scope["method"] == "HEAD":
            await _begin(response, send)
            await send({"type": "http.response.body", "body": b""})
            return
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(_send_parts(response, send))
            watching = group.create_task(_cancel_at_disconnect(sending, receive))
            sending.add_done_callback(lambda _: watching.cancel())
    finally:
        response.on_end()


async def _begin(response: StreamResponse, send: Send) -> None:
    headers = {**response.headers, "content-type": response.media_type}
    encoded = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": 200, "headers": encoded})


async def _send_parts(response: StreamResponse, send: Send) -> None:
    try:
        await _begin(response, send)
        async for part in response.parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    except ClientLeft:
        pass  # nothing reads the response any more
    finally:
        await response.parts.aclose()


async def _cancel_at_disconnect(sending: asyncio.Task[None], receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    sending.cancel()
