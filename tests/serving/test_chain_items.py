"""Items that do more than be context: references, settings and tools for the rest of the chain."""

from typing import Any

import msgspec
import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from responses_ws.connection.chain import Chains
from responses_ws.engines.registry import registry
from responses_ws.engines.script import Call, Plan
from responses_ws.models import StoredItem, StoredResponse
from responses_ws.protocol.errors import InvalidRequest
from responses_ws.serving.admission import Principal
from responses_ws.stores import rows
from responses_ws.stores.memory import hot_tier
from responses_ws.testing import ScriptedEngine

from .turns import asked, events_of, response_of

SCHEMA = {"type": "json_schema", "name": "answer", "schema": {"type": "object"}}
LITE = {
    "type": "additional_tools",
    "role": "developer",
    "tools": [
        {"type": "custom", "name": "exec", "description": "Runs JavaScript."},
        {"type": "namespace", "name": "crm", "description": "d", "tools": [{"type": "function", "name": "find"}]},
    ],
}


def reference(item_id: str) -> dict[str, str]:
    return {"type": "item_reference", "id": item_id}


def install(*answers: str | Plan) -> ScriptedEngine:
    engine = ScriptedEngine(*answers)
    registry.install("scripted", engine)
    return engine


def offered(engine: ScriptedEngine) -> list[list[str]]:
    """Names of the tools that each call was offered."""
    return [
        [tool["function"]["name"] for tool in msgspec.json.decode(request.tools or b"[]")]
        for request in engine.requests
    ]


@pytest.mark.parametrize("store", [True, False])
async def test_a_reference_stands_for_an_item_of_the_same_connection(principal: Principal, store: bool) -> None:
    engine = install("Cobalt it is.")
    chains = Chains()
    first = await response_of(asked(principal, "Remember cobalt", store=store, chains=chains))
    items = [reference(first["output"][0]["id"]), {"role": "user", "content": "What was it?"}]

    await response_of(asked(principal, items, store=store, chains=chains, stream_id="other"))

    told = msgspec.json.decode(b"[" + engine.requests[-1].prompt.json() + b"]")
    assert told == [
        {"role": "assistant", "content": "Cobalt it is."},
        {"role": "user", "content": "What was it?"},
    ]


async def test_a_reference_is_stored_as_what_it_stands_for(principal: Principal) -> None:
    first = await response_of(asked(principal, "Remember cobalt", store=True))
    hot_tier.clear()
    item_id = first["output"][0]["id"]

    second = await response_of(asked(principal, [reference(item_id)], store=True))

    stored = await sync_to_async(rows.load)(principal.project_id, second["id"])
    assert stored is not None and stored.items[0] == first["output"][0]
    assert not await StoredItem.objects.filter(body__contains="item_reference").aexists()


async def test_a_reference_needs_an_item_that_is_there_and_ours(
    principal: Principal, other_principal: Principal
) -> None:
    unstored = await response_of(asked(principal, "one", store=False, chains=Chains()))
    foreign = await response_of(asked(other_principal, "two", store=True))
    deleted = await response_of(asked(principal, "three", store=True))
    expired = await response_of(asked(principal, "four", store=True))
    await sync_to_async(rows.delete)(principal.project_id, deleted["id"])
    await StoredResponse.objects.filter(id=expired["id"]).aupdate(expires_at=timezone.now())

    messages = set()
    for item_id in [response["output"][0]["id"] for response in (unstored, foreign, deleted, expired)] + ["msg_x"]:
        with pytest.raises(InvalidRequest) as caught:
            await events_of(asked(principal, [reference(item_id)], chains=Chains()))
        assert (caught.value.status, caught.value.param) == (400, "input")
        messages.add(caught.value.message.replace(item_id, "ID"))

    assert messages == {"Item with id 'ID' not found."}


async def test_an_output_answers_a_call_that_is_referred_to(principal: Principal) -> None:
    tool = {"type": "function", "name": "f"}
    first = await response_of(asked(principal, "!call f {}", tools=[tool], store=True))
    call = first["output"][0]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "fine"}

    second = await response_of(asked(principal, [reference(call["id"]), output], tools=[tool], store=True))

    assert "fine" in second["output"][0]["content"][0]["text"]


@pytest.mark.parametrize("forget", [False, True], ids=["memory", "database"])
async def test_settings_that_come_as_items_last_for_the_chain(principal: Principal, forget: bool) -> None:
    engine = install()
    update = {"type": "configuration_update", "reasoning": {"effort": "low"}, "text": {"format": SCHEMA}}
    first = await response_of(asked(principal, [update, {"role": "user", "content": "a"}]))
    if forget:
        hot_tier.clear()
    second = await response_of(asked(principal, "b", previous_response_id=first["id"]))
    third = await response_of(asked(principal, "c", previous_response_id=second["id"], reasoning={"effort": "high"}))
    fourth = await response_of(asked(principal, "d", previous_response_id=third["id"]))
    fresh = await response_of(asked(principal, "e"))

    efforts = [request.reasoning_effort for request in engine.requests]
    assert efforts == ["low", "low", "high", "low", None]
    assert [bool(request.response_format) for request in engine.requests] == [True] * 4 + [False]
    assert fourth["reasoning"]["effort"] == "low" and fourth["text"]["format"] == SCHEMA
    assert fresh["text"]["format"] == {"type": "text"}


@pytest.mark.parametrize("forget", [False, True], ids=["memory", "database"])
async def test_tools_that_come_as_items_are_offered_for_the_rest_of_the_chain(
    principal: Principal, forget: bool
) -> None:
    """As Codex does with models of its "lite" kind: no `tools`, an item instead, and a warm-up with nothing in it."""
    calls = Plan(calls=[Call("exec", '{"input": "1 + 1"}'), Call("crm__find", "{}")])
    engine = install(calls, "done")
    chains = None if forget else Chains()
    warm = await response_of(asked(principal, [], generate=False, chains=chains))
    given = [LITE, {"role": "user", "content": "go"}]

    first = await response_of(asked(principal, given, previous_response_id=warm["id"], chains=chains))
    if forget:
        hot_tier.clear()
    custom, function = first["output"]
    outputs = [
        {"type": "custom_tool_call_output", "call_id": custom["call_id"], "output": "2"},
        {"type": "function_call_output", "call_id": function["call_id"], "output": "found"},
    ]
    second = await response_of(
        asked(
            principal,
            outputs,
            previous_response_id=first["id"],
            chains=chains,
            tools=[{"type": "function", "name": "f"}],
            tool_choice={"type": "custom", "name": "exec"},
        )
    )

    assert (custom["type"], custom["name"], custom["input"]) == ("custom_tool_call", "exec", "1 + 1")
    assert (function["type"], function["namespace"], function["name"]) == ("function_call", "crm", "find")
    assert offered(engine) == [["exec", "crm__find"], ["f", "exec", "crm__find"]]
    assert first["tools"] == [] and [tool["name"] for tool in second["tools"]] == ["f"]


async def test_the_tool_set_of_a_chain_is_made_once(principal: Principal, monkeypatch: pytest.MonkeyPatch) -> None:
    from responses_ws.serving import context

    made: list[int] = []
    original = context.ToolSet
    monkeypatch.setattr(context, "ToolSet", lambda tools, hosted: (made.append(len(tools)), original(tools, hosted))[1])
    chains, previous = Chains(), None
    for turn in range(5):
        given = [*([LITE] if turn == 0 else []), {"role": "user", "content": "!tokens 1"}]
        tools = [{"type": "function", "name": "f"}]
        response = await response_of(
            asked(principal, given, previous_response_id=previous, chains=chains, tools=tools, store=False)
        )
        previous = response["id"]

    assert made == [3]


async def test_a_chosen_tool_must_be_one_of_the_chain(principal: Principal) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await events_of(
            asked(principal, [LITE, {"role": "user", "content": "go"}], tool_choice={"type": "function", "name": "f"})
        )

    assert (caught.value.code, caught.value.param) == ("invalid_value", "tool_choice")


async def test_tools_of_a_whole_chain_are_counted(principal: Principal, settings: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "LIMITS": {"max_tools": 3}}

    with pytest.raises(InvalidRequest, match="Too many tools"):
        await events_of(asked(principal, [LITE, {"role": "user", "content": "go"}], tools=[{"type": "web_search"}]))


async def test_the_phase_of_a_message_is_kept_and_given_back(principal: Principal) -> None:
    said = {"type": "message", "role": "assistant", "content": "Working on it.", "phase": "commentary", "id": "msg_c"}
    first = await response_of(asked(principal, [said, {"role": "user", "content": "go"}]))
    hot_tier.clear()
    second = await response_of(asked(principal, [reference("msg_c")], previous_response_id=first["id"]))

    stored = await sync_to_async(rows.load)(principal.project_id, second["id"])
    assert stored is not None
    assert stored.items[0] == stored.items[3] == said
