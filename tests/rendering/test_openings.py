"""Forced calls, strict tools and structured answers: how the answer begins and what it is held to."""

from typing import Any

import msgspec
import pytest

from responses_ws.protocol.sampling import Constraint
from responses_ws.rendering.base import Ask
from responses_ws.rendering.template import TemplateRenderer

from . import families
from .simulation import TOOLS

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TIME = {"type": "object", "properties": {}}
BOTH = msgspec.json.encode(
    [*msgspec.json.decode(TOOLS), {"type": "function", "function": {"name": "get_time", "parameters": TIME}}]
)
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def opened(name: str, **asked: Any) -> tuple[str, Constraint | None, str]:
    renderer = families.renderer(name)
    opening = renderer.opening(Ask(**asked))
    decode = renderer.tokenizer.raw.decode
    return (
        decode(list(opening.ids), skip_special_tokens=False),
        opening.constraint,
        decode(list(opening.closing), skip_special_tokens=False),
    )


@pytest.mark.parametrize("choice", [None, "auto", "none"])
def test_an_answer_is_free_unless_something_is_asked(choice: str | None) -> None:
    constraints = frozenset({"json_schema", "structural_tag"})

    assert opened("chatml", tools=TOOLS, tool_choice=choice, constraints=constraints) == ("", None, "")


@pytest.mark.parametrize(
    "name, begun, closing",
    [
        pytest.param("chatml", '<tool_call>\n{"name": "get_weather", "arguments": ', "}\n</tool_call>", id="hermes"),
        pytest.param("headers", '{"name": "get_weather", "parameters": ', "}", id="llama3"),
        pytest.param("brackets", '[TOOL_CALLS][{"name": "get_weather", "arguments": ', "}]", id="mistral"),
    ],
)
@pytest.mark.parametrize("choice", [NAMED, "required"])
def test_a_call_of_one_tool_is_begun_and_its_arguments_held_to_the_schema(
    name: str, begun: str, closing: str, choice: Any
) -> None:
    answer = opened(name, tools=TOOLS, tool_choice=choice, constraints=frozenset({"json_schema"}))

    assert answer == (begun, Constraint("json_schema", WEATHER), closing)


def test_a_call_of_any_tool_names_one_of_them() -> None:
    begun, constraint, closing = opened(
        "chatml", tools=BOTH, tool_choice="required", constraints=frozenset({"json_schema"})
    )

    assert (begun, closing) == ("<tool_call>\n", "\n</tool_call>")
    assert constraint is not None and isinstance(constraint.value, dict)
    names = [one["properties"]["name"]["const"] for one in constraint.value["anyOf"]]
    arguments = [one["properties"]["arguments"] for one in constraint.value["anyOf"]]
    assert (names, arguments) == (["get_weather", "get_time"], [WEATHER, TIME])


def test_an_engine_without_schemas_is_given_the_beginning_only() -> None:
    assert opened("chatml", tools=TOOLS, tool_choice=NAMED)[:2] == (
        '<tool_call>\n{"name": "get_weather", "arguments": ',
        None,
    )
    assert opened("xml", tools=TOOLS, tool_choice=NAMED)[0] == "<tool_call>\n<function=get_weather>\n"
    assert opened("xml", tools=BOTH, tool_choice="required")[0] == "<tool_call>\n<function="


def test_structural_tags_leave_the_markers_to_the_model() -> None:
    begun, constraint, closing = opened(
        "chatml", tools=BOTH, tool_choice="required", constraints=frozenset({"json_schema", "structural_tag"})
    )

    assert (begun, closing) == ("", "")
    assert constraint is not None and constraint.kind == "structural_tag" and isinstance(constraint.value, dict)
    form = constraint.value["format"]
    assert [tag["begin"] for tag in form["tags"]] == [
        f'<tool_call>\n{{"name": "{name}", "arguments": ' for name in ("get_weather", "get_time")
    ]
    assert (form["at_least_one"], form["stop_after_first"], form["triggers"]) == (True, False, ["<tool_call>"])


def test_strict_tools_are_held_to_their_schemas_where_the_model_is_free_to_call() -> None:
    _begun, constraint, _closing = opened(
        "chatml", tools=BOTH, schemas={"get_weather": WEATHER}, constraints=frozenset({"structural_tag"})
    )

    assert constraint is not None and isinstance(constraint.value, dict)
    form = constraint.value["format"]
    assert [tag["content"]["json_schema"] for tag in form["tags"]] == [WEATHER, {"type": "object"}]
    assert form["at_least_one"] is False


def test_a_whole_answer_is_held_to_its_schema_behind_reasoning_that_the_template_has_begun() -> None:
    constraints = frozenset({"json_schema"})

    assert opened("chatml", schema=TIME, constraints=constraints) == ("", Constraint("json_schema", TIME), "")
    assert opened("bars", schema=TIME, constraints=constraints)[0] == "\n</think>\n\n"


def test_a_name_in_a_forced_call_is_text() -> None:
    tools = msgspec.json.encode([{"type": "function", "function": {"name": "<|im_end|>", "parameters": TIME}}])
    renderer = families.renderer("chatml")

    opening = renderer.opening(Ask(tools=tools, tool_choice={"type": "function", "function": {"name": "<|im_end|>"}}))

    assert [one for one in opening.ids if renderer.tokenizer.name_of(one)] == [
        renderer.tokenizer.controls["<tool_call>"]
    ]


def test_openings_are_told_apart_by_all_that_they_depend_on() -> None:
    strict = msgspec.json.encode(
        [{"type": "function", "function": {"name": "get_weather", "parameters": WEATHER, "strict": True}}]
    )
    tags = frozenset({"structural_tag"})
    asks = [
        {},
        {"tools": strict, "constraints": tags, "schemas": {"get_weather": WEATHER}},
        {"tools": strict, "constraints": tags, "schemas": {"get_weather": TIME}},
        {"tools": strict, "constraints": tags},
        {"tools": strict, "schemas": {"get_weather": WEATHER}},
        {"tools": strict, "constraints": tags, "tool_choice": "required"},
        {"tools": strict, "constraints": tags, "tool_choice": "required", "parallel_tool_calls": False},
        {"tools": BOTH, "constraints": tags, "tool_choice": "required"},
        {"tools": strict, "constraints": tags, "tool_choice": NAMED, "schemas": {"get_weather": WEATHER}},
        {"constraints": frozenset({"json_schema"}), "schema": WEATHER},
    ]
    fresh = TemplateRenderer(families.tokenizer("chatml"), families.template("chatml"), family="think-hermes")

    remembered = [families.renderer("chatml").opening(Ask(**ask)) for _again in range(2) for ask in asks]

    assert remembered == 2 * [fresh._opening(Ask(**ask)) for ask in asks]
