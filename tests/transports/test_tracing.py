"""Spans of turns, as OpenTelemetry's own SDK receives them."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest
from django.test import AsyncClient
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from responses_ws.engines.openai_chat import OpenAIChat
from responses_ws.engines.registry import registry
from responses_ws.models import ApiKey
from responses_ws.runtime import background, tracing
from responses_ws.serving.admission import Principal
from responses_ws.testing import ResponsesCommunicator
from tests.fakes.chat_server import MODEL, ChatServer
from tests.serving.bytes_model import BytesEngine
from tests.serving.hosted import NOTES, calls, note, run_here, script
from tests.serving.turns import asked, events_of, response_of

__all__ = ["run_here"]

CANARY = "canary-4711"
PARENT = "00-" + "a1" * 16 + "-" + "b2" * 8 + "-01"
OTHER = "00-" + "c3" * 16 + "-" + "d4" * 8 + "-01"


class Spans:
    """Those that have ended."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()

    def __call__(self, name: str) -> ReadableSpan:
        """The only one of this name."""
        (found,) = [span for span in self.exporter.get_finished_spans() if span.name == name]
        return found

    def names(self) -> list[str]:
        return [span.name for span in self.exporter.get_finished_spans()]

    def text(self) -> str:
        return "\n".join(span.to_json() for span in self.exporter.get_finished_spans())


@pytest.fixture(scope="module")
def collected() -> Iterator[Spans]:
    """A provider as the host project sets it up: there is one in a process."""
    spans = Spans()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans.exporter))
    trace.set_tracer_provider(provider)
    yield spans
    provider.shutdown()


@pytest.fixture
def spans(collected: Spans, settings: Any) -> Iterator[Spans]:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "TRACING": True}
    tracing.start()
    collected.exporter.clear()
    yield collected
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "TRACING": False}
    tracing.start()


@pytest.fixture
async def server(settings: Any) -> AsyncIterator[ChatServer]:
    """The engine of the model ``m``."""
    async with ChatServer(faults={}) as running:
        settings.RESPONSES_WS = {**settings.RESPONSES_WS, "MODELS": {"m": {"ENGINE": "chat", "UPSTREAM": MODEL}}}
        registry.install("chat", OpenAIChat("chat", {"BASE_URL": running.url}))
        yield running
        await registry.aclose_all()


def parent_of(span: ReadableSpan) -> str:
    """Its traceparent, as W3C writes it."""
    assert span.parent is not None, f"{span.name} has no parent"
    return f"00-{span.parent.trace_id:032x}-{span.parent.span_id:016x}-01"


def own(span: ReadableSpan) -> str:
    context = span.get_span_context()
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-01"


async def test_a_turn_and_its_parts_belong_to_the_clients_trace_and_so_does_the_engines(
    api_key: ApiKey, spans: Spans, server: ChatServer
) -> None:
    async with ResponsesCommunicator(api_key.secret, headers={"traceparent": PARENT}) as socket:
        response = (await socket.turn(model="m", input=CANARY, instructions=CANARY))[-1]["response"]
    await background.settle()

    turn, call = spans("chat m"), spans(f"chat {MODEL}")
    assert (turn.kind, call.kind) == (SpanKind.SERVER, SpanKind.CLIENT)
    assert parent_of(turn) == PARENT
    assert {name: parent_of(spans(name)) == own(turn) for name in ("load context", f"chat {MODEL}", "settle")} == {
        "load context": True,
        f"chat {MODEL}": True,
        "settle": True,
    }
    assert server.request_headers[-1]["traceparent"] == own(call)
    told = dict(turn.attributes or {})
    assert told.pop("gen_ai.response.time_to_first_chunk") > 0
    assert told == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "responses_ws",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "m",
        "gen_ai.response.id": response["id"],
        "gen_ai.response.finish_reasons": ("completed",),
        "gen_ai.usage.input_tokens": response["usage"]["input_tokens"],
        "gen_ai.usage.output_tokens": response["usage"]["output_tokens"],
        "gen_ai.usage.cache_read.input_tokens": response["usage"]["input_tokens_details"]["cached_tokens"],
        "gen_ai.usage.reasoning.output_tokens": 0,
        "responses_ws.transport": "websocket",
        "responses_ws.project_id": api_key.project_id,
        "responses_ws.key_id": api_key.pk,
    }
    assert CANARY not in spans.text()


async def test_each_turn_of_a_socket_may_name_a_trace_of_its_own_as_codex_does(api_key: ApiKey, spans: Spans) -> None:
    metadata = {"ws_request_header_traceparent": OTHER, "x-codex-turn-metadata": CANARY}
    async with ResponsesCommunicator(api_key.secret, headers={"traceparent": PARENT}) as socket:
        await socket.turn(model="scripted", input="one", client_metadata=metadata)
        await socket.turn(model="scripted", input="two", client_metadata={"ws_request_header_traceparent": 7})

    turns = [span for span in spans.exporter.get_finished_spans() if span.kind is SpanKind.SERVER]
    assert [parent_of(span) for span in turns] == [OTHER, PARENT]
    assert CANARY not in spans.text()


@pytest.mark.parametrize("stream", [False, True])
async def test_over_http_the_header_names_it(api_key: ApiKey, spans: Spans, stream: bool) -> None:
    content = msgspec.json.encode({"model": "scripted", "input": "Hello", "stream": stream})
    headers = {"Authorization": f"Bearer {api_key.secret}", "traceparent": PARENT}

    answer = await AsyncClient().post("/v1/responses", content, content_type="application/json", headers=headers)
    if stream:
        assert [chunk async for chunk in answer.streaming_content]
    await background.settle()

    turn = next(span for span in spans.exporter.get_finished_spans() if span.kind is SpanKind.SERVER)
    assert parent_of(turn) == PARENT
    assert parent_of(spans("settle")) == own(turn)


async def test_rendering_is_a_part_of_a_call_in_token_ids(principal: Principal, spans: Spans, settings: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "MODELS": {"bytes": {"ENGINE": "bytes", "UPSTREAM": "b"}}}
    registry.install("bytes", BytesEngine("One<end>"))

    await response_of(asked(principal, CANARY, model="bytes"))

    assert parent_of(spans("render")) == own(spans("chat b"))
    assert CANARY not in spans.text()


@pytest.mark.usefixtures("run_here")
async def test_a_hosted_tool_is_a_part_of_its_turn(principal: Principal, spans: Spans) -> None:
    script(calls(note(CANARY)), "Done.")

    await response_of(asked(principal, "Note.", tools=[NOTES], store=False))

    (tool,) = [span for span in spans.exporter.get_finished_spans() if span.name.startswith("execute_tool ")]
    turn = next(span for span in spans.exporter.get_finished_spans() if span.kind is SpanKind.SERVER)
    assert parent_of(tool) == own(turn)
    assert dict(tool.attributes or {})["gen_ai.operation.name"] == "execute_tool"
    assert CANARY not in spans.text()


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        pytest.param({"model": "none-such"}, "model_not_found", id="refused"),
        pytest.param({"given": "!fail engine"}, "server_error", id="failed"),
        pytest.param({"given": "!tokens 9 !break 5"}, "server_error", id="broken off"),
    ],
)
async def test_what_goes_wrong_is_told_by_its_code(
    principal: Principal, spans: Spans, fields: dict[str, Any], kind: str
) -> None:
    try:
        await events_of(asked(principal, **{"given": "Hello", **fields}))
    except Exception as error:
        assert getattr(error, "code", None) == kind

    turn = next(span for span in spans.exporter.get_finished_spans() if span.kind is SpanKind.SERVER)
    assert dict(turn.attributes or {})["error.type"] == kind
    assert not turn.status.is_ok
    assert turn.events == ()


async def test_without_the_setting_nothing_is_made(principal: Principal, collected: Spans) -> None:
    collected.exporter.clear()

    await response_of(asked(principal, "Hello"))

    assert tracing.turn("m", "websocket", {"ws_request_header_traceparent": PARENT}) is tracing.NOTHING
    assert tracing.here("render") is tracing.NOTHING and tracing.headers() == {}
    assert collected.names() == []
