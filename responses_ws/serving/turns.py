"""One turn, from request to record, whichever door it came through."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from responses_ws.conf import app_settings
from responses_ws.connection.turn import Turn
from responses_ws.engines.base import EngineError
from responses_ws.protocol.errors import ApiError, InvalidRequest, Overloaded, RateLimited, ServerError
from responses_ws.protocol.sampling import Finished
from responses_ws.protocol.usage import Usage
from responses_ws.rendering.tools import CallTranslator
from responses_ws.runtime.drain import is_draining, running_turn
from responses_ws.runtime.ids import new_id
from responses_ws.stores.memory import hot_tier

from .context import Asked, Context, open_context
from .recording import Record, Stored
from .sampling import SamplingStep

logger = logging.getLogger(__name__)

Frames = AsyncGenerator[list[str], None]


async def run_turn(asked: Asked) -> Frames:
    """Run a turn. Use it in ``aclosing``: leaving early frees the engine and records what was made.

    Yields:
        Encoded server events, in runs that are ready together, from ``response.created`` to the one terminal
        event. Whatever the terminal event promises is durable before it is yielded.

    Raises:
        ApiError: before anything was yielded, and only then. A later failure is a ``response.failed``.
    """
    # A refusal that says nothing about the request; the parent stays.
    if is_draining():
        raise Overloaded("The server is about to restart. Please try again on a new connection.")
    with running_turn():
        try:
            context = await open_context(asked)
        except ApiError:
            _evict_parent(asked)
            raise
        frames = _warm_up(context) if asked.request.is_warmup else _generate(context)
        async with aclosing(frames):
            async for run in frames:
                yield run


async def _generate(context: Context) -> Frames:
    turn, record = _begin(context)
    step = SamplingStep(context.route.engine.chat(context.chat_request(turn.id)))
    # The engine was called first; the record becomes durable while it works.
    record.open()
    try:
        await step.wait_until_accepted(app_settings.limits.created_seconds)
        yield turn.begin()
        translator = CallTranslator(context.tools)
        async with aclosing(step.deltas()) as deltas:
            async for batch in deltas:
                frames = [frame for delta in batch for said in translator.feed(delta) for frame in turn.feed(said)]
                if frames:
                    if record.first_token_ms is None:
                        await record.wait_until_open()
                        record.saw_first_token()
                    yield frames
        await step.leave()
        usage = _usage(context, turn)
        closing = turn.close(usage, completed_at=int(time.time()))
        if closing:
            yield closing
        await _settle(context, turn, record, usage)
        yield [turn.end()]
    except (asyncio.CancelledError, GeneratorExit):
        try:
            await step.leave()
        finally:
            # Of a write that failed the socket's end is told a moment later: a cancellation on top of the first.
            if not record.is_closed:
                await record.close(status="cancelled", usage=_usage(context, turn), reason="client_left")
        raise
    except Exception as exc:
        await step.leave()
        error = _told(exc, turn.id)
        if not record.is_closed:
            await record.close(status="failed", usage=_usage(context, turn), reason=error.code or "")
        _evict_parent(context.asked)
        if not turn.has_begun:
            raise error from exc
        yield [turn.fail(error)]


async def _warm_up(context: Context) -> Frames:
    """``generate: false``: everything but the sampling. A full response with an empty output."""
    turn, record = _begin(context)
    yield turn.begin()
    usage = Usage(input_tokens=context.estimated_input_tokens(), estimated=True)
    turn.feed(Finished("stop", usage))
    turn.close(usage, completed_at=int(time.time()))
    await _settle(context, turn, record, usage)
    yield [turn.end()]


async def _settle(context: Context, turn: Turn, record: Record, usage: Usage) -> None:
    """Make a closed turn durable and put its state where a continuation looks: all before the terminal event."""
    asked = context.asked
    parent = context.parent
    stored = None
    if asked.request.is_stored:
        if parent is not None and parent.place is not None:
            stored = Stored(turn.response, parent.place, context.new_items + turn.output, len(context.items))
        else:
            # Nothing of this chain is stored yet: it is written whole, once.
            stored = Stored(turn.response, None, list(context.items) + turn.output, len(context.items))
    place = await record.close(status=turn.status, usage=usage, reason=turn.incomplete_reason, stored=stored)
    link = context.link(turn.response, turn.output, place)
    # Before the terminal event: a fast client continues in the same millisecond.
    if asked.chains is not None:
        asked.chains.put(asked.stream_id, link)
    if stored is not None:
        hot_tier.put(link)


def _begin(context: Context) -> tuple[Turn, Record]:
    asked = context.asked
    turn = Turn(
        asked.request,
        response_id=new_id("resp"),
        new_id=new_id,
        created_at=int(time.time()),
        stream_id=asked.stream_id,
    )
    record = Record(
        asked.principal,
        response_id=turn.id,
        model=context.route.model,
        service_tier=turn.response["service_tier"],
        transport=asked.transport,
        is_warmup=asked.request.is_warmup,
        count=lambda: _usage(context, turn),
    )
    return turn, record


def _evict_parent(asked: Asked) -> None:
    if asked.chains is not None:
        asked.chains.evict_failed(asked.stream_id, asked.previous_response_id)


def _usage(context: Context, turn: Turn) -> Usage:
    """What was consumed so far: the engine's word where it gave one, our own count where not."""
    if turn.finished is not None and turn.finished.usage is not None:
        return turn.finished.usage.clamped()
    started = turn.started
    return Usage(
        input_tokens=started.prompt_tokens if started else context.estimated_input_tokens(),
        cached_tokens=started.cached_tokens if started else 0,
        output_tokens=turn.output_tokens,
        reasoning_tokens=turn.reasoning_tokens,
        estimated=not (started and context.route.engine.capabilities.exact_usage),
    ).clamped()


def _told(exc: Exception, response_id: str) -> ApiError:
    """What the client is told of a failure. An unknown exception is logged and never quoted."""
    if isinstance(exc, ApiError):
        return exc
    if not isinstance(exc, EngineError):
        logger.error("Response %s failed", response_id, exc_info=exc)
        return ServerError("The server had an error while processing your request.")
    if exc.kind == "context_length":
        return InvalidRequest(exc.message, code="context_length_exceeded", param="input")
    if exc.kind == "bad_request":
        return InvalidRequest(exc.message, code="invalid_request_error")
    logger.warning("Response %s: the engine failed (%s): %s", response_id, exc.kind, exc.message)
    if exc.kind == "rate_limited":
        return RateLimited("The engine is at its rate limit. Please try again later.", headers=exc.headers)
    if exc.kind in ("overloaded", "unavailable"):
        return Overloaded(
            "The engine is currently overloaded or unavailable. Please try again later.", headers=exc.headers
        )
    return ServerError("The engine failed to answer.")
