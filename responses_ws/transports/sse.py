"""A turn over HTTP: as one JSON body, or as server-sent events."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from django.http import HttpResponse, HttpResponseBase, StreamingHttpResponse

from responses_ws.conf import app_settings
from responses_ws.protocol.request import Request
from responses_ws.protocol.server_events import SSE_DONE, sse
from responses_ws.runtime.ids import new_id
from responses_ws.serving.admission import Principal
from responses_ws.serving.context import Asked
from responses_ws.serving.turns import run_turn

from .exceptions import json_response


async def answer_turn(principal: Principal, request: Request) -> HttpResponseBase:
    """Run the turn and answer in the form that the request asks for.

    Raises:
        ApiError: refused before the first event, so that HTTP can still say so with a status.
    """
    transport = "sse" if request.stream else "http"
    # `generate` belongs to sockets only.
    request.generate = None
    runs = run_turn(Asked(principal=principal, request=request, transport=transport))
    if request.stream:
        return await _stream(runs)
    return await _whole(runs)


async def _whole(runs: AsyncGenerator[list[str], None]) -> HttpResponse:
    """The final Response. It is read off the terminal event, so both forms say the same."""
    terminal = ""
    async with aclosing(runs):
        async for frames in runs:
            terminal = frames[-1]
    response = msgspec.json.decode(terminal)["response"]
    return json_response(response)


async def _stream(runs: AsyncGenerator[list[str], None]) -> StreamingHttpResponse:
    first = await anext(runs)
    response = EventStream(_chunks(first, runs), content_type="text/event-stream; charset=utf-8")
    response["Cache-Control"] = "no-cache, no-transform"
    response["X-Accel-Buffering"] = "no"
    response["x-request-id"] = new_id("req")
    return response


class EventStream(StreamingHttpResponse):
    """A stream that ends its turn when Django stops reading.

    Django closes the iterator it made, not the one it was given: a client that leaves while a chunk is being sent
    would otherwise free its engine only at the next garbage collection.
    """

    def __init__(self, chunks: AsyncGenerator[bytes, None], **kwargs: Any) -> None:
        super().__init__(chunks, **kwargs)
        self._chunks = chunks

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._chunks):
            async for chunk in self.streaming_content:
                yield chunk


async def _chunks(first: list[str], runs: AsyncGenerator[list[str], None]) -> AsyncGenerator[bytes, None]:
    # Every event whole in one chunk: there are client parsers that lose what arrives in halves.
    async with aclosing(runs):
        for frame in first:
            yield sse(frame)
        async for frames in runs:
            yield b"".join(map(sse, frames))
    if app_settings.SSE_DONE:
        yield SSE_DONE
