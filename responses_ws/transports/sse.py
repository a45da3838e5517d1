"""A turn over HTTP: as one JSON body, or as server-sent events."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from django.http import HttpResponse, HttpResponseBase, StreamingHttpResponse

from responses_ws.conf import app_settings
from responses_ws.connection.replay import replay
from responses_ws.protocol.request import Request
from responses_ws.protocol.server_events import SSE_DONE, SSE_KEEP_ALIVE, sse
from responses_ws.serving import background, idempotency
from responses_ws.serving.admission import Principal, Ticket
from responses_ws.serving.context import Asked
from responses_ws.serving.turns import run_turn
from responses_ws.stores import events

from .exceptions import json_response


async def answer_turn(
    principal: Principal, request: Request, ticket: Ticket, *, response_id: str | None = None
) -> HttpResponseBase:
    """Run the turn and answer in the form that the request asks for.

    Raises:
        ApiError: refused before the first event, so that HTTP can still say so with a status.
    """
    transport = "sse" if request.stream else "http"
    # `generate` belongs to sockets only.
    request.generate = None
    asked = Asked(
        principal=principal,
        request=request,
        transport=transport,
        response_id=response_id,
        ticket=ticket,
        received_at=ticket.asked_at,
    )
    if request.background:
        response = await background.start(asked)
        return await answer_again(principal, request, response)
    runs = run_turn(asked)
    if request.stream:
        return await stream(runs)
    return await _whole(runs)


async def answer_once(
    principal: Principal, request: Request, ticket: Ticket, *, key: str, body: bytes
) -> HttpResponseBase:
    """The same under an ``Idempotency-Key``: what was answered before is answered again.

    Raises:
        ApiError: refused, which is not remembered; or a Conflict with what the key was used for before.
    """
    try:
        claim = await idempotency.claim(principal, key, body)
    except asyncio.CancelledError:
        ticket.close()
        raise
    if claim.earlier is not None:
        ticket.close()
        return await answer_again(principal, request, claim.earlier)
    try:
        return await answer_turn(principal, request, ticket, response_id=claim.response_id)
    except asyncio.CancelledError:
        # A background response goes on without its client; of any other nothing has begun.
        if not request.background:
            await claim.release()
        raise
    except Exception:
        await claim.release()
        raise


async def answer_again(principal: Principal, request: Request, response: dict[str, Any]) -> HttpResponseBase:
    """A response that there is already, in the form that the request asks for."""
    if not request.stream:
        return json_response(response)
    if request.background:
        return await stream(events.follow(principal.project_id, response["id"], starting_after=-1))
    return await stream(_at_once(replay(response)))


async def _at_once(frames: list[str]) -> AsyncGenerator[list[str], None]:
    yield frames


async def _whole(runs: AsyncGenerator[list[str], None]) -> HttpResponse:
    """The final Response. It is read off the terminal event, so both forms say the same."""
    terminal = ""
    async with aclosing(runs):
        async for frames in runs:
            terminal = frames[-1]
    response = msgspec.json.decode(terminal)["response"]
    return json_response(response)


async def stream(runs: AsyncGenerator[list[str], None]) -> StreamingHttpResponse:
    """Server-sent events. What goes wrong before the first of them is raised."""
    first: list[str] = await anext(runs, [])
    response = EventStream(_chunks(first, runs), content_type="text/event-stream; charset=utf-8")
    response["Cache-Control"] = "no-cache, no-transform"
    response["X-Accel-Buffering"] = "no"
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
            yield b"".join(map(sse, frames)) or SSE_KEEP_ALIVE
    if app_settings.SSE_DONE:
        yield SSE_DONE
