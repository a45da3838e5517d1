"""What other people's servers say, replayed byte for byte, however it is cut: and what they are asked with."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web

from responses_ws.engines.base import Engine, EngineError
from responses_ws.engines.openai_chat import OpenAIChat
from responses_ws.engines.responses import Responses
from responses_ws.protocol.sampling import (
    CallArguments,
    CallEnd,
    CallStart,
    Delta,
    Finished,
    OutputItem,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)
from responses_ws.protocol.usage import Usage
from responses_ws.rendering.chat import ChatPrompt
from responses_ws.testing import chat_request, collect
from tests.fakes.transcripts import Transcript, load, names

OPENAI_USAGE = Usage(input_tokens=19, output_tokens=10)
OLLAMA_USAGE = Usage(input_tokens=14, output_tokens=21)
LITELLM_USAGE = Usage(
    input_tokens=2100, output_tokens=40, cached_tokens=2000, cache_write_tokens=60, reasoning_tokens=12
)
RESPONSES_USAGE = Usage(input_tokens=37, output_tokens=11, reasoning_tokens=6)


def called(index: int, call_id: str, *arguments: str) -> list[Delta]:
    pieces: list[Delta] = [CallArguments(index, piece) for piece in arguments]
    return [CallStart(index, "get_weather", call_id), *pieces]


OSLO, ROME = '{"city":"Oslo"}', '{"city":"Rome"}'
ANSWERS: dict[str, list[Delta]] = {
    "openai/chat_text": [TextDelta("Hello"), TextDelta("!"), Finished("stop", OPENAI_USAGE)],
    "openai/chat_calls": [
        *called(0, "call_0a1", '{"ci', 'ty": "Oslo"}'),
        *called(1, "call_0a2", '{"city": "Rome"}'),
        CallEnd(0),
        CallEnd(1),
        Finished("tool_calls", Usage(input_tokens=1200, output_tokens=10, cached_tokens=1024)),
    ],
    "openai/chat_refusal": [
        RefusalDelta("I'm sorry, I can"),
        RefusalDelta("'t help."),
        Finished("stop", OPENAI_USAGE),
    ],
    "ollama/chat_thinking": [
        ReasoningDelta("The user"),
        ReasoningDelta(" greets."),
        TextDelta("Hel"),
        TextDelta("lo"),
        Finished("stop", OLLAMA_USAGE),
    ],
    "ollama/chat_calls": [
        ReasoningDelta("Two calls."),
        *called(0, "call_x4bq3z1p", OSLO),
        *called(1, "call_7d2kqv0m", ROME),
        CallEnd(0),
        CallEnd(1),
        Finished("tool_calls", OLLAMA_USAGE),
    ],
    "ollama/chat_calls_one_by_one": [
        *called(0, "call_x4bq3z1p", OSLO),
        *called(1, "call_7d2kqv0m", ROME),
        CallEnd(0),
        CallEnd(1),
        Finished("tool_calls", OLLAMA_USAGE),
    ],
    "ollama/chat_length": [TextDelta("1, 2"), Finished("length", OLLAMA_USAGE)],
    "litellm/chat_reasoning": [
        ReasoningDelta("A greet"),
        ReasoningDelta("ing."),
        TextDelta("Hello!"),
        Finished("stop", LITELLM_USAGE),
    ],
    "litellm/chat_call": [
        TextDelta("I'll look."),
        *called(0, "toolu_0a1", '{"city": "Oslo"}'),
        CallEnd(0),
        Finished("tool_calls", LITELLM_USAGE),
    ],
    "openai/responses_reasoning": [
        ReasoningDelta("**Greeting**\n\n"),
        ReasoningDelta("Short."),
        TextDelta("Good"),
        TextDelta(" day!"),
        Finished("stop", RESPONSES_USAGE),
    ],
    "openai/responses_hosted_search_and_call": [
        OutputItem(
            {
                "id": "ws_0a1",
                "type": "web_search_call",
                "status": "completed",
                "action": {"type": "search", "query": "weather Oslo"},
            }
        ),
        *called(0, "call_0a1", '{"city":', '"Oslo"}'),
        CallEnd(0),
        Finished("tool_calls", RESPONSES_USAGE),
    ],
    "openai/responses_incomplete": [TextDelta("Good d"), Finished("length", RESPONSES_USAGE)],
    "ollama/responses_calls": [
        ReasoningDelta("A call."),
        TextDelta("Let me look."),
        *called(0, "call_k0", OSLO),
        CallEnd(0),
        *called(1, "call_k1", ROME),
        CallEnd(1),
        Finished("tool_calls", OLLAMA_USAGE),
    ],
}
FAILURES: dict[str, tuple[str, dict[str, str]]] = {
    "openai/chat_rate_limited": ("rate_limited", {}),
    "openai/chat_overlong": ("context_length", {}),
    "ollama/chat_no_model": ("bad_request", {}),
    "litellm/chat_error_midway": ("rate_limited", {}),
    "openai/responses_failed": ("engine", {}),
}


@asynccontextmanager
async def replayed(transcript: Transcript, piece_bytes: int) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """A server that answers so, in pieces; its ``BASE_URL``, and the bodies of its requests."""
    requests: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        requests.append(await request.json())
        response = web.StreamResponse(status=transcript.status, headers={"Content-Type": transcript.content_type})
        await response.prepare(request)
        for start in range(0, len(transcript.body), piece_bytes):
            await response.write(transcript.body[start : start + piece_bytes])
        return response

    app = web.Application()
    app.router.add_post(transcript.path, answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1", requests
    finally:
        await runner.cleanup()


async def asked(name: str, piece_bytes: int, heard: Callable[[list[Delta]], None]) -> None:
    """Ask what the transcript asks, in the way that its path wants, and check that it is asked in these words."""
    transcript = load(*name.split("/"))
    wanted = transcript.request
    async with replayed(transcript, piece_bytes) as (url, requests):
        options = {"BASE_URL": url, **({} if "messages" in wanted else {"AFFINITY_FIELD": ""})}
        kind: type[Engine] = OpenAIChat if "messages" in wanted else Responses
        engine = kind("far", options)
        (message,) = wanted.get("messages") or wanted["input"]
        request = chat_request(
            "",
            model=wanted["model"],
            prompt=ChatPrompt(takes=engine.capabilities.media).extended([{"role": "user", **message}]),
            tools=wanted.get("tools"),
            tool_choice=wanted.get("tool_choice"),
            parallel_tool_calls=wanted.get("parallel_tool_calls"),
            max_output_tokens=wanted.get("max_tokens") or wanted.get("max_output_tokens"),
            reasoning_summary=wanted.get("reasoning", {}).get("summary"),
        )
        try:
            heard(await collect(engine, request))
        finally:
            await engine.aclose()
            assert requests == [wanted]


@pytest.mark.parametrize("piece_bytes", [7, 1_000_000], ids=["in crumbs", "at once"])
@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_is_heard(name: str, piece_bytes: int) -> None:
    heard: list[Delta] = []

    await asked(name, piece_bytes, heard.extend)

    # What an upstream calls its answer is between it and its engine.
    finished = heard[-1]
    assert isinstance(finished, Finished)
    assert [*heard[:-1], msgspec.structs.replace(finished, continuation=None)] == ANSWERS[name]


@pytest.mark.parametrize("name", FAILURES)
async def test_a_failure_is_understood(name: str) -> None:
    with pytest.raises(EngineError) as caught:
        await asked(name, 1_000_000, lambda _deltas: None)

    assert (caught.value.kind, caught.value.headers) == FAILURES[name]


def test_every_transcript_is_replayed_and_says_where_it_comes_from() -> None:
    there = {f"{server}/{name}" for server in ("openai", "ollama", "litellm") for name in names(server)}

    assert there == {*ANSWERS, *FAILURES}
    assert all(load(*name.split("/")).origin.startswith(("recorded from", "written from")) for name in there)
