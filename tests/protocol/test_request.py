import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from responses_ws.protocol.errors import InvalidRequest
from responses_ws.protocol.request import Request, check_chosen_tool, check_request, decode_request

BASE = {"model": "m", "input": "hi"}
MAX_TOOLS = 4


def decode(**fields: Any) -> Request:
    return decode_request(json.dumps({**BASE, **fields}).encode())


def check(**fields: Any) -> None:
    check_request(decode(**fields), max_tools=MAX_TOOLS, max_schema_bytes=1000)


def refusal_of(**fields: Any) -> tuple[str | None, str | None]:
    """(code, param)"""
    with pytest.raises(InvalidRequest) as caught:
        check(**fields)
    return caught.value.code, caught.value.param


@pytest.mark.parametrize("field", [field for field in Request.__struct_fields__ if field not in BASE])
def test_every_optional_field_may_be_null(field: str) -> None:
    assert decode(**{field: None}) == decode()
    check(**{field: None})


def test_unknown_fields_are_ignored() -> None:
    sent_by_codex = {"prompt_cache_options": {"a": 1}, "stream_options": {"include_obfuscation": True}, "stream_id": 5}

    assert decode(**sent_by_codex) == decode()


def test_what_clients_send_is_taken() -> None:
    check(
        include=[],
        stream=True,
        store=False,
        parallel_tool_calls=True,
        reasoning={"effort": "high", "summary": "auto", "context": "all_turns"},
        text={"verbosity": "low"},
        prompt_cache_key="k",
        tool_choice="auto",
        temperature=1,
    )


JSON_TYPES: dict[str, Any] = {
    "str": "x",
    "int": 1,
    "float": 1.5,
    "bool": True,
    "array": [1],
    "object": {"a": 1, "model": "m"},
}
TAKES = {
    "model": {"str"},
    "input": {"str"},
    "instructions": {"str"},
    "previous_response_id": {"str"},
    "conversation": {"str", "object"},
    "store": {"bool"},
    "include": set[str](),
    "tools": set[str](),
    "tool_choice": {"str", "object"},
    "parallel_tool_calls": {"bool"},
    "max_tool_calls": {"int"},
    "max_output_tokens": {"int"},
    "reasoning": {"object"},
    "text": {"object"},
    "temperature": {"int", "float"},
    "top_p": {"int"},
    "top_logprobs": {"int"},
    "frequency_penalty": {"int", "float"},
    "presence_penalty": {"int", "float"},
    "truncation": set[str](),
    "context_management": set[str](),
    "metadata": set[str](),
    "service_tier": {"str"},
    "moderation": {"object"},
    "safety_identifier": {"str"},
    "user": {"str"},
    "prompt": {"object"},
    "prompt_cache_key": {"str"},
    "client_metadata": set(JSON_TYPES),
    "background": {"bool"},
    "stream": {"bool"},
    "generate": {"bool"},
}


def test_the_table_of_types_knows_every_field() -> None:
    assert TAKES.keys() == set(Request.__struct_fields__)


@pytest.mark.parametrize("field", TAKES)
@pytest.mark.parametrize("kind", JSON_TYPES)
def test_a_wrong_type_is_refused_by_name(field: str, kind: str) -> None:
    body = json.dumps({**BASE, field: JSON_TYPES[kind]}).encode()
    if kind in TAKES[field]:
        decode_request(body)
        return

    with pytest.raises(InvalidRequest) as caught:
        decode_request(body)

    error = caught.value
    values_are_wrong = {("truncation", "str"), ("top_p", "float")}
    assert error.code == ("invalid_value" if (field, kind) in values_are_wrong else "invalid_type")
    inside = {"include", "tools", "input", "context_management"} if kind == "array" else set()
    assert error.param == (f"{field}[0]" if field in inside else field)


EDGES: dict[str, tuple[list[Any], list[Any]]] = {
    "temperature": ([0, 2, 2.0], [-0.1, 2.1]),
    "top_p": ([0, 1, 0.5], [-0.1, 1.1]),
    "top_logprobs": ([0, 20], [-1, 21]),
    "frequency_penalty": ([-2, 2], [-2.1, 2.1]),
    "presence_penalty": ([-2, 2], [-2.1, 2.1]),
    "max_output_tokens": ([1, 2**31 - 1], [0, -1, 2**31, 10**30]),
    "max_tool_calls": ([1, 2**31 - 1], [0, 2**31]),
    "model": (["m", "m" * 200], ["", "m" * 201]),
    "safety_identifier": (["", "s" * 128], ["s" * 129]),
    "truncation": (["auto", "disabled"], ["", "on"]),
    "metadata": (
        [{}, {str(n): "v" for n in range(16)}, {"k" * 64: "v" * 512}],
        [{str(n): "v" for n in range(17)}, {"k" * 65: "v"}, {"k": "v" * 513}],
    ),
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field in EDGES for value in EDGES[field][0]])
def test_the_edge_of_a_range_is_inside(field: str, value: Any) -> None:
    check(**{field: value})


@pytest.mark.parametrize(("field", "value"), [(field, value) for field in EDGES for value in EDGES[field][1]])
def test_beyond_the_edge_is_refused_by_name(field: str, value: Any) -> None:
    assert refusal_of(**{field: value}) == ("invalid_value", field)


HAZARDS: dict[str, tuple[bytes, tuple[str, str | None]]] = {
    "nothing": (b"", ("invalid_json", None)),
    "blanks": (b" \n", ("invalid_json", None)),
    "half an object": (b'{"model":"m"', ("invalid_json", None)),
    "more behind it": (b"{}{}", ("invalid_json", None)),
    "a byte order mark": (b"\xef\xbb\xbf{}", ("invalid_json", None)),
    "an array": (b"[]", ("invalid_type", None)),
    "a string": (b'"x"', ("invalid_type", None)),
    "null": (b"null", ("invalid_type", None)),
    "NaN": (b'{"temperature":NaN}', ("invalid_json", None)),
    "Infinity": (b'{"metadata":{"a":-Infinity}}', ("invalid_json", None)),
    "a number out of range": (b'{"temperature":1e999}', ("invalid_value", "temperature")),
    "the same inside": (b'{"text":{"x":-1e999}}', ("invalid_value", "text")),
    "5,000 digits": (b'{"max_output_tokens":1' + b"0" * 5000 + b"}", ("invalid_value", "max_output_tokens")),
    "the same inside an item": (b'{"input":[{"x":1' + b"0" * 5000 + b"}]}", ("invalid_value", "input[0]")),
    "deep in a field": (b'{"text":{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}}", ("invalid_json", None)),
    "deep in an unknown field": (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", ("invalid_json", None)),
    "deep and never closed": (b'{"text":' + b'{"a":' * 100_000, ("invalid_json", None)),
    "bytes that are no UTF-8": (b'{"model":"\xff"}', ("invalid_json", None)),
    "a surrogate in UTF-8": (b'{"model":"\xed\xa0\x80"}', ("invalid_json", None)),
    "a lone surrogate": (b'{"model":"\\ud800"}', ("invalid_json", None)),
    "the second half first": (b'{"model":"\\udc00\\ud800"}', ("invalid_json", None)),
    "a comment": (b'{"model":"m"/**/}', ("invalid_json", None)),
    "a comma too many": (b'{"model":"m",}', ("invalid_json", None)),
    "a line break in a string": (b'{"model":"a\nb"}', ("invalid_json", None)),
}


@pytest.mark.parametrize(("body", "refusal"), HAZARDS.values(), ids=HAZARDS)
def test_a_hazard_is_an_invalid_request(body: bytes, refusal: tuple[str, str | None]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_request(body)

    error = caught.value
    assert (error.code, error.param) == refusal
    assert len(error.message) < 300


def test_the_last_of_duplicate_keys_counts_and_is_all_that_is_left() -> None:
    request = decode_request(b'{"model":"a","metadata":{"k":"1","k":"2"},"model":"b"}')

    assert (request.model, request.metadata) == ("b", {"k": "2"})


def test_a_nul_in_a_text_is_a_character_like_others() -> None:
    assert decode_request(b'{"input":"a\\u0000b"}').input == "a\0b"


@given(st.binary(max_size=40) | st.text(max_size=40).map(lambda text: json.dumps({"model": text}).encode()))
def test_no_body_breaks_the_decoder(body: bytes) -> None:
    try:
        decode_request(body)
    except InvalidRequest as error:
        assert error.status == 400


MISSING = "missing_required_parameter"
RULES: dict[str, tuple[dict[str, Any], tuple[str, str | None]]] = {
    "no model": ({"model": None}, (MISSING, "model")),
    "no input": ({"input": None}, (MISSING, "input")),
    "empty input": ({"input": ""}, (MISSING, "input")),
    "no items": ({"input": []}, (MISSING, "input")),
    "both contexts": (
        {"previous_response_id": "resp_a", "conversation": "conv_a"},
        ("mutually_exclusive_parameters", None),
    ),
    "conversation without id": ({"conversation": {}}, (MISSING, "conversation.id")),
    "conversation id no string": ({"conversation": {"id": 5}}, ("invalid_type", "conversation.id")),
    "background unstored": ({"background": True, "store": False}, ("invalid_value", "store")),
    "verbosity": ({"text": {"verbosity": "loud"}}, ("invalid_value", "text.verbosity")),
    "verbosity's type": ({"text": {"verbosity": 5}}, ("invalid_type", "text.verbosity")),
    "effort's type": ({"reasoning": {"effort": 5}}, ("invalid_type", "reasoning.effort")),
    "summary": ({"reasoning": {"summary": "long"}}, ("invalid_value", "reasoning.summary")),
    "a way of managing the context": (
        {"context_management": [{"type": "oblivion"}]},
        ("invalid_value", "context_management[0].type"),
    ),
    "no way of managing the context": (
        {"context_management": [{}]},
        ("missing_required_parameter", "context_management[0].type"),
    ),
    "threshold": (
        {"context_management": [{"type": "compaction", "compact_threshold": 0}]},
        ("invalid_value", "context_management[0].compact_threshold"),
    ),
    "threshold's type": (
        {"context_management": [{"type": "compaction", "compact_threshold": True}]},
        ("invalid_value", "context_management[0].compact_threshold"),
    ),
    "format's type": ({"text": {"format": "json"}}, ("invalid_type", "text.format")),
    "format without type": ({"text": {"format": {}}}, (MISSING, "text.format.type")),
    "unknown format": ({"text": {"format": {"type": "xml"}}}, ("invalid_value", "text.format.type")),
}


@pytest.mark.parametrize(("fields", "refusal"), RULES.values(), ids=RULES)
def test_a_broken_rule_is_refused_by_name(fields: dict[str, Any], refusal: tuple[str, str | None]) -> None:
    assert refusal_of(**fields) == refusal


GIVEN_CONTEXT = {
    "continued without input": {"previous_response_id": "resp_a", "input": None},
    "continued with an empty text": {"previous_response_id": "resp_a", "input": ""},
    "continued with no items": {"previous_response_id": "resp_a", "input": []},
    "a warm-up of tools only": {"generate": False, "input": []},
    "a conversation without input": {"conversation": "conv_a", "input": None},
    "a conversation as an object": {"conversation": {"id": "conv_a"}, "input": "hi"},
    "a prompt without input": {"prompt": {"id": "pmpt_a"}, "input": None},
    "background false": {"background": False},
    "background unstored false": {"background": False, "store": False},
    "background": {"background": True},
    "an effort of an open model": {"reasoning": {"effort": "ultra"}},
}


@pytest.mark.parametrize("fields", GIVEN_CONTEXT.values(), ids=GIVEN_CONTEXT)
def test_a_request_that_makes_sense_passes(fields: dict[str, Any]) -> None:
    check(**fields)


MALFORMED_IDS = {
    "empty": "",
    "with a NUL": "resp_\0",
    "with a blank": "resp a",
    "not ASCII": "resp_é",
    "a line break behind": "resp_a\n",
    "too long": "r" * 129,
}


@pytest.mark.parametrize("response_id", MALFORMED_IDS.values(), ids=MALFORMED_IDS)
def test_a_malformed_id_is_not_found_and_no_store_is_asked(response_id: str) -> None:
    assert refusal_of(previous_response_id=response_id) == ("previous_response_not_found", "previous_response_id")


def test_an_endless_id_is_not_echoed_whole() -> None:
    with pytest.raises(InvalidRequest) as caught:
        check(previous_response_id="r" * 1_000_000)

    assert len(caught.value.message) < 200


def function(name: Any = "f", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, **fields}


FINE_TOOLS: dict[str, list[dict[str, Any]]] = {
    "none": [],
    "bare function": [function()],
    "function with nulls": [function(parameters=None, strict=None, description=None)],
    "whole function": [function("a-b_C9", parameters={"type": "object"}, strict=False, description="d", x=1)],
    "longest name": [function("f" * 128)],
    "custom": [{"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark"}}],
    "hosted": [{"type": "web_search"}, {"type": "image_generation"}, {"type": "mcp", "server_url": "https://x"}],
    "of a kind to come": [{"type": "telepathy", "name": 5, "parameters": "?"}],
    "namespace": [{"type": "namespace", "name": "crm", "description": "d", "tools": [function(), function("g")]}],
    "namespace without tools": [{"type": "namespace", "name": "crm"}],
    "namespace in a namespace": [
        {"type": "namespace", "name": "a", "tools": [{"type": "namespace", "name": 5, "tools": 5}]}
    ],
    "at the limit": [function(f"f{n}") for n in range(MAX_TOOLS)],
}


@pytest.mark.parametrize("tools", FINE_TOOLS.values(), ids=FINE_TOOLS)
def test_tools_that_pass(tools: list[dict[str, Any]]) -> None:
    check(tools=tools)


def in_namespace(*tools: Any, name: Any = "crm") -> list[dict[str, Any]]:
    return [{"type": "namespace", "name": name, "tools": list(tools)}]


BAD_TOOLS: dict[str, tuple[list[Any], tuple[str, str]]] = {
    "no object": (["f"], ("invalid_type", "tools[0]")),
    "no type": ([function(), {"name": "f"}], (MISSING, "tools[1].type")),
    "type no string": ([{"type": 5}], ("invalid_type", "tools[0].type")),
    "no name": ([{"type": "function"}], (MISSING, "tools[0].name")),
    "nested as in chat": ([{"type": "function", "function": {"name": "f"}}], (MISSING, "tools[0].name")),
    "name no string": ([function(5)], ("invalid_type", "tools[0].name")),
    "empty name": ([function("")], ("invalid_value", "tools[0].name")),
    "name with a blank": ([function("a b")], ("invalid_value", "tools[0].name")),
    "name with a line break": ([function("a\n")], ("invalid_value", "tools[0].name")),
    "name too long": ([function("f" * 129)], ("invalid_value", "tools[0].name")),
    "custom without name": ([{"type": "custom"}], (MISSING, "tools[0].name")),
    "parameters no object": ([function(parameters=[])], ("invalid_type", "tools[0].parameters")),
    "parameters false": ([function(parameters=False)], ("invalid_type", "tools[0].parameters")),
    "strict no boolean": ([function(strict="yes")], ("invalid_type", "tools[0].strict")),
    "description no string": ([function(description=["d"])], ("invalid_type", "tools[0].description")),
    "namespace without name": ([{"type": "namespace", "tools": []}], (MISSING, "tools[0].name")),
    "namespace's tools no array": (
        [{"type": "namespace", "name": "a", "tools": {}}],
        ("invalid_type", "tools[0].tools"),
    ),
    "no object in a namespace": (in_namespace(5), ("invalid_type", "tools[0].tools[0]")),
    "no type in a namespace": (in_namespace(function(), {}), (MISSING, "tools[0].tools[1].type")),
    "bad name in a namespace": (in_namespace(function("a.b")), ("invalid_value", "tools[0].tools[0].name")),
    "over the limit": ([function()] * (MAX_TOOLS + 1), ("invalid_value", "tools")),
    "over the limit in a namespace": (in_namespace(*[function()] * MAX_TOOLS), ("invalid_value", "tools")),
}


@pytest.mark.parametrize(("tools", "refusal"), BAD_TOOLS.values(), ids=BAD_TOOLS)
def test_tools_that_are_refused(tools: list[Any], refusal: tuple[str, str]) -> None:
    assert refusal_of(tools=tools) == refusal


def test_no_depth_of_namespaces_breaks_the_check() -> None:
    tool: dict[str, Any] = function()
    for _ in range(300):
        tool = {"type": "namespace", "name": "n", "tools": [tool]}

    check_request(Request(model="m", input="hi", tools=[tool]), max_tools=1000, max_schema_bytes=1000)


FINE_CHOICES: dict[str, Any] = {
    "auto": "auto",
    "none": "none",
    "required": "required",
    "function": {"type": "function", "name": "f"},
    "custom": {"type": "custom", "name": "c"},
    "in a namespace": {"type": "function", "name": "g", "namespace": "crm"},
    "hosted": {"type": "web_search_preview"},
    "mcp": {"type": "mcp", "server_label": "x"},
    "allowed": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]},
}
CHOOSABLE = [function(), {"type": "custom", "name": "c"}, *in_namespace(function("g"))]


@pytest.mark.parametrize("choice", FINE_CHOICES.values(), ids=FINE_CHOICES)
def test_choices_that_pass(choice: Any) -> None:
    check(tools=CHOOSABLE, tool_choice=choice)


ALLOWED = {"type": "allowed_tools", "mode": "auto", "tools": []}
BAD_CHOICES: dict[str, tuple[Any, tuple[str, str]]] = {
    "unknown word": ("any", ("invalid_value", "tool_choice")),
    "empty": ("", ("invalid_value", "tool_choice")),
    "no type": ({"name": "f"}, (MISSING, "tool_choice.type")),
    "type no string": ({"type": 1}, ("invalid_type", "tool_choice.type")),
    "no name": ({"type": "function"}, (MISSING, "tool_choice.name")),
    "nested as in chat": ({"type": "function", "function": {"name": "f"}}, (MISSING, "tool_choice.name")),
    "name no string": ({"type": "custom", "name": 1}, ("invalid_type", "tool_choice.name")),
    "allowed without mode": ({"type": "allowed_tools", "tools": []}, (MISSING, "tool_choice.mode")),
    "allowed in no mode": ({**ALLOWED, "mode": "none"}, ("invalid_value", "tool_choice.mode")),
    "allowed without tools": ({"type": "allowed_tools", "mode": "auto"}, (MISSING, "tool_choice.tools")),
    "allowed tools no array": ({**ALLOWED, "tools": {}}, ("invalid_type", "tool_choice.tools")),
    "an allowed tool no object": ({**ALLOWED, "tools": ["f"]}, ("invalid_type", "tool_choice.tools[0]")),
    "an allowed tool without type": ({**ALLOWED, "tools": [{}]}, (MISSING, "tool_choice.tools[0].type")),
}


@pytest.mark.parametrize(("choice", "refusal"), BAD_CHOICES.values(), ids=BAD_CHOICES)
def test_choices_that_are_refused(choice: Any, refusal: tuple[str, str]) -> None:
    assert refusal_of(tools=CHOOSABLE, tool_choice=choice) == refusal


def test_a_chosen_tool_is_one_of_those_offered() -> None:
    for choice in ("auto", None, {"type": "web_search"}, {"type": "function", "name": "f"}):
        check_chosen_tool(choice, {"f"})
    with pytest.raises(InvalidRequest) as caught:
        check_chosen_tool({"type": "custom", "name": "x"}, {"f"})

    assert (caught.value.code, caught.value.param) == ("invalid_value", "tool_choice")


def test_a_request_that_is_only_counted_needs_nothing() -> None:
    check_request(Request(), max_tools=MAX_TOOLS, max_schema_bytes=1000, is_counted=True)


SCHEMA = {"type": "json_schema", "name": "answer", "schema": {"type": "object"}}


@pytest.mark.parametrize(
    "text_format",
    [None, {"type": "text"}, {"type": "json_object"}, SCHEMA, {**SCHEMA, "name": "n" * 64, "strict": True}],
    ids=["null", "text", "object", "schema", "strict"],
)
def test_formats_that_pass(text_format: Any) -> None:
    check(text={"format": text_format})


BAD_FORMATS: dict[str, tuple[dict[str, Any], tuple[str, str]]] = {
    "no name": ({"name": None}, (MISSING, "text.format.name")),
    "name too long": ({"name": "n" * 65}, ("invalid_value", "text.format.name")),
    "name with a dot": ({"name": "a.b"}, ("invalid_value", "text.format.name")),
    "no schema": ({"schema": None}, (MISSING, "text.format.schema")),
    "schema no object": ({"schema": "{}"}, ("invalid_type", "text.format.schema")),
    "strict no boolean": ({"strict": 1}, ("invalid_type", "text.format.strict")),
    "nested as in chat": ({"name": None, "json_schema": {"name": "a"}}, (MISSING, "text.format.name")),
}


@pytest.mark.parametrize(("change", "refusal"), BAD_FORMATS.values(), ids=BAD_FORMATS)
def test_schema_formats_that_are_refused(change: dict[str, Any], refusal: tuple[str, str]) -> None:
    assert refusal_of(text={"format": {**SCHEMA, **change}}) == refusal


def test_storing_and_sampling_are_the_default() -> None:
    assert (decode().is_stored, decode().is_warmup) == (True, False)
    assert (decode(store=True).is_stored, decode(store=False).is_stored) == (True, False)
    assert (decode(generate=True).is_warmup, decode(generate=False).is_warmup) == (False, True)


def test_there_is_no_background_on_a_socket() -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_request(decode(background=True), max_tools=MAX_TOOLS, max_schema_bytes=1000, is_on_socket=True)

    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "background")
