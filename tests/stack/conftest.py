"""One stack, and one rig for what is broken, for all tests of this folder: their start takes its time."""

from collections.abc import Iterator

import pytest
from openai import OpenAI

from .chain import client, create_key, create_prices
from .rig import Rig, Web
from .stack import Stack


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """All services of docker-compose.yml, but the embedded model; the proxy where nginx is installed."""
    with Stack(environ={"EMBEDDED_MODEL": "0"}, say=print) as running:
        create_prices(running)
        yield running
    trouble = running.trouble()
    assert not trouble, f"in the logs below {running.directory}: {trouble}"
    running.discard()


@pytest.fixture(scope="session")
def key(stack: Stack) -> str:
    return create_key(stack)


@pytest.fixture
def web1(stack: Stack, key: str) -> Iterator[OpenAI]:
    with client(stack.url("web1"), key) as opened:
        yield opened


@pytest.fixture
def web2(stack: Stack, key: str) -> Iterator[OpenAI]:
    with client(stack.url("web2"), key) as opened:
        yield opened


@pytest.fixture(scope="session")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """On SQLite. Every test leaves it healed and checked."""
    with Rig(tmp_path_factory.mktemp("rig")) as running:
        yield running


@pytest.fixture(scope="session")
def well(rig: Rig) -> Web:
    """The rig's server that is not killed."""
    return rig.web("well")
