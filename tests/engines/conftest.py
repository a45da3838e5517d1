import asyncio

import pytest
import uvloop

from responses_ws.engines.openai_chat import OpenAIChat
from tests.fakes.chat_server import ChatServer


def pytest_asyncio_loop_factories(config, item):
    loops = {"asyncio": asyncio.new_event_loop}
    if item.path.name in ("test_pool.py", "test_wire.py", "test_wire_flow.py"):
        # Transports of the two differ where connections end.
        loops["uvloop"] = uvloop.new_event_loop
    return loops


@pytest.fixture
async def server():
    async with ChatServer(faults={}) as server:
        yield server


@pytest.fixture
async def engine(server):
    engine = OpenAIChat("main", {"BASE_URL": server.url, "API_KEY": "secret"})
    yield engine
    await engine.aclose()
