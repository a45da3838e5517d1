"""One model on two model servers, each a process: one is killed while it answers, and comes back."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.chat_server import MODEL
from tests.live import ModelServer, Server, until

from .raw import Door, Event, response_of

pytestmark = pytest.mark.conformance

AGENTS = 12
TURNS = 10
OPENAI_CHAT = "responses_ws.engines.openai_chat.OpenAIChat"
Turn = list[Event]


@pytest.fixture
def model_servers(tmp_path: Path) -> Iterator[list[ModelServer]]:
    with ModelServer(directory=tmp_path / "a") as a, ModelServer(directory=tmp_path / "b") as b:
        yield [a, b]


@pytest.fixture
def front(database: Path, model_servers: list[ModelServer]) -> Iterator[Server]:
    engines = {
        name: {"ENGINE": OPENAI_CHAT, "BASE_URL": one.url} for name, one in zip("ab", model_servers, strict=True)
    }
    models = {"m": {"REPLICAS": [{"ENGINE": name, "UPSTREAM": MODEL} for name in engines]}}
    with Server(directory=database, name="replicas", engines=engines, models=models) as running:
        yield running
        assert not running.trouble(), running.output()


async def agent(door: Door, turns: list[Turn], half_way: asyncio.Event) -> None:
    """Continues what it can, and begins anew where its last response has failed."""
    async with door.socket() as socket:
        previous = None
        for number in range(TURNS):
            given = f"!tokens 20 !rate 100 Turn {number}"
            turns.append(await socket.turn("m", input=given, store=False, previous_response_id=previous))
            is_well = turns[-1][-1]["type"] == "response.completed"
            previous = turns[-1][-1]["response"]["id"] if is_well else None
            if number == TURNS // 2:
                half_way.set()


async def test_a_model_server_that_dies_takes_only_what_it_was_saying(
    front: Server, model_servers: list[ModelServer], key: str
) -> None:
    dying, other = model_servers
    door = Door(front, key)
    turns: list[list[Turn]] = [[] for _ in range(AGENTS)]
    half_way = asyncio.Event()
    running = [asyncio.create_task(agent(door, one, half_way)) for one in turns]
    await half_way.wait()
    dying.kill()
    await asyncio.gather(*running)

    everything = [turn for one in turns for turn in one]
    failed = [turn for turn in everything if turn[-1]["type"] != "response.completed"]
    assert len(everything) == AGENTS * TURNS
    # What had not begun to speak was said by the other.
    for turn in failed:
        assert turn[-1]["type"] == "response.failed"
        assert any(event["type"] == "response.output_text.delta" for event in turn)
    assert len(failed) <= AGENTS
    # None has met it twice.
    assert all(sum(turn in failed for turn in one) <= 1 for one in turns)
    # All of it was metered.
    for turn in everything:
        status = turn[-1]["type"].removeprefix("response.")
        assert front.usage(turn[-1]["response"]["id"])["status"] == status

    before = len(dying.tokens.calls())
    dying.start()

    async def is_back() -> bool:
        async with door.socket() as socket:
            response_of(await socket.turn("m", input="Hi", store=False))
        return len(dying.tokens.calls()) > before

    async with asyncio.timeout(20):
        while not await is_back():
            pass
    until(lambda: "engine a is on trial" in front.output(), "the log to say so")
