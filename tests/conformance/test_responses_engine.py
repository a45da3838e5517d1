"""The engine that speaks to another Responses server keeps the contract of engines: with our own server upstream."""

import asyncio
import contextlib
from typing import Any

import pytest

from responses_ws.engines.responses import Responses
from responses_ws.rendering.chat import ChatPrompt
from responses_ws.rendering.tools import ToolSet
from responses_ws.testing import EngineContract, chat_request
from tests.live import Server, until

pytestmark = pytest.mark.conformance


def asked(text: str, **fields: Any) -> Any:
    prompt = ChatPrompt(takes=frozenset({"items"})).extended([{"role": "user", "content": text}])
    return chat_request("", prompt=prompt, **fields)


class TestOverHttp(EngineContract):
    model = "scripted"
    transport = "http"

    @pytest.fixture(autouse=True)
    def _upstream(self, server: Server, key: str) -> None:
        self.server, self.key = server, key

    @contextlib.asynccontextmanager
    async def engine(self):
        options = {"BASE_URL": self.server.base_url, "API_KEY": self.key, "TRANSPORT": self.transport}
        engine = Responses("upstream", options)
        self.ended = len(self.server.tokens.calls())
        try:
            yield engine
        finally:
            await engine.aclose()

    async def wait_until_free(self, engine):
        await asyncio.to_thread(until, lambda: len(self.server.tokens.calls()) > self.ended, "the call to end")

    def plain(self):
        return asked("Say hello.", max_output_tokens=64)

    def endless(self):
        return asked("!tokens 1000000 !rate 100")

    def limited(self):
        return asked("!tokens 50", max_output_tokens=7)

    def refused(self):
        return asked("Hi", model="nobody-serves-this")

    def broken(self):
        return asked("!tokens 50 !break 3")

    def two_calls(self, tools):
        offer = ToolSet([{"type": "function", **tool["function"]} for tool in tools])
        encoded = offer.offer("auto", takes_tools=True, obeys_choice=True, as_items=True).encoded
        return asked("Weather in Oslo? !calls 2", tools=encoded)


class TestOverWebSocket(TestOverHttp):
    transport = "websocket"
