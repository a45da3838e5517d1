"""How chat-completions servers go wrong: answers in bytes, by name."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

TEXT = {"content": "Hello"}
USAGE = {"prompt_tokens": 11, "completion_tokens": 2, "total_tokens": 13}
DONE = b"data: [DONE]\n\n"


class Fault(msgspec.Struct, kw_only=True):
    """One canned answer."""

    status: int = 200
    content_type: str = "text/event-stream"
    headers: dict[str, str] = {}
    pieces: Sequence[bytes] = ()
    """Body, one write each."""
    end: Literal["close", "abort", "hang"] = "close"
    """After the pieces: end the body properly, cut the connection, or say nothing until the client leaves."""
    silent: bool = False
    """Do not even send the head."""


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **fields: Any) -> bytes:
    """One ``chat.completion.chunk`` as an event."""
    choices = [] if delta is None and finish is None else [{"index": 0, "delta": delta or {}, "finish_reason": finish}]
    body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m", "choices": choices, **fields}
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def call(index: int | None = 0, id: str | None = None, name: str | None = None, arguments: Any = None) -> dict:
    """A delta with one piece of a tool call; what is None is left out."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    piece = {"index": index, "id": id, "type": "function", "function": function}
    return {"tool_calls": [{key: value for key, value in piece.items() if value is not None}]}


FAULTS: dict[str, Fault] = {
    "bad-json": Fault(pieces=[chunk(TEXT), b"data: {oops\n\n"]),
    "html": Fault(content_type="text/html; charset=utf-8", pieces=[b"<html>Bad gateway</html>"]),
    "cut": Fault(pieces=[chunk(TEXT)], end="abort"),
    "no-finish": Fault(pieces=[chunk(TEXT)]),
    "empty": Fault(),
    "error-after-200": Fault(pieces=[chunk(TEXT), b'data: {"error":{"message":"boom","code":500}}\n\n', DONE]),
    "no-usage": Fault(pieces=[chunk(TEXT), chunk(finish="stop"), DONE]),
    "slow-head": Fault(silent=True, end="hang"),
    "stall": Fault(pieces=[chunk(TEXT)], end="hang"),
    "huge-line": Fault(pieces=[b"data: " + b"x" * 700_000, b"x" * 700_000]),
    "overloaded": Fault(
        status=503,
        content_type="application/json",
        headers={"Retry-After": "7"},
        pieces=[b'{"error":{"message":"queue full","type":"overloaded"}}'],
    ),
    "rate-limited": Fault(
        status=429,
        content_type="application/json",
        headers={"Retry-After": "3", "x-ratelimit-remaining-tokens": "0"},
        pieces=[b'{"error":{"message":"slow down","type":"rate_limit_error"}}'],
    ),
    "unauthorized": Fault(status=401, content_type="application/json", pieces=[b'{"error":{"message":"no key"}}']),
    "overlong": Fault(
        status=400,
        content_type="application/json",
        pieces=[b'{"error":{"message":"too long","code":400,"type":"exceed_context_size_error"}}'],
    ),
    "interleaved": Fault(
        pieces=[
            chunk(call(0, "call_a", "first", "")),
            chunk(call(1, "call_b", "second", '{"b"')),
            chunk(call(0, arguments='{"a"')),
            chunk(call(1, arguments=":2}")),
            chunk(call(0, arguments=":1}")),
            chunk(finish="tool_calls"),
            chunk(usage=USAGE),
            DONE,
        ]
    ),
}
