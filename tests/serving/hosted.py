"""Hosted tools for tests, and scripts that call them."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from responses_ws.engines.registry import registry
from responses_ws.engines.script import Call, Plan
from responses_ws.testing import ScriptedEngine
from responses_ws.tools.base import HostedFunction, HostedTool, Job, Outcome, Progress, ToolError
from tests.protocol import grammar

PAGES = [
    {"url": "https://oslo.example/weather", "title": "Weather in Oslo", "text": "It is clear and cold in Oslo."},
    {"url": "https://rome.example/", "title": "Rome", "text": "Rome has seven hills and much weather."},
]
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
WEB = {"type": "web_search"}
# The official client reads no kinds but the official ones.
NOTES = {"type": "local_shell"}


class Notebook(HostedTool):
    """Does as its arguments say, and remembers what it was asked: a tool of its own label."""

    types: ClassVar[frozenset[str]] = frozenset({"local_shell"})
    jobs: ClassVar[list[Job]] = []
    running: ClassVar[int] = 0
    most_running: ClassVar[int] = 0
    was_cancelled: ClassVar[asyncio.Event]
    began: ClassVar[asyncio.Event]
    seconds = 5.0
    output_bytes = 100

    def functions(self, tool: dict[str, Any], listing: Sequence[Mapping[str, Any]]) -> list[HostedFunction]:
        item = {"type": "mcp_call", "server_label": "notes", "name": "note"}
        parameters = {"type": "object", "properties": {"text": {"type": "string"}}}
        return [HostedFunction(tool=tool, name="note", namespace="notes", parameters=parameters, item=item)]

    async def run(self, job: Job, progress: Progress) -> Outcome:
        cls = type(self)
        cls.jobs.append(job)
        cls.running += 1
        cls.most_running = max(cls.most_running, cls.running)
        cls.began.set()
        text = job.arguments.get("text", "")
        try:
            # Until all that is going to run at the same time does.
            for _ in range(20):
                await asyncio.sleep(0)
            if text == "wait":
                await asyncio.Event().wait()
            if text == "break":
                raise RuntimeError("a secret of its own")
            if text == "half":
                return Outcome(output="half a pair: \ud800")
            if text == "fail":
                raise ToolError("There is no paper left.")
            return Outcome(output=f"noted: {text}")
        except asyncio.CancelledError:
            cls.was_cancelled.set()
            raise
        finally:
            cls.running -= 1


@pytest.fixture(autouse=True)
async def run_here(settings: Any, tmp_path: Path) -> AsyncIterator[None]:
    """All three kinds are run, for every test of a module that imports this."""
    path = tmp_path / "pages.jsonl"
    path.write_text("\n".join(map(json.dumps, PAGES)))
    store = tmp_path / "stores" / "vs_1"
    store.mkdir(parents=True)
    (store / "guide.txt").write_text("Bring a coat to Oslo.\n\nRome is warm.")
    settings.RESPONSES_WS = settings.RESPONSES_WS | {
        "TOOLS": {
            "web": {
                "TOOL": "responses_ws.tools.web_search.WebSearch",
                "PROVIDER": "responses_ws.tools.web_search.PagesInFile",
                "PATH": str(path),
            },
            "files": {
                "TOOL": "responses_ws.tools.file_search.FileSearch",
                "PROVIDER": "responses_ws.tools.file_search.TextsInFolder",
                "PATH": str(store.parent),
            },
            "notes": {"TOOL": f"{__name__}.Notebook"},
        }
    }
    Notebook.jobs, Notebook.running, Notebook.most_running = [], 0, 0
    Notebook.was_cancelled, Notebook.began = asyncio.Event(), asyncio.Event()
    yield
    registry.reset()


def script(*answers: str | Plan) -> ScriptedEngine:
    engine = ScriptedEngine(*answers)
    registry.install("scripted", engine)
    return engine


def calls(*made: tuple[str, dict[str, Any]], **fields: Any) -> Plan:
    plan = [Call(name, json.dumps(arguments)) for name, arguments in made]
    return Plan(text=[], calls=plan, finish="tool_calls", **fields)


def note(text: str) -> tuple[str, dict[str, Any]]:
    return "notes__note", {"text": text}


def legal(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events, held against everything that is known of them."""
    return grammar.read(map(json.dumps, events))


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]
