"""An image is looked at once, however many turns it stays in the context, and goes to the engine as it came."""

import sys
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import pytest

from responses_ws.connection.chain import Chains
from responses_ws.engines.openai_chat import OpenAIChat
from responses_ws.engines.registry import registry
from responses_ws.engines.responses import Responses
from responses_ws.protocol import images, items
from responses_ws.serving.admission import Principal
from tests.fakes.chat_server import MODEL, ChatServer
from tests.fakes.responses_server import ResponsesServer

from .turns import asked, response_of

DATA = b"\x89PNG\r\n\x1a\n" + b"x" * 300_000
PNG = f"data:image/png;base64,{b64encode(DATA).decode()}"
SEEN = {
    "role": "user",
    "content": [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": PNG}],
}
TURNS = 10


@contextmanager
def counted(*functions: Any) -> Iterator[Counter[str]]:
    """How often these are called on this thread."""
    names = {function.__code__: function.__name__ for function in functions}
    calls: Counter[str] = Counter()

    def look(frame: FrameType, event: str, _argument: Any) -> None:
        code: CodeType = frame.f_code
        if event == "call" and code in names:
            calls[names[code]] += 1

    sys.setprofile(look)
    try:
        yield calls
    finally:
        sys.setprofile(None)


async def converse(principal: Principal, settings: Any) -> Counter[str]:
    """One turn with the image, the others about it; what was called to check images."""
    chains, newest = Chains(), None
    with counted(images.check_image, items.check_part) as calls:
        for turn in range(TURNS):
            ask = asked(
                principal,
                "And now?" if turn else [SEEN],
                chains=chains,
                previous_response_id=newest,
                store=False,
            )
            newest = (await response_of(ask))["id"]
    return calls


@pytest.fixture
def model(settings: Any) -> None:
    settings.RESPONSES_WS = {
        **settings.RESPONSES_WS,
        "MODELS": {"scripted": {"ENGINE": "scripted", "UPSTREAM": MODEL}},
    }


async def test_to_a_chat_engine(principal: Principal, settings: Any, model: None) -> None:
    async with ChatServer() as server:
        engine = OpenAIChat("scripted", {"BASE_URL": server.url, "SUPPORTS": ["images"]})
        registry.install("scripted", engine)
        calls = await converse(principal, settings)
        await engine.aclose()

    assert calls["check_image"] == 1
    assert calls["check_part"] == 2, "the parts of one message, once"
    told = [request["messages"][0]["content"][1]["image_url"]["url"] == PNG for request in server.requests]
    assert told == [True] * TURNS


@pytest.mark.parametrize("transport", ["http", "websocket"])
async def test_to_an_upstream(principal: Principal, settings: Any, model: None, transport: str) -> None:
    async with ResponsesServer() as server:
        options = {"BASE_URL": server.url, "SUPPORTS": ["images"], "TRANSPORT": transport}
        engine = Responses("scripted", options)
        registry.install("scripted", engine)
        calls = await converse(principal, settings)
        await engine.aclose()

    assert calls["check_image"] == 1
    told = [PNG in str(request["input"]) for request in server.requests]
    # On its socket the upstream has it already.
    assert told == [True, *[transport == "http"] * (TURNS - 1)]
