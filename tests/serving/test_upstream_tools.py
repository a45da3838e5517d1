"""Hosted tools that an upstream runs: offered to it as they are, and their items told as ours."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from responses_ws.connection.chain import Chains
from responses_ws.engines.registry import registry
from responses_ws.engines.responses import Responses
from responses_ws.models import UsageRecord
from responses_ws.serving.admission import Principal
from tests.described import check_event
from tests.fakes.responses_server import Answer, ResponsesServer, words

from .turns import asked, events_of, response_of

SEARCH = {"type": "web_search", "search_context_size": "low"}
A = {"type": "function", "name": "a", "parameters": {"type": "object", "properties": {}}}
SEARCHED = {"type": "web_search_call", "id": "ws_up", "status": "completed", "action": {"type": "search", "query": "x"}}
CITED = {"type": "url_citation", "url": "https://x", "title": "X", "start_index": 0, "end_index": 3}


def searching(number: int) -> Answer:
    created, delta, completed = words("See x.", f"up_{number}")
    delta["output_index"] = 1
    return Answer(
        events=[
            created,
            {"type": "response.output_item.added", "output_index": 0, "item": {**SEARCHED, "status": "in_progress"}},
            {"type": "response.web_search_call.searching", "output_index": 0, "item_id": "ws_up"},
            {"type": "response.output_item.done", "output_index": 0, "item": SEARCHED},
            delta,
            {"type": "response.output_text.annotation.added", "output_index": 1, "annotation": CITED},
            completed,
        ]
    )


@pytest.fixture
async def server(settings: Any) -> AsyncIterator[ResponsesServer]:
    models = {"scripted": {"ENGINE": "scripted"}}
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "MODELS": models}
    async with ResponsesServer() as server:
        engine = Responses("scripted", {"BASE_URL": server.url, "HOSTED_TOOLS": ["web_search"]})
        registry.install("scripted", engine)
        yield server
        await engine.aclose()


async def test_what_the_upstream_has_run_is_told_as_an_item_of_ours(
    principal: Principal, server: ResponsesServer
) -> None:
    server.answers = [searching(1), searching(2)]
    chains = Chains()

    events = await events_of(asked(principal, "Look.", tools=[SEARCH, A], store=False, chains=chains))
    response = events[-1]["response"]
    again = {"previous_response_id": response["id"], "tools": [SEARCH, A], "store": False, "chains": chains}
    await events_of(asked(principal, "And now?", **again))

    for event in events:
        check_event(event)
    assert [record.tool_calls async for record in UsageRecord.objects.all()] == [1, 1]
    item, message = response["output"]
    assert (item["type"], item["status"], item["action"]) == ("web_search_call", "completed", SEARCHED["action"])
    assert item["id"].startswith("ws_") and item["id"] != "ws_up"
    assert message["content"][0]["annotations"] == [CITED]
    told = [(event["type"], event["item"]["status"]) for event in events if "item" in event]
    assert told[:2] == [("response.output_item.added", "in_progress"), ("response.output_item.done", "completed")]
    assert "ws_up" not in json.dumps(events)
    # All is sent again here, under ids of ours.
    sent = json.dumps(server.requests[1]["input"])
    assert "See x." in sent and "web_search" in sent and "ws_up" not in sent


@pytest.mark.parametrize(
    ("choice", "tools", "told"),
    [
        ("auto", ["a", "web_search"], "auto"),
        ("none", ["a"], "none"),
        ({"type": "web_search"}, ["a", "web_search"], {"type": "web_search"}),
        ({"type": "function", "name": "a"}, ["a", "web_search"], {"type": "function", "name": "a"}),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}, ["web_search"], None),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "a"}]},
            ["a"],
            "required",
        ),
    ],
    ids=["auto", "none", "the hosted one", "a function", "only the hosted one", "only a function"],
)
async def test_what_is_offered(
    principal: Principal, server: ResponsesServer, choice: Any, tools: list[str], told: Any
) -> None:
    code = {"type": "code_interpreter", "container": {"type": "auto"}}
    await events_of(asked(principal, "Look.", tools=[SEARCH, A, code], tool_choice=choice, store=False))

    (request,) = server.requests
    assert [tool.get("name") or tool["type"] for tool in request["tools"]] == tools
    assert request.get("tool_choice") == told
    assert all(tool in (SEARCH, {**A, "strict": False}) for tool in request["tools"])


async def test_a_hosted_tool_alone(principal: Principal, server: ResponsesServer) -> None:
    await events_of(asked(principal, "Look.", tools=[SEARCH], tool_choice="required", store=False))

    assert (server.requests[0]["tools"], server.requests[0]["tool_choice"]) == ([SEARCH], "required")


async def test_an_upstream_is_told_again_what_was_run_here_for_it(
    principal: Principal, settings: Any, tmp_path: Path
) -> None:
    pages = tmp_path / "pages.jsonl"
    pages.write_text(json.dumps({"url": "https://oslo.example", "title": "Oslo", "text": "It is cold in Oslo."}))
    web = {
        "TOOL": "responses_ws.tools.web_search.WebSearch",
        "PROVIDER": "responses_ws.tools.web_search.PagesInFile",
        "PATH": str(pages),
    }
    models = {"scripted": {"ENGINE": "scripted"}}
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "MODELS": models, "TOOLS": {"web": web}}
    created, _delta, completed = words("", "up_1")
    called = {
        "type": "function_call",
        "call_id": "call_up",
        "name": "web_search",
        "arguments": '{"query": "Oslo"}',
        "status": "completed",
    }
    call = {"type": "response.output_item.done", "output_index": 0, "item": called}
    chains = Chains()
    async with ResponsesServer() as server:
        engine = Responses("scripted", {"BASE_URL": server.url, "STORE": True})
        registry.install("scripted", engine)
        server.answers = [Answer(events=[created, call, completed])]
        first = await response_of(asked(principal, "Look.", tools=[SEARCH], store=False, chains=chains))
        again = {"previous_response_id": first["id"], "tools": [SEARCH], "store": False, "chains": chains}
        await response_of(asked(principal, "And now?", **again))
        await engine.aclose()

    assert [item["type"] for item in first["output"]] == ["web_search_call", "message"]
    _, found, more = server.requests
    # Here the call has another id than there: what it gave would answer nothing that the upstream knows.
    assert found.get("previous_response_id") is None
    _, call_item, output = found["input"]
    assert (call_item["type"], output["type"]) == ("function_call", "function_call_output")
    assert call_item["call_id"] == output["call_id"] != "call_up"
    assert "cold in Oslo" in output["output"]
    assert (more["previous_response_id"], len(more["input"])) == ("up_2", 1)
