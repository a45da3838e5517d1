"""What we read of another server's Responses, and of its events: everything else is skipped."""

from typing import Any

import msgspec

from responses_ws.protocol.usage import Usage

_NOTHING = msgspec.Raw(b"{}")


class Event(msgspec.Struct, gc=False):
    type: str = ""
    output_index: int | None = None
    item_id: str | None = None
    summary_index: int | None = None
    delta: Any = None
    logprobs: Any = None
    annotation: Any = None
    # Read where they count: those of unknown kinds may look like anything.
    item: msgspec.Raw = _NOTHING
    response: msgspec.Raw = _NOTHING
    # Of an ``error``; over HTTP these stand in the event itself, on a WebSocket in an object beside the status.
    error: Any = None
    status: Any = None
    headers: Any = None
    code: Any = None
    message: Any = None
    param: Any = None


class Part(msgspec.Struct, gc=False):
    type: str = ""
    text: str | None = None
    refusal: str | None = None
    logprobs: list[dict[str, Any]] | None = None
    annotations: list[Any] | None = None


class Item(msgspec.Struct, gc=False):
    type: str = ""
    id: str | None = None
    status: str | None = None
    content: list[Part] | None = None
    summary: list[Part] | None = None
    call_id: str | None = None
    namespace: str | None = None
    name: str = ""
    # Some servers give the arguments as an object.
    arguments: str | dict[str, Any] | None = None
    input: str | None = None

    def said(self) -> str:
        """What a call calls with."""
        given = self.arguments if self.type == "function_call" else self.input
        return given if isinstance(given, str) else msgspec.json.encode(given).decode() if given else ""


class Kind(msgspec.Struct, gc=False):
    type: str = ""


class InputDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class OutputDetails(msgspec.Struct, gc=False):
    reasoning_tokens: int | None = None


class Counts(msgspec.Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: InputDetails | None = None
    output_tokens_details: OutputDetails | None = None

    def counted(self) -> Usage | None:
        if self.input_tokens is None and self.output_tokens is None:
            return None
        read, made = self.input_tokens_details or InputDetails(), self.output_tokens_details or OutputDetails()
        return Usage(
            input_tokens=self.input_tokens or 0,
            output_tokens=self.output_tokens or 0,
            cached_tokens=read.cached_tokens or 0,
            cache_write_tokens=read.cache_write_tokens or 0,
            reasoning_tokens=made.reasoning_tokens or 0,
        ).clamped()


class Incomplete(msgspec.Struct, gc=False):
    reason: str | None = None


class Response(msgspec.Struct, gc=False):
    id: str | None = None
    status: str | None = None
    error: Any = None
    incomplete_details: Incomplete | None = None
    usage: Counts | None = None
    output: list[msgspec.Raw] | None = None


decode_event = msgspec.json.Decoder(Event).decode
decode_kind = msgspec.json.Decoder(Kind).decode
decode_item = msgspec.json.Decoder(Item).decode
decode_response = msgspec.json.Decoder(Response).decode
