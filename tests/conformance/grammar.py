"""What holds for the events of any turn, whatever the client asked and whoever answered."""

from itertools import groupby
from typing import Any

from openai.types.responses import Response, ResponsesServerEvent, ResponseStreamEvent
from pydantic import TypeAdapter

Event = dict[str, Any]

_socket_event = TypeAdapter(ResponsesServerEvent)
_stream_event = TypeAdapter(ResponseStreamEvent)

# Source: the required keys of the Open Responses schema, which is stricter than the types of `openai`.
REQUIRED = {
    *("id", "object", "created_at", "completed_at", "status", "incomplete_details", "model", "previous_response_id"),
    *("instructions", "output", "error", "tools", "tool_choice", "truncation", "parallel_tool_calls", "text", "top_p"),
    *("presence_penalty", "frequency_penalty", "top_logprobs", "temperature", "reasoning", "usage"),
    *("max_output_tokens", "max_tool_calls", "store", "background", "service_tier", "safety_identifier"),
    "prompt_cache_key",
}
NEVER_NULL = {
    *("id", "object", "created_at", "status", "model", "output", "tools", "tool_choice", "truncation", "text", "top_p"),
    *("parallel_tool_calls", "presence_penalty", "frequency_penalty", "top_logprobs", "temperature", "store"),
    *("background", "service_tier"),
}
# delta event → (done event, its field)
PIECES = {
    "response.output_text.delta": ("response.output_text.done", "text"),
    "response.refusal.delta": ("response.refusal.done", "refusal"),
    "response.reasoning_text.delta": ("response.reasoning_text.done", "text"),
    "response.reasoning_summary_text.delta": ("response.reasoning_summary_text.done", "text"),
    "response.function_call_arguments.delta": ("response.function_call_arguments.done", "arguments"),
    "response.custom_tool_call_input.delta": ("response.custom_tool_call_input.done", "input"),
    "response.mcp_call_arguments.delta": ("response.mcp_call_arguments.done", "arguments"),
}
ENDS = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
}


def check_turn(events: list[Event], *, stream_id: str | None = None) -> dict[str, Any]:
    """Check all events of a turn that got as far as ``response.created``; gives its final Response."""
    for event in events:
        _socket_event.validate_python(event)
        _stream_event.validate_python(event)
        assert event.get("stream_id") == stream_id
        assert ("stream_id" in event) == (stream_id is not None)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"] for event in events]
    assert kinds[0] == "response.created"
    assert kinds[1] == "response.in_progress"
    assert [kind for kind in kinds if kind in ENDS] == kinds[-1:]
    lifecycle = [event["response"] for event in events if "response" in event]
    assert len({response["id"] for response in lifecycle}) == 1
    for response in lifecycle:
        check_response(response)
    for response in lifecycle[:-1]:
        assert response["status"] == "in_progress"
        assert response["output"] == []
        assert response["usage"] is None
    final = lifecycle[-1]
    assert final["status"] == ENDS[kinds[-1]]
    _check_items(events, final)
    _check_pieces(events)
    return final


def check_response(response: dict[str, Any]) -> None:
    """The shape of a Response object."""
    Response.model_validate(response)
    assert response.keys() >= REQUIRED
    assert not {name for name in NEVER_NULL if response[name] is None}
    assert response["created_at"] % 1 == 0
    assert response["text"]["verbosity"] is not None
    assert response["reasoning"].keys() >= {"effort", "summary"}
    assert (response["completed_at"] is not None) == (response["status"] == "completed")
    for tool in response["tools"]:
        assert tool["type"] != "function" or tool.keys() >= {"name", "description", "parameters", "strict"}
    usage = response["usage"]
    if usage is not None:
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
        assert 0 <= usage["input_tokens_details"]["cached_tokens"] <= usage["input_tokens"]
        assert 0 <= usage["output_tokens_details"]["reasoning_tokens"] <= usage["output_tokens"]
        assert isinstance(usage["input_tokens_details"]["cache_write_tokens"], int)


def _check_items(events: list[Event], final: dict[str, Any]) -> None:
    """Each item is added once, done once, and stands in the final output as it was when done."""
    added = [event for event in events if event["type"] == "response.output_item.added"]
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert [event["output_index"] for event in added] == list(range(len(added)))
    if final["status"] != "failed":
        assert len(done) == len(added)
        assert [event["item"] for event in sorted(done, key=lambda event: event["output_index"])] == final["output"]
    began = {event["output_index"]: event["item"] for event in added}
    for event in done:
        first, last = began[event["output_index"]], event["item"]
        for name in ("id", "type", "call_id", "name", "namespace", "role"):
            assert first.get(name) == last.get(name)
        assert None not in last.values(), "what is absent is left out"
    assert len({item["id"] for item in began.values()}) == len(began)
    for event in events:
        if "item_id" in event:
            assert event["item_id"] == began[event["output_index"]]["id"]


def _check_pieces(events: list[Event]) -> None:
    """Deltas add up to the done value, parts to the item's content."""

    def place(event: Event) -> tuple[int, int]:
        return event["output_index"], event.get("content_index", event.get("summary_index", 0))

    pieces = sorted((event for event in events if "item_id" in event), key=place)
    for _, group in groupby(pieces, key=place):
        told = list(group)
        kinds = [event["type"] for event in told]
        for delta, (done, field) in PIECES.items():
            if done in kinds:
                ends = [event for event in told if event["type"] == done]
                assert len(ends) == 1
                assert "".join(event["delta"] for event in told if event["type"] == delta) == ends[0][field]
        opened = [event["part"] for event in told if event["type"].endswith("_part.added")]
        closed = [event["part"] for event in told if event["type"].endswith("_part.done")]
        assert len(closed) <= len(opened) <= 1
        if closed:
            items = {
                event["output_index"]: event["item"] for event in events if event["type"] == "response.output_item.done"
            }
            index, position = place(told[0])
            field = "summary" if closed[0]["type"] == "summary_text" else "content"
            assert items[index][field][position] == closed[0]
            assert opened[0]["type"] == closed[0]["type"]
