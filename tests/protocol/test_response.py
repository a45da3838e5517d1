import json
from typing import Any

import pytest

from responses_ws.protocol.request import Request
from responses_ws.protocol.response import response_object

from . import shapes
from .grammar import check_types


def made(**fields: Any) -> dict[str, Any]:
    return response_object(Request(**{"model": "m", **fields}), response_id="resp_1", created_at=1000)


FUNCTION = {"type": "function", "name": "f"}
ECHOES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing given": ({}, {"temperature": 1.0, "top_p": 1.0, "store": True, "tool_choice": "auto", "metadata": {}}),
    "numbers": (
        {"temperature": 0, "top_p": 0, "top_logprobs": 3, "frequency_penalty": 1, "presence_penalty": -1},
        {"temperature": 0, "top_p": 0, "top_logprobs": 3, "frequency_penalty": 1, "presence_penalty": -1},
    ),
    "limits": (
        {"max_output_tokens": 5, "max_tool_calls": 2, "truncation": "auto"},
        {"max_output_tokens": 5, "max_tool_calls": 2, "truncation": "auto"},
    ),
    "who asks": (
        {"user": "u", "safety_identifier": "s", "prompt_cache_key": "k", "metadata": {"a": "b"}},
        {"user": "u", "safety_identifier": "s", "prompt_cache_key": "k", "metadata": {"a": "b"}},
    ),
    "instructions": ({"instructions": "Be brief."}, {"instructions": "Be brief."}),
    "previous": ({"previous_response_id": "resp_0"}, {"previous_response_id": "resp_0"}),
    "not stored": ({"store": False}, {"store": False}),
    "one call at a time": ({"parallel_tool_calls": False}, {"parallel_tool_calls": False}),
    "effort": ({"reasoning": {"effort": "high"}}, {"reasoning": {"effort": "high", "summary": None}}),
    "verbosity": ({"text": {"verbosity": "low"}}, {"text": {"format": {"type": "text"}, "verbosity": "low"}}),
    "nulls inside": (
        {"text": {"format": None, "verbosity": None}},
        {"text": {"format": {"type": "text"}, "verbosity": "medium"}},
    ),
    "tier fast": ({"service_tier": "fast"}, {"service_tier": "priority"}),
    "tier auto": ({"service_tier": "auto"}, {"service_tier": "default"}),
    "bare function": (
        {"tools": [FUNCTION]},
        {"tools": [{**FUNCTION, "description": None, "parameters": None, "strict": True}]},
    ),
    "whole function": (
        {"tools": [{**FUNCTION, "description": "d", "parameters": {"a": 1}, "strict": False, "async": True}]},
        {"tools": [{**FUNCTION, "description": "d", "parameters": {"a": 1}, "strict": False, "async": True}]},
    ),
    "other tools, as they came": (
        {"tools": [{"type": "custom", "name": "c"}, {"type": "web_search"}]},
        {"tools": [{"type": "custom", "name": "c"}, {"type": "web_search"}]},
    ),
    "choice": (
        {"tool_choice": {"type": "function", "name": "f"}},
        {"tool_choice": {"type": "function", "name": "f"}},
    ),
}


@pytest.mark.parametrize(("fields", "echo"), ECHOES.values(), ids=ECHOES)
def test_the_request_is_echoed_with_defaults_filled_in(fields: dict[str, Any], echo: dict[str, Any]) -> None:
    response = made(**fields)

    assert response == {**made(), **echo}
    shapes.check_response(response)
    check_types({"type": "response.created", "sequence_number": 0, "response": response})


def test_socket_fields_are_not_echoed() -> None:
    assert made(generate=False, stream=True, background=False, include=["x"]) == made()


def test_the_request_s_own_tools_are_left_as_they_came() -> None:
    """They are compared with the next request's to see whether they changed."""
    request = Request(model="m", tools=[dict(FUNCTION)])

    response_object(request, response_id="resp_1", created_at=1)

    assert request.tools == [FUNCTION]


def test_the_official_client_reads_it() -> None:
    from openai.types.responses import Response

    response = Response.model_validate_json(json.dumps(made(tools=[FUNCTION])), strict=True)

    assert (response.id, response.status, response.output_text) == ("resp_1", "in_progress", "")
