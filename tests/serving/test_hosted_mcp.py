"""Tools of a real MCP server, within turns."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from responses_ws.connection.chain import Chains
from responses_ws.connection.commands import Append
from responses_ws.engines.registry import registry
from responses_ws.engines.script import Call, Plan
from responses_ws.models import StoredItem, StoredResponse
from responses_ws.protocol.errors import InvalidRequest
from responses_ws.runtime import dbpool
from responses_ws.safety.registry import classifiers
from responses_ws.serving.admission import Principal
from responses_ws.serving.mailbox import Mailbox
from responses_ws.serving.sampling import Sign
from responses_ws.serving.turns import run_turn
from responses_ws.stores.memory import hot_tier
from responses_ws.testing import ScriptedEngine
from tests.fakes.mcp_server import KEY
from tests.live import McpServer
from tests.protocol import grammar
from tests.safety.spies import Spy

from .test_safety import seat
from .turns import asked, events_of, response_of


@pytest.fixture(autouse=True)
async def _tools(settings: Any, mcp_server: McpServer) -> AsyncIterator[None]:
    mcp = {"TOOL": "responses_ws.tools.mcp.Mcp", "TRUSTED": [mcp_server.origin], "SECONDS": 10}
    settings.RESPONSES_WS = settings.RESPONSES_WS | {"TOOLS": {"mcp": mcp}}
    yield
    registry.reset()


@pytest.fixture
def notes(mcp_server: McpServer) -> dict[str, Any]:
    return {"type": "mcp", "server_label": "notes", "server_url": mcp_server.url, "require_approval": "never"}


def script(*answers: str | Plan) -> ScriptedEngine:
    engine = ScriptedEngine(*answers)
    registry.install("scripted", engine)
    return engine


def call(name: str, /, **arguments: Any) -> Plan:
    return Plan(text=[], calls=[Call(f"notes__{name}", json.dumps(arguments))], finish="tool_calls")


def legal(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return grammar.read(map(json.dumps, events))


def types_of(response: dict[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


def approval(request: dict[str, Any], approve: bool, **fields: Any) -> dict[str, Any]:
    return {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": approve, **fields}


async def test_a_server_is_listed_and_a_tool_of_it_called(principal: Principal, notes: dict[str, Any]) -> None:
    engine = script(call("echo", text="hi"), "It said hi.")

    events = legal(await events_of(asked(principal, "Say hi.", tools=[notes], store=False)))

    told = [event["type"].removeprefix("response.") for event in events]
    assert told[: told.index("output_text.delta")] == [
        *("created", "in_progress"),
        *("output_item.added", "mcp_list_tools.in_progress", "mcp_list_tools.completed", "output_item.done"),
        *("output_item.added", "mcp_call.in_progress", "mcp_call_arguments.delta", "mcp_call_arguments.delta"),
        *("mcp_call_arguments.done", "mcp_call.completed", "output_item.done"),
        *("output_item.added", "content_part.added"),
    ]
    listing, called, _ = events[-1]["response"]["output"]
    assert [tool["name"] for tool in listing["tools"]] == ["echo", "delete", "fail", "slow", "big"]
    assert (called["output"], called["status"], called["server_label"]) == ("echo: hi", "completed", "notes")
    offered = json.loads(engine.requests[0].tools or b"")
    assert offered[0]["function"]["name"] == "notes__echo"
    assert next(engine.requests[1].prompt.newest_first())["content"] == "echo: hi"


@pytest.mark.parametrize("forget", [False, True], ids=["in memory", "read back"])
async def test_a_listing_in_the_context_is_not_made_again(
    principal: Principal, mcp_server: McpServer, notes: dict[str, Any], forget: bool
) -> None:
    engine = script("One.", "Two.")
    first = await response_of(asked(principal, "One?", tools=[notes]))
    if forget:
        hot_tier.clear()
    listed = mcp_server.calls().count("listed")

    second = await response_of(asked(principal, "Two?", previous_response_id=first["id"], tools=[notes]))

    assert (types_of(first), types_of(second)) == (["mcp_list_tools", "message"], ["message"])
    assert mcp_server.calls().count("listed") == listed
    assert engine.requests[1].tools == engine.requests[0].tools


async def test_a_listing_that_the_client_sends_back_is_not_made_again(
    principal: Principal, mcp_server: McpServer, notes: dict[str, Any]
) -> None:
    engine = script("One.", "Two.")
    first = await response_of(asked(principal, "One?", tools=[notes], store=False))
    user = {"type": "message", "role": "user", "content": "Two?"}
    listed = mcp_server.calls().count("listed")

    await response_of(asked(principal, [*first["output"], user], tools=[notes], store=False))

    assert mcp_server.calls().count("listed") == listed
    assert engine.requests[1].tools == engine.requests[0].tools


async def test_a_server_that_cannot_be_listed_does_not_fail_the_response(
    principal: Principal, mcp_server: McpServer, notes: dict[str, Any]
) -> None:
    script("Without tools, then.")
    gone = {**notes, "server_url": f"{mcp_server.origin}/gone"}

    events = legal(await events_of(asked(principal, "Say hi.", tools=[gone], store=False)))

    response = events[-1]["response"]
    assert response["status"] == "completed"
    assert response["output"][0]["error"] == "The MCP server answered with the status 404."
    assert "response.mcp_list_tools.failed" in [event["type"] for event in events]


async def test_what_a_server_says_of_its_tools_is_looked_at(principal: Principal, notes: dict[str, Any]) -> None:
    seat(Spy({"Deletes a note": "redact"}, redacts=True))
    engine = script("Without tools, then.")

    try:
        response = await response_of(asked(principal, "Say hi.", tools=[notes], store=False))
    finally:
        classifiers.reset()

    assert response["output"][0]["error"] == "What this server says of its tools was refused."
    assert engine.requests[0].tools is None


@pytest.mark.parametrize("door", ["websocket", "http"])
async def test_an_approved_call_is_run_and_the_model_goes_on(
    principal: Principal, mcp_server: McpServer, notes: dict[str, Any], door: str
) -> None:
    engine = script(call("delete", name="a"), "It is gone.")
    tools, chains = [{**notes, "require_approval": "always"}], Chains() if door == "websocket" else None
    fields = {"tools": tools, "transport": door, "store": chains is None, "chains": chains}
    first = legal(await events_of(asked(principal, "Delete a.", **fields)))[-1]["response"]
    request = first["output"][-1]
    before = mcp_server.calls()

    events = legal(
        await events_of(asked(principal, [approval(request, True)], previous_response_id=first["id"], **fields))
    )

    assert types_of(first) == ["mcp_list_tools", "mcp_approval_request"]
    assert (request["name"], json.loads(request["arguments"])) == ("delete", {"name": "a"})
    called, message = events[-1]["response"]["output"]
    assert (called["output"], called["approval_request_id"]) == ("deleted a", request["id"])
    assert mcp_server.calls()[len(before) :].count("called delete") == 1
    told = list(engine.requests[1].prompt.newest_first())[::-1]
    assert [one["role"] for one in told] == ["user", "assistant", "tool"]
    assert told[1]["tool_calls"][0]["id"] == told[2]["tool_call_id"] == request["id"]
    assert message["content"][0]["text"] == "It is gone."


async def test_an_approval_that_is_sent_back_with_its_call_is_not_acted_upon_again(
    principal: Principal, mcp_server: McpServer, notes: dict[str, Any]
) -> None:
    script(call("delete", name="a"), "It is gone.", "As I said.")
    fields = {"tools": [{**notes, "require_approval": "always"}], "store": False}
    user = {"type": "message", "role": "user", "content": "Delete a."}
    first = await response_of(asked(principal, [user], **fields))
    history = [user, *first["output"], approval(first["output"][-1], True)]
    second = await response_of(asked(principal, history, **fields))
    before = mcp_server.calls()

    third = await response_of(asked(principal, [*history, *second["output"], {**user, "content": "Sure?"}], **fields))

    assert types_of(second) == ["mcp_call", "message"]
    assert types_of(third) == ["message"]
    assert mcp_server.calls() == before


async def test_a_call_that_is_not_approved_is_not_run_and_the_model_is_told_why(
    principal: Principal, mcp_server: McpServer, notes: dict[str, Any]
) -> None:
    engine = script(call("delete", name="a"), "As you wish.")
    tools, chains = [{**notes, "require_approval": "always"}], Chains()
    first = await response_of(asked(principal, "Delete a.", tools=tools, store=False, chains=chains))
    before = mcp_server.calls()
    answer = approval(first["output"][-1], False, reason="It is the last one.")

    second = await response_of(
        asked(principal, [answer], previous_response_id=first["id"], tools=tools, store=False, chains=chains)
    )

    assert types_of(second) == ["message"]
    assert mcp_server.calls() == before
    told = next(engine.requests[1].prompt.newest_first())
    assert told["content"] == "The user has not allowed this call. The reason given: It is the last one."


@pytest.mark.parametrize(
    "given", ["And now?", [approval({"id": "mcpr_of_nobody"}, True)]], ids=["no answer", "an answer to something else"]
)
async def test_an_approval_request_wants_its_answer(principal: Principal, notes: dict[str, Any], given: Any) -> None:
    script(call("delete", name="a"))
    tools, chains = [{**notes, "require_approval": "always"}], Chains()
    first = await response_of(asked(principal, "Delete a.", tools=tools, store=False, chains=chains))

    with pytest.raises(InvalidRequest, match="approval"):
        await events_of(
            asked(principal, given, previous_response_id=first["id"], tools=tools, store=False, chains=chains)
        )


async def test_approvals_can_be_appended_to_one_long_response(principal: Principal, notes: dict[str, Any]) -> None:
    script(call("delete", name="a"), "It is gone.")
    mailbox: Mailbox[Any] = Mailbox()
    ask = asked(principal, "Delete a.", tools=[{**notes, "require_approval": "always"}], store=False)
    ask.mailbox, ask.may_append = mailbox, True

    events: list[dict[str, Any]] = []
    async with asyncio.timeout(20), aclosing(run_turn(ask)) as runs:
        async for frames in runs:
            events += map(json.loads, frames)
            if events[-1]["type"] == "response.done":
                (wanted,) = events[-1]["required"]
                mailbox.put(Append([{**wanted, "approve": True}]))

    assert wanted["type"] == "mcp_approval_response"
    response = events[-1]["response"]
    assert types_of(response) == [
        *("mcp_list_tools", "mcp_approval_request", "mcp_approval_response"),
        *("mcp_call", "message"),
    ]
    assert response["output"][3]["output"] == "deleted a"


async def test_an_approved_call_of_a_server_that_is_not_named_again_fails(
    principal: Principal, notes: dict[str, Any]
) -> None:
    script(call("delete", name="a"), "Too bad.")
    tools, chains = [{**notes, "require_approval": "always"}], Chains()
    first = await response_of(asked(principal, "Delete a.", tools=tools, store=False, chains=chains))
    answer = approval(first["output"][-1], True)

    second = await response_of(asked(principal, [answer], previous_response_id=first["id"], store=False, chains=chains))

    assert second["output"][0]["status"] == "failed"
    assert "no tool with the server label 'notes'" in second["output"][0]["error"]["content"][0]["text"]


async def test_a_tool_of_the_server_that_fails_is_told_to_the_model(
    principal: Principal, notes: dict[str, Any]
) -> None:
    engine = script(call("fail"), "Too bad.")

    events = legal(await events_of(asked(principal, "Fail.", tools=[notes], store=False)))

    failed = events[-1]["response"]["output"][1]
    assert (failed["status"], failed["error"]["type"]) == ("failed", "mcp_tool_execution_error")
    assert "the ink is dry" in next(engine.requests[1].prompt.newest_first())["content"]


async def test_a_slow_tool_is_given_up(principal: Principal, notes: dict[str, Any], settings: Any) -> None:
    mcp = settings.RESPONSES_WS["TOOLS"]["mcp"] | {"SECONDS": 5}
    settings.RESPONSES_WS = settings.RESPONSES_WS | {"TOOLS": {"mcp": mcp}}
    engine = script(call("slow"), "Too slow.")

    response = await response_of(asked(principal, "Slowly.", tools=[notes], store=False))

    assert response["output"][1]["status"] == "failed"
    assert response["output"][2]["content"][0]["text"] == "Too slow."
    assert next(engine.requests[1].prompt.newest_first())["content"].startswith("Error: ")


async def test_cancelling_ends_a_call_that_runs(
    principal: Principal, mcp_server: McpServer, notes: dict[str, Any]
) -> None:
    script(call("slow"))
    mailbox: Mailbox[Any] = Mailbox()
    ask = asked(principal, "Slowly.", tools=[notes], store=False)
    ask.mailbox = mailbox

    before = mcp_server.calls().count("called slow")
    turn = asyncio.ensure_future(_events(ask))
    async with asyncio.timeout(20):
        await asyncio.to_thread(_wait_for_call, mcp_server, before)
        mailbox.put(Sign.CANCELLED)
        events = await turn

    response = events[-1]["response"]
    assert (response["status"], response["output"][1]["status"]) == ("cancelled", "incomplete")


async def _events(ask: Any) -> list[dict[str, Any]]:
    async with aclosing(run_turn(ask)) as runs:
        return [json.loads(frame) async for frames in runs for frame in frames]


def _wait_for_call(mcp_server: McpServer, before: int) -> None:
    from tests.live import until

    until(lambda: mcp_server.calls().count("called slow") > before, "the call to arrive")


async def test_a_choice_may_name_a_server_or_a_tool_of_it(principal: Principal, notes: dict[str, Any]) -> None:
    engine = script("One.", "Two.")
    for choice in ({"type": "mcp", "server_label": "notes", "name": "echo"}, {"type": "mcp", "server_label": "notes"}):
        await response_of(asked(principal, "Go.", tools=[notes], tool_choice=choice, store=False))

    assert engine.requests[0].tool_choice == {"type": "function", "function": {"name": "notes__echo"}}
    assert engine.requests[1].tool_choice == "required"


async def test_credentials_are_nowhere_but_at_the_server(
    principal: Principal, mcp_server: McpServer, notes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    engine = script(call("echo", text="hi"), "It said hi.")
    url = f"{mcp_server.origin}/private/mcp?key=canary-of-a-path"
    secret = {**notes, "server_url": url, "authorization": KEY, "headers": {"X-Canary": "canary-of-a-header"}}

    events = legal(await events_of(asked(principal, "Say hi.", tools=[secret])))

    response = events[-1]["response"]
    assert types_of(response) == ["mcp_list_tools", "mcp_call", "message"]
    assert response["output"][1]["output"] == "echo: hi"
    (echoed,) = response["tools"]
    assert echoed == {**notes, "server_url": f"{mcp_server.origin}/<redacted>"}
    stored = await dbpool.run(
        lambda: [*StoredResponse.objects.values_list("body"), *StoredItem.objects.values_list("body")]
    )
    sent = [(request.prompt.json(), request.tools) for request in engine.requests]
    for place in (json.dumps(events), repr(stored), repr(sent), caplog.text):
        assert "canary" not in place


async def test_credentials_in_an_item_are_refused(principal: Principal, notes: dict[str, Any]) -> None:
    item = {"type": "additional_tools", "role": "developer", "tools": [{**notes, "authorization": KEY}]}

    with pytest.raises(InvalidRequest) as refusal:
        await events_of(asked(principal, [item, {"role": "user", "content": "hi"}], store=False))

    assert refusal.value.param == "input[0].tools[0].authorization"


@pytest.mark.parametrize("url", ["https://169.254.169.254/", "http://ok.example/", "https://127.0.0.1:9/"])
async def test_a_server_inside_is_refused_with_the_request(
    principal: Principal, notes: dict[str, Any], url: str
) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        await events_of(asked(principal, "Hi.", tools=[{**notes, "server_url": url}], store=False))

    assert refusal.value.param == "tools[0].server_url"
