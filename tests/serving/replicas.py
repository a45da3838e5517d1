"""Several fake model servers behind one model."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from django.test import override_settings

from responses_ws.engines.registry import registry
from tests.fakes.chat_server import MODEL, ChatServer

OPENAI_CHAT = "responses_ws.engines.openai_chat.OpenAIChat"
SECONDS = 10.0


@asynccontextmanager
async def replicas(*servers: ChatServer, **replica: list[Any]) -> AsyncIterator[None]:
    """The model ``m``, answered by each of these servers as the engines ``0``, ``1``, ….

    ``replica`` gives a key of each replica's entry: ``WEIGHT=[1, 2]``.
    """
    engines = {str(number): {"ENGINE": OPENAI_CHAT, "BASE_URL": server.url} for number, server in enumerate(servers)}
    entries = [{"ENGINE": name, "UPSTREAM": MODEL} for name in engines]
    for key, values in replica.items():
        for entry, value in zip(entries, values, strict=True):
            entry[key] = value
    with override_settings(RESPONSES_WS={"ENGINES": engines, "MODELS": {"m": {"REPLICAS": entries}}}):
        try:
            yield
        finally:
            await registry.aclose_all()


async def until(probe: Callable[[], Any], what: str) -> None:
    """Returns once it is so. Raises AssertionError after a while."""
    deadline = asyncio.get_running_loop().time() + SECONDS
    while not probe():
        assert asyncio.get_running_loop().time() < deadline, f"waited for {what}"
        await asyncio.sleep(0.01)
