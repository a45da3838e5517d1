"""A server with our settings around an application that says back what it hears."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import uvicorn

from responses_ws.runtime.launcher import listen, server_config

SECONDS = 20.0


async def echo(scope: dict[str, Any], receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
    """Sockets; ``flood`` sends without end. Over HTTP: how long the body was, or with ``/flood`` without end, too."""
    if scope["type"] == "http":
        await _answer(scope["path"], receive, send)
        return
    await receive()
    await send({"type": "websocket.accept"})
    with contextlib.suppress(OSError):
        while (message := await receive())["type"] == "websocket.receive":
            if message.get("text") == "flood":
                while True:
                    await send({"type": "websocket.send", "text": "x" * 10_000})
            await send({"type": "websocket.send", "text": message.get("text"), "bytes": message.get("bytes")})


async def _answer(path: str, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message["body"])
        more = message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if path == "/flood":
        gone = asyncio.ensure_future(receive())
        while not gone.done():
            await send({"type": "http.response.body", "body": b"x" * 10_000, "more_body": True})
            await asyncio.sleep(0)
        return
    await send({"type": "http.response.body", "body": str(size).encode()})


@contextlib.asynccontextmanager
async def echoing(application: Any = echo, **options: Any) -> AsyncIterator[int]:
    """Its port; ``options`` are more of uvicorn's. Limits are those of the settings at the time of each connection."""
    listener = listen("127.0.0.1", 0)
    config = server_config(application, log_level="warning")
    for name, value in {"timeout_graceful_shutdown": 1, **options}.items():
        setattr(config, name, value)
    server = uvicorn.Server(config)
    # pytest's own handlers stay.
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
    task = asyncio.create_task(server.serve([listener]))
    async with asyncio.timeout(SECONDS):
        while not server.started:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await task
        listener.close()
