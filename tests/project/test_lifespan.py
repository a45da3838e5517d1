"""Start and end of a process, as an ASGI server tells them."""

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from responses_ws.engines.base import Capabilities, ChatRequest, Engine, EngineModel
from responses_ws.engines.registry import registry
from responses_ws.lifespan import lifespan
from responses_ws.runtime import background

# A process listens for control messages.
pytestmark = pytest.mark.django_db(transaction=True)

SECONDS = 10.0


class Recorded(Engine):
    """Notes when it is started and closed; ``BROKEN`` says what goes wrong."""

    capabilities = Capabilities(tokens=True)
    events: list[str] = []

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        super().__init__(name, options)
        if options.get("BROKEN") == "options":
            raise ValueError("BROKEN is not an option")

    def chat(self, request: ChatRequest) -> AbstractAsyncContextManager[Any]:
        raise NotImplementedError

    async def models(self) -> list[EngineModel]:
        return []

    async def start(self) -> None:
        self.events.append("start")
        if self.options.get("BROKEN") == "start":
            raise RuntimeError("no such file")
        if self.options.get("BROKEN") == "slow":
            await asyncio.Event().wait()

    async def aclose(self) -> None:
        self.events.append("close")


@pytest.fixture(autouse=True)
def events() -> list[str]:
    Recorded.events = []
    return Recorded.events


class Process:
    """The server's side of the lifespan."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.task = asyncio.create_task(lifespan({"type": "lifespan"}, self.told.get, self.said.put))

    async def tell(self, event: str) -> str:
        """The answer's type."""
        await self.told.put({"type": f"lifespan.{event}"})
        answer = await asyncio.wait_for(self.said.get(), SECONDS)
        return str(answer["type"]).removeprefix("lifespan.")


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        pytest.param("", ["start", "close"], id="well"),
        pytest.param("start", ["start", "close"], id="an engine that does not start"),
        pytest.param("slow", ["start", "close"], id="an engine that is still loading"),
    ],
)
async def test_engines_live_as_long_as_the_process(
    settings: Any, events: list[str], broken: str, expected: list[str]
) -> None:
    settings.RESPONSES_WS = {"ENGINES": {"a": {"ENGINE": f"{__name__}.Recorded", "BROKEN": broken}}}
    process = Process()

    answers = [await process.tell("startup"), await process.tell("shutdown")]
    await process.task

    assert answers == ["startup.complete", "shutdown.complete"]
    assert events == expected


async def test_an_engine_with_wrong_options_stops_the_server_at_once(settings: Any) -> None:
    settings.RESPONSES_WS = {"ENGINES": {"a": {"ENGINE": f"{__name__}.Recorded", "BROKEN": "options"}}}
    process = Process()

    answer = await process.tell("startup")
    await process.task

    assert answer == "startup.failed"


async def test_renderers_are_there_before_the_first_turn(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    engine = {"ENGINE": f"{__name__}.Recorded"}
    models = {
        "wrong": {"ENGINE": "a", "RENDERER": {"CLASS": "nowhere.Renderer"}},
        "right": {"ENGINE": "a", "RENDERER": {"CLASS": "tests.serving.bytes_model.BytesRenderer"}},
        "other": {"ALIAS": "right"},
        "*": {"ENGINE": "a"},
    }
    settings.RESPONSES_WS = {"ENGINES": {"a": engine}, "MODELS": models}
    process = Process()

    answer = await process.tell("startup")
    route = await registry.resolve("right")
    await process.tell("shutdown")
    await process.task

    # One that cannot be served keeps no other from it.
    assert answer == "startup.complete"
    assert type(route.renderer).__name__ == "BytesRenderer"
    assert [record.message for record in caplog.records if "cannot be served" in record.message] == [
        "model wrong cannot be served: RENDERER['CLASS']: cannot import 'nowhere.Renderer': No module named 'nowhere'"
    ]


async def test_what_a_turn_owes_is_finished_before_the_end(settings: Any) -> None:
    settings.RESPONSES_WS = {}
    finished = []

    async def owed() -> None:
        await asyncio.sleep(0.05)
        finished.append("recorded")

    process = Process()
    await process.tell("startup")
    background.spawn(owed())

    await process.tell("shutdown")
    await process.task

    assert finished == ["recorded"]
