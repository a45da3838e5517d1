"""The shipped tools keep what every hosted tool promises."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from responses_ws.testing import ToolContract
from responses_ws.tools.base import HostedTool, Job, ToolError
from responses_ws.tools.file_search import FileSearch
from responses_ws.tools.mcp import Mcp
from responses_ws.tools.web_search import WebSearch
from tests.fakes.mcp_server import KEY
from tests.live import McpServer

MODULE = "responses_ws.tools"
FOUND = [
    {"url": "https://a.example/", "title": "A", "content": "About a.", "engine": "x", "score": 1.5},
    {"url": "https://b.example/", "title": "B", "content": None},
    {"url": "https://c.example/"},
]


class Searx:
    """Answers as SearXNG does, or as it is told to."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        self.answer: Any = {"query": "", "number_of_results": 3, "results": FOUND, "suggestions": []}
        self.status = 200

    async def search(self, request: web.Request) -> web.Response:
        self.asked.append(dict(request.query))
        return web.Response(status=self.status, text=json.dumps(self.answer), content_type="application/json")


@pytest.fixture
async def searx() -> AsyncIterator[Searx]:
    fake = Searx()
    app = web.Application()
    app.router.add_get("/search", fake.search)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"  # type: ignore[attr-defined]
    yield fake
    await runner.cleanup()


def searching(searx: Searx, **options: Any) -> WebSearch:
    return WebSearch("web", {"PROVIDER": f"{MODULE}.web_search.Searxng", "URL": searx.url, **options})  # type: ignore[attr-defined]


class TestSearxng(ToolContract):
    given = {"type": "web_search_2025_08_26"}
    name = "web_search"
    arguments = {"query": "a"}

    @pytest.fixture(autouse=True)
    def _searx(self, searx: Searx) -> None:
        self.searx = searx

    def tool(self) -> HostedTool:
        return searching(self.searx)


class TestPagesInFile(ToolContract):
    given = {"type": "web_search"}
    name = "web_search"
    arguments = {"query": "a"}

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        self.path = tmp_path / "pages.jsonl"
        self.path.write_text('{"url": "https://a.example/", "title": "A", "text": "About a."}\n')

    def tool(self) -> HostedTool:
        return WebSearch("web", {"PROVIDER": f"{MODULE}.web_search.PagesInFile", "PATH": str(self.path)})


class TestTextsInFolder(ToolContract):
    given = {"type": "file_search", "vector_store_ids": ["vs_a"]}
    name = "file_search"
    arguments = {"query": "a"}

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path
        (tmp_path / "vs_a").mkdir()
        (tmp_path / "vs_a" / "a.txt").write_text("About a.")

    def tool(self) -> HostedTool:
        return FileSearch("files", {"PROVIDER": f"{MODULE}.file_search.TextsInFolder", "PATH": str(self.path)})


class TestMcp(ToolContract):
    name = "echo"
    arguments = {"text": "a"}
    secrets = (KEY, "canary-of-a-path")

    @pytest.fixture(autouse=True)
    def _server(self, mcp_server: McpServer) -> None:
        self.server = mcp_server
        url = f"{mcp_server.origin}/private/mcp?key=canary-of-a-path"
        self.given = {"type": "mcp", "server_label": "notes", "server_url": url, "authorization": KEY}

    def tool(self) -> HostedTool:
        return Mcp("mcp", {"TRUSTED": [self.server.origin]})


async def _search(tool: WebSearch, **given: Any) -> Any:
    job = Job(tool={"type": "web_search", **given}, name="web_search", arguments={"query": "a & b"}, project_id=1)
    return await tool.run(job, lambda _word: None)


async def test_searxng_is_asked_for_json_and_understood(searx: Searx) -> None:
    outcome = await _search(searching(searx), search_context_size="low")

    assert searx.asked == [{"q": "a & b", "format": "json"}]
    assert json.loads(outcome.output) == [
        {"url": "https://a.example/", "title": "A", "text": "About a."},
        {"url": "https://b.example/", "title": "B", "text": ""},
        {"url": "https://c.example/", "title": "", "text": ""},
    ]


@pytest.mark.parametrize(
    ("status", "answer", "message"),
    [
        pytest.param(500, {}, "did not answer: the status is 500", id="broken"),
        pytest.param(403, {}, "did not answer: the status is 403", id="json is switched off"),
        pytest.param(200, {"results": [{}]}, "could not be read", id="something else"),
    ],
)
async def test_a_search_engine_in_trouble_is_a_tool_error(searx: Searx, status: int, answer: Any, message: str) -> None:
    searx.status, searx.answer = status, answer

    with pytest.raises(ToolError, match=message) as failure:
        await _search(searching(searx))

    assert failure.value.fields["action"]["query"] == "a & b"


async def test_an_answer_of_the_search_engine_has_a_limit(searx: Searx) -> None:
    with pytest.raises(ToolError, match="more than 100 bytes"):
        await _search(searching(searx, MAX_BYTES=100))
