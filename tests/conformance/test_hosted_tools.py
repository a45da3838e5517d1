"""Hosted tools, for the official `openai` client: through both doors, against a real MCP server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, HostedMCPTool, ModelSettings, responses_websocket_session, set_tracing_disabled
from openai import OpenAI
from openai.types.responses import Response

from tests.live import McpServer, Server

from .grammar import check_turn

pytestmark = pytest.mark.conformance

PAGE = {"url": "https://oslo.example/", "title": "Oslo", "text": "It is clear in Oslo. More: https://oslo.example/"}


@pytest.fixture(autouse=True)
def _no_tracing() -> Iterator[None]:
    """Traces would be sent to their maker."""
    set_tracing_disabled(True)
    yield
    set_tracing_disabled(False)


@pytest.fixture(scope="module")
def tooled(database: Path, mcp_server: McpServer) -> Iterator[Server]:
    """Another process, which runs hosted tools."""
    pages = database / "pages.jsonl"
    pages.write_text(json.dumps(PAGE))
    tools = {
        "mcp": {"TOOL": "responses_ws.tools.mcp.Mcp", "TRUSTED": [mcp_server.origin]},
        "web": {
            "TOOL": "responses_ws.tools.web_search.WebSearch",
            "PROVIDER": "responses_ws.tools.web_search.PagesInFile",
            "PATH": str(pages),
        },
    }
    with Server(directory=database, name="tooled", tools=tools) as running:
        yield running
        assert not running.trouble(), running.output()
        assert "canary" not in running.output()


@pytest.fixture
def client(tooled: Server, key: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=tooled.base_url, api_key=key, max_retries=0) as client:
        yield client


@pytest.fixture
def notes(mcp_server: McpServer) -> dict[str, Any]:
    return {
        "type": "mcp",
        "server_label": "notes",
        "server_url": mcp_server.url,
        "headers": {"X-Canary": "canary-of-a-header"},
        "require_approval": {"never": {"read_only": True}},
    }


def streamed(client: OpenAI, **request: Any) -> Response:
    with client.responses.stream(model="scripted", **request) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[-1] == "response.completed"
    return final


def on_socket(client: OpenAI, **request: Any) -> Response:
    with client.responses.connect() as connection:
        return turn(connection, **request)


def turn(connection: Any, **request: Any) -> Response:
    connection.response.create(model="scripted", **request)
    events = [connection.recv()]
    while events[-1].type not in ("response.completed", "response.failed", "error"):
        events.append(connection.recv())
    assert events[-1].type == "response.completed", events[-1]
    check_turn([event.model_dump(exclude_unset=True) for event in events])
    response: Response = events[-1].response
    return response


def plain(client: OpenAI, **request: Any) -> Response:
    return client.responses.create(model="scripted", **request)


@pytest.mark.parametrize("ask", [plain, streamed, on_socket])
def test_a_tool_of_an_mcp_server_is_called(client: OpenAI, notes: dict[str, Any], ask: Any) -> None:
    response = ask(client, input='!call notes__echo {"text": "hi"}', tools=[notes])

    listing, call, message = response.output
    assert [tool.name for tool in listing.tools] == ["echo", "delete", "fail", "slow", "big"]
    assert (call.type, call.output, call.error) == ("mcp_call", "echo: hi", None)
    assert "echo: hi" in message.content[0].text
    assert "canary" not in response.model_dump_json(warnings=False)


@pytest.mark.parametrize("ask", [plain, streamed, on_socket])
def test_the_web_is_searched_and_cited(client: OpenAI, ask: Any) -> None:
    response = ask(
        client,
        input='!call web_search {"query": "Oslo"}',
        tools=[{"type": "web_search"}],
        include=["web_search_call.action.sources"],
    )

    search, message = response.output
    assert [source.url for source in search.action.sources] == [PAGE["url"]]
    assert {annotation.url for annotation in message.content[0].annotations} == {PAGE["url"]}


def test_an_approval_goes_back_and_forth_on_a_socket(client: OpenAI, notes: dict[str, Any]) -> None:
    with client.responses.connect() as connection:
        first = turn(connection, input='!call notes__delete {"name": "a"}', tools=[notes], store=False)
        request = first.output[-1]
        assert request.type == "mcp_approval_request"
        approval = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
        second = turn(connection, input=[approval], previous_response_id=first.id, tools=[notes], store=False)

    assert (second.output[0].type, second.output[0].output) == ("mcp_call", "deleted a")
    assert second.output[0].approval_request_id == request.id
    assert second.output[-1].type == "message"


def test_an_approval_goes_back_and_forth_over_http(client: OpenAI, notes: dict[str, Any]) -> None:
    first = plain(client, input='!call notes__delete {"name": "b"}', tools=[notes])
    approval = {"type": "mcp_approval_response", "approval_request_id": first.output[-1].id, "approve": True}

    second = plain(client, input=[approval], previous_response_id=first.id, tools=[notes])

    assert second.output[0].output == "deleted b"
    listed = client.responses.input_items.list(second.id, order="asc").data
    assert [item.type for item in listed] == [
        *("message", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response"),
    ]


def test_a_search_that_is_read_back_is_as_it_was_sent(client: OpenAI, tooled: Server) -> None:
    response = plain(client, input='!call web_search {"query": "Oslo"}', tools=[{"type": "web_search"}])

    read = client.responses.retrieve(response.id)

    assert read.output == response.output
    assert "model_output" not in read.model_dump_json()


@pytest.mark.parametrize("chained", [False, True], ids=["resends", "chains"])
async def test_the_agents_sdk_approves_calls_of_a_hosted_server(
    tooled: Server, key: str, notes: dict[str, Any], chained: bool
) -> None:
    asked: list[str] = []

    def approve(request: Any) -> Any:
        asked.append(request.data.name)
        return {"approve": True}

    tool = HostedMCPTool(tool_config=notes, on_approval_request=approve)  # type: ignore[arg-type]
    agent = Agent(name="Clerk", model="scripted", tools=[tool], model_settings=ModelSettings(store=False))
    more: Any = {"auto_previous_response_id": True} if chained else {}

    async with responses_websocket_session(api_key=key, base_url=tooled.base_url) as session:
        result = await session.run(agent, '!call notes__delete {"name": "c"}', **more)

    assert asked == ["delete"]
    assert "deleted c" in result.final_output
