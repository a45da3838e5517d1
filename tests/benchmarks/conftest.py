"""One engine and one server for all benchmarks: to start a server takes longer than their tiny runs."""

from collections.abc import Iterator

import pytest

from benchmarks import stream
from benchmarks.http import MODEL
from benchmarks.idle import ANSWER
from benchmarks.loop import Load
from benchmarks.stack import Server, fake_engine, responses_server

MODELS = [MODEL, *ANSWER.values(), *stream.models(50, 0.05), *stream.models(20 * 4, 0.05)]
MODELS += [Load(1, 5, 0, engine=engine).model for engine in ("chat", "ids")]


@pytest.fixture(scope="session")
def engine() -> Iterator[Server]:
    with fake_engine(MODELS) as server:
        yield server


@pytest.fixture(scope="session")
def server(engine: Server) -> Iterator[Server]:
    settings = {
        "ASGI_APPLICATION": "tests.benchmarks.application.application",
        "ROOT_URLCONF": "benchmarks.doors",
    }
    with responses_server(engine.url, MODELS, settings=settings) as started:
        yield started
