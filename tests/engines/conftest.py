import pytest

from responses_ws.engines.openai_chat import OpenAIChat
from tests.fakes.chat_server import ChatServer


@pytest.fixture
async def server():
    async with ChatServer(faults={}) as server:
        yield server


@pytest.fixture
async def engine(server):
    engine = OpenAIChat("main", {"BASE_URL": server.url, "API_KEY": "secret"})
    yield engine
    await engine.aclose()
