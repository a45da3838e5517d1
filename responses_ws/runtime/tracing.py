"""Spans of turns, for OpenTelemetry: where ``TRACING`` is on and the extra ``otel`` is installed.

Without, every question is answered by `NOTHING`, after one look at one global. No span holds anything that has been
said: numbers, names of models and tools, and the ids that are in the log.

Source: OpenTelemetry's semantic conventions for generative AI; W3C Trace Context.
"""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from responses_ws import __version__
from responses_ws.conf import app_settings

Attributes = Mapping[str, str | int | float | bool | None | list[str]]

TRACEPARENT_OF_TURN = "ws_request_header_traceparent"
TRACESTATE_OF_TURN = "ws_request_header_tracestate"
"""Keys of ``client_metadata`` with which Codex names the trace of each turn on a socket."""


class Span:
    """One stretch of time; also as a context manager, which ends it, and says so when it failed."""

    def child(self, name: str, attributes: Attributes | None = None, *, calls_out: bool = False) -> "Span":
        """A stretch within this one; ``calls_out``: it waits for another server."""
        return self

    def make_current(self) -> None:
        """What this task calls from here on is within this one. Only for tasks that do nothing else."""

    def set(self, attributes: Attributes) -> None:
        """Say more of it; None says nothing."""

    def fail(self, kind: str) -> None:
        """It has not gone well; ``kind`` is a code or a class, never a text."""

    def end(self) -> None:
        """Idempotent."""

    def __enter__(self) -> "Span":
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, _traceback: object) -> None:
        if kind is not None:
            has_left = issubclass(kind, asyncio.CancelledError | GeneratorExit)
            word = getattr(exc, "code", None) or getattr(exc, "kind", None) or kind.__name__
            self.fail("cancelled" if has_left else str(word))
        self.end()


NOTHING = Span()
_otel: Any = None
"""OpenTelemetry's modules and our tracer, once somebody wants spans."""


class _Recorded(Span):
    def __init__(self, span: Any) -> None:
        self._span = span

    def child(self, name: str, attributes: Attributes | None = None, *, calls_out: bool = False) -> Span:
        context = _otel.trace.set_span_in_context(self._span)
        return _begun(name, context, attributes, "CLIENT" if calls_out else "INTERNAL")

    def make_current(self) -> None:
        _otel.context.attach(_otel.trace.set_span_in_context(self._span))

    def set(self, attributes: Attributes) -> None:
        if self._span.is_recording():
            self._span.set_attributes({name: value for name, value in attributes.items() if value is not None})

    def fail(self, kind: str) -> None:
        if self._span.is_recording():
            self._span.set_attribute("error.type", kind)
            self._span.set_status(_otel.trace.StatusCode.ERROR)

    def end(self) -> None:
        if self._span.is_recording():
            self._span.end()


def start() -> None:
    """This process begins, or its settings have changed. Raises ImportError without the extra."""
    global _otel
    _otel = None
    if app_settings.TRACING:
        from opentelemetry import context, propagate, trace

        tracer = trace.get_tracer("responses_ws", __version__)
        _otel = SimpleNamespace(context=context, propagate=propagate, trace=trace, tracer=tracer)


def received(headers: Mapping[str, str]) -> None:
    """A request or a handshake with these headers: this task belongs to their trace, unless the host project has seen
    to that already."""
    if _otel is not None and not _otel.trace.get_current_span().get_span_context().is_valid:
        _otel.context.attach(_otel.propagate.extract(headers))


def turn(model: str | None, transport: str, client_metadata: Any) -> Span:
    """A turn begins. What the client says in the turn itself goes before what it said at the handshake."""
    if _otel is None:
        return NOTHING
    told = client_metadata if isinstance(client_metadata, dict) else {}
    carrier = {"traceparent": told.get(TRACEPARENT_OF_TURN), "tracestate": told.get(TRACESTATE_OF_TURN)}
    carrier = {name: value for name, value in carrier.items() if isinstance(value, str)}
    context = _otel.propagate.extract(carrier) if carrier else None
    attributes: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "responses_ws",
        "gen_ai.request.model": model,
        "responses_ws.transport": transport,
    }
    return _begun(f"chat {model}", context, attributes, "SERVER")


def here(name: str) -> Span:
    """A stretch within whatever this task is about."""
    return NOTHING if _otel is None else _begun(name, None, None, "INTERNAL")


def headers() -> dict[str, str]:
    """What tells another server which trace a call of this task belongs to."""
    carrier: dict[str, str] = {}
    if _otel is not None:
        _otel.propagate.inject(carrier)
    return carrier


def _begun(name: str, context: Any, attributes: Attributes | None, kind: str) -> Span:
    span = _Recorded(_otel.tracer.start_span(name, context=context, kind=_otel.trace.SpanKind[kind]))
    if attributes:
        span.set(attributes)
    return span
