"""What a request asks of the engine, and what comes out if the engine does otherwise."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from responses_ws.connection.chain import Chains
from responses_ws.engines.base import Capabilities, ChatRequest
from responses_ws.engines.registry import registry
from responses_ws.engines.script import pieces_of
from responses_ws.models import UsageRecord
from responses_ws.protocol.errors import InvalidRequest
from responses_ws.serving.admission import Principal
from responses_ws.testing import Call, Plan, ScriptedEngine
from tests.protocol import grammar

from .turns import asked, events_of, response_of

A = {"type": "function", "name": "a", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}
B = {"type": "function", "name": "b"}
PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


class Wilful(ScriptedEngine):
    """Can what it is said to, and does what its answers say, whatever the request limits."""

    def __init__(self, *answers: str | Plan, can: Mapping[str, Any] | None = None) -> None:
        super().__init__(*answers)
        self.capabilities = Capabilities(exact_usage=True, **(can or {}))

    def chat(self, request: ChatRequest) -> Any:
        self.limit = request.max_output_tokens
        return super().chat(msgspec.structs.replace(request, max_output_tokens=None))


def installed(*answers: str | Plan, **can: Any) -> Wilful:
    engine = Wilful(*answers, can=can)
    registry.install("scripted", engine)
    return engine


def calls(*names: str, arguments: str = "{}") -> Plan:
    return Plan(text=[], calls=[Call(name, arguments) for name in names], finish="tool_calls")


async def record_of(response: dict[str, Any]) -> UsageRecord:
    return await UsageRecord.objects.aget(response_id=response["id"])


def read(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The final Response of a legal stream."""
    response: dict[str, Any] = grammar.read(map(json.dumps, events))[-1]["response"]
    return response


async def test_an_engine_that_ignores_the_token_limit_is_stopped_there(principal: Principal) -> None:
    engine = installed(Plan(filler_tokens=1000))

    response = read(await events_of(asked(principal, "Go on", max_output_tokens=20, store=False)))

    record = await record_of(response)
    assert engine.limit == 20
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["usage"]["output_tokens"] == 20 == record.output_tokens
    assert len(pieces_of(response["output"][0]["content"][0]["text"])) == 20
    assert not record.estimated


ENDS = {"at the limit": (20, "completed"), "one more": (21, "incomplete")}


@pytest.mark.parametrize(("tokens", "status"), ENDS.values(), ids=ENDS)
async def test_a_limit_that_is_just_reached_cuts_nothing(principal: Principal, tokens: int, status: str) -> None:
    installed(Plan(filler_tokens=tokens))

    response = await response_of(asked(principal, "Go on", max_output_tokens=20, store=False))

    assert (response["status"], response["usage"]["output_tokens"]) == (status, 20)


@pytest.mark.parametrize(
    "choice",
    [
        pytest.param("none", id="none"),
        pytest.param({"type": "function", "name": "b"}, id="another by name"),
        pytest.param(
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "b"}]}, id="allowed"
        ),
    ],
)
async def test_a_call_that_must_not_come_out_does_not(principal: Principal, choice: Any) -> None:
    installed(calls("a"))

    response = read(await events_of(asked(principal, "Go", tools=[A, B], tool_choice=choice, store=False)))

    assert (response["status"], response["output"]) == ("failed", [])
    assert response["error"] == {
        "code": "server_error",
        "message": "The model called 'a', which is not a tool that it may call.",
    }
    assert (await record_of(response)).status == "failed"


async def test_a_call_of_a_made_up_tool_is_the_client_s_to_answer(principal: Principal) -> None:
    """An agent tells its model that there is no such tool; a failed response it would only try again."""
    installed(calls("rm"))

    response = read(await events_of(asked(principal, "Go", tools=[A], store=False)))

    assert response["status"] == "completed"
    assert response["output"][0]["name"] == "rm"


async def test_what_an_engine_without_tool_choice_may_not_call_it_is_not_offered(principal: Principal) -> None:
    engine = installed("fine", "fine", tool_choice=False)

    await events_of(asked(principal, "Go", tools=[A, B], tool_choice={"type": "function", "name": "b"}, store=False))
    await events_of(asked(principal, "Go", tools=[A, B], tool_choice="none", store=False))

    named, none = engine.requests
    assert [tool["function"]["name"] for tool in msgspec.json.decode(named.tools or b"")] == ["b"]
    assert (named.tool_choice, none.tools) == (None, None)


async def test_parallel_calls_that_nobody_wants_are_cut_behind_the_first(principal: Principal) -> None:
    installed(calls("a", "b"))

    events = await events_of(asked(principal, "Go", tools=[A, B], parallel_tool_calls=False, store=False))

    response = read(events)
    assert response["status"] == "completed"
    assert [(item["name"], item["status"]) for item in response["output"]] == [("a", "completed")]


async def test_a_call_that_breaks_a_promise_of_the_engine_fails_the_response(principal: Principal) -> None:
    strict = {**A, "strict": True}
    plan = calls("a", arguments='{"x": "one"}')
    installed(plan, strict_tools=True)

    response = read(await events_of(asked(principal, "Go", tools=[strict], store=False)))

    assert response["status"] == "failed"
    assert response["error"]["message"] == (
        "The model called 'a' with arguments that do not fit its schema: $.x is not of type integer."
    )


@pytest.mark.parametrize(
    ("tool", "promises"),
    [pytest.param({**A, "strict": True}, False, id="no promise"), pytest.param(A, True, id="not strict")],
)
async def test_other_calls_pass_with_whatever_arguments(
    principal: Principal, tool: dict[str, Any], promises: bool
) -> None:
    installed(calls("a", arguments='{"x": "one"}'), strict_tools=promises)

    response = await response_of(asked(principal, "Go", tools=[tool], store=False))

    assert (response["status"], response["output"][0]["arguments"]) == ("completed", '{"x": "one"}')


def person(**fields: Any) -> dict[str, Any]:
    return {"format": {"type": "json_schema", "name": "person", "schema": PERSON, **fields}}


async def test_an_engine_that_can_be_held_to_a_format_is_told_it(principal: Principal) -> None:
    engine = installed('{"name": "Ada"}', response_format=frozenset({"json_schema"}))

    await events_of(asked(principal, "Who?", text=person(strict=True), instructions="Be brief.", store=False))

    (request,) = engine.requests
    assert request.response_format == {
        "type": "json_schema",
        "json_schema": {"name": "person", "schema": PERSON, "strict": True},
    }
    assert msgspec.json.decode(request.prompt.instructions)["content"] == "Be brief."


@pytest.mark.parametrize("instructions", ["Be brief.", None], ids=["with instructions", "without"])
async def test_any_other_is_asked_in_words(principal: Principal, instructions: str | None) -> None:
    engine = installed('{"name": "Ada"}')

    response = await response_of(
        asked(principal, "Who?", text=person(strict=True), instructions=instructions, store=False)
    )

    (request,) = engine.requests
    told = msgspec.json.decode(request.prompt.instructions)["content"]
    assert request.response_format is None
    assert told.startswith(f"{instructions}\n\nAnswer with one JSON" if instructions else "Answer with one JSON")
    assert told.endswith(msgspec.json.encode(PERSON).decode())
    assert (response["status"], response["instructions"]) == ("completed", instructions)


async def test_a_json_object_is_asked_in_words_too(principal: Principal) -> None:
    engine = installed("no object")

    response = await response_of(asked(principal, "Who?", text={"format": {"type": "json_object"}}, store=False))

    assert "one JSON object" in msgspec.json.decode(engine.requests[0].prompt.instructions)["content"]
    assert response["status"] == "completed"


@pytest.mark.parametrize("formats", [frozenset(), frozenset({"json_schema"})], ids=["in words", "promised"])
async def test_an_answer_that_a_strict_schema_does_not_fit_fails_the_response(
    principal: Principal, formats: frozenset[str]
) -> None:
    chains = Chains()
    installed("My name is Ada.", "{}", response_format=formats)

    prose = read(await events_of(asked(principal, "Who?", text=person(strict=True), store=False, chains=chains)))
    empty = read(await events_of(asked(principal, "Who?", text=person(strict=True), store=True)))

    messages = [response["error"]["message"] for response in (prose, empty)]
    assert messages == [
        "The model's answer does not fit the schema 'person': it is not valid JSON.",
        "The model's answer does not fit the schema 'person': $ lacks 'name'.",
    ]
    assert prose["usage"]["output_tokens"] > 0
    record = await record_of(prose)
    assert (record.status, record.output_tokens) == ("failed", prose["usage"]["output_tokens"])
    # A failed response cannot be continued.
    assert len(chains) == 0


PASSES = {
    "not strict": ("My name is Ada.", person()),
    "fits": ('{"name": "Ada"}', person(strict=True)),
    "declines": (Plan(text=["No."], refused=True), person(strict=True)),
    "calls first": (calls("a"), person(strict=True)),
}


@pytest.mark.parametrize(("answer", "text"), PASSES.values(), ids=PASSES)
async def test_other_answers_pass(principal: Principal, answer: str | Plan, text: dict[str, Any]) -> None:
    installed(answer)

    response = await response_of(asked(principal, "Who?", text=text, tools=[A], store=False))

    assert response["status"] == "completed"


async def test_a_cut_answer_is_incomplete_and_not_judged(principal: Principal) -> None:
    installed(Plan(text=['{"na'], finish="length"))

    response = await response_of(asked(principal, "Who?", text=person(strict=True), store=False))

    assert response["status"] == "incomplete"


async def test_a_schema_that_is_none_is_refused(principal: Principal) -> None:
    wrong = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "text"}}}

    with pytest.raises(InvalidRequest) as caught:
        await events_of(asked(principal, "Who?", text=wrong))

    assert (caught.value.code, caught.value.param) == ("invalid_value", "text.format.schema")


@pytest.mark.parametrize(("asked_for", "used"), [("fast", "priority"), ("flex", "default"), (None, "default")])
async def test_the_tier_is_in_the_response_and_in_the_record(
    principal: Principal, asked_for: str | None, used: str
) -> None:
    response = await response_of(asked(principal, "Hi", service_tier=asked_for, store=False))

    assert response["service_tier"] == used == (await record_of(response)).service_tier


LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}


async def test_logprobs_are_told_where_they_are_asked_for(principal: Principal) -> None:
    events = await events_of(asked(principal, "!tokens 3 Hi", store=False, **LOGPROBS))

    response = read(events)
    (part,) = response["output"][0]["content"]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(one["token"] for one in part["logprobs"]) == part["text"]
    assert [bytes(one["bytes"]).decode() for one in part["logprobs"]] == [event["delta"] for event in deltas]
    assert [len(one["top_logprobs"]) for one in part["logprobs"]] == [2, 2, 2]
    assert [event["logprobs"][0]["logprob"] for event in deltas] == [one["logprob"] for one in part["logprobs"]]
    assert response["top_logprobs"] == 2


@pytest.mark.parametrize(
    ("can", "fields"),
    [
        pytest.param(True, {"top_logprobs": 2}, id="not included"),
        pytest.param(False, LOGPROBS, id="an engine that cannot"),
    ],
)
async def test_else_they_are_empty(principal: Principal, can: bool, fields: dict[str, Any]) -> None:
    engine = installed("Hi there", logprobs=can)

    response = read(await events_of(asked(principal, "Hi", store=False, **fields)))

    assert engine.requests[0].top_logprobs is None
    assert response["output"][0]["content"][0]["logprobs"] == []


PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
LOOK = [{"role": "user", "content": [{"type": "input_text", "text": "What is this?"}, PICTURE]}]


async def test_images_go_to_engines_that_take_them_and_a_note_to_others(principal: Principal) -> None:
    seeing, blind = installed("A cat", images=True), installed("Nothing")
    registry.install("seeing", seeing)

    await events_of(asked(principal, LOOK, store=False))
    registry.install("scripted", seeing)
    await events_of(asked(principal, LOOK, store=False))

    told = [next(engine.requests[0].prompt.newest_first())["content"] for engine in (blind, seeing)]
    assert told[0] == "What is this?[An image was left out: this model takes none.]"
    assert told[1][1] == {"type": "image_url", "image_url": {"url": PICTURE["image_url"]}}


async def test_a_chain_that_moves_to_an_engine_with_eyes_shows_it_what_came_before(
    principal: Principal, settings: Any
) -> None:
    chains = Chains()
    both = {"scripted": {"ENGINE": "scripted"}, "seeing": {"ENGINE": "seeing"}}
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "MODELS": both}
    seeing, _blind = Wilful("A cat", can={"images": True}), installed("I cannot see it")
    registry.install("seeing", seeing)
    first = await response_of(asked(principal, LOOK, store=False, chains=chains))

    await events_of(
        asked(principal, "And you?", model="seeing", previous_response_id=first["id"], store=False, chains=chains)
    )

    messages = [*seeing.requests[0].prompt.newest_first()][::-1]
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert messages[0]["content"][1]["type"] == "image_url"


async def test_a_picture_that_is_too_large_is_refused(principal: Principal, settings: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "LIMITS": {"max_image_bytes": 7}}

    with pytest.raises(InvalidRequest) as caught:
        await events_of(asked(principal, LOOK))

    assert (caught.value.code, caught.value.param) == ("image_too_large", "input[0].content[1].image_url")


@pytest.mark.parametrize(("can", "told"), [(True, "low"), (False, None)], ids=["can", "cannot"])
async def test_verbosity_goes_to_engines_that_take_it(principal: Principal, can: bool, told: str | None) -> None:
    engine = installed("Hi", verbosity=can)

    response = await response_of(asked(principal, "Hi", text={"verbosity": "low"}, store=False))

    assert engine.requests[0].verbosity == told
    assert response["text"]["verbosity"] == "low"


async def test_a_cache_key_is_told_apart_by_project(principal: Principal, other_principal: Principal) -> None:
    engine = installed("Hi", "Hi")

    for who in (principal, other_principal):
        await events_of(asked(who, "Hi", prompt_cache_key="thread-1", store=False))

    keys = [request.prompt_cache_key for request in engine.requests]
    assert keys == [f"{who.project_id}:thread-1" for who in (principal, other_principal)]


async def test_tools_that_are_nested_too_deeply_are_refused(principal: Principal) -> None:
    deep: Any = 1
    for _ in range(100):
        deep = {"items": deep}

    with pytest.raises(InvalidRequest) as caught:
        await events_of(asked(principal, "Hi", tools=[{**A, "parameters": deep}]))

    assert (caught.value.code, caught.value.param) == ("invalid_json", "tools")
