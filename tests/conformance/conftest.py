"""One live server for all of these tests, with two engines behind it, and the clients that call on it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live import ModelServer, Server

from .raw import Door


@pytest.fixture(scope="session")
def model_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    with ModelServer(directory=tmp_path_factory.mktemp("model_server")) as running:
        yield running


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the servers' common database."""
    directory = tmp_path_factory.mktemp("live")
    Server(directory=directory, name="migrate").migrate()
    return directory


@pytest.fixture(scope="session")
def server(database: Path, model_server: ModelServer) -> Iterator[Server]:
    with Server(directory=database, engine_url=model_server.url) as running:
        yield running


@pytest.fixture(scope="session")
def second(database: Path, model_server: ModelServer) -> Iterator[Server]:
    """Another process, impatient with its engines. It shares a database with the first, and nothing else."""
    # What others have left in the background wants more patience: it takes over nothing.
    limits = {"engine_first_delta_seconds": 2.0, "engine_next_delta_seconds": 2.0, "background_turns": 0}
    with Server(directory=database, name="second", engine_url=model_server.url, limits=limits) as running:
        yield running
        assert not running.trouble(), running.output()


@pytest.fixture(scope="session")
def restless(database: Path, model_server: ModelServer) -> Iterator[Server]:
    """Another process, whose clients are told ten times a second that it lives."""
    limits = {"keep_alive_seconds": 0.1, "created_seconds": 0.02}
    with Server(directory=database, name="restless", engine_url=model_server.url, limits=limits) as running:
        yield running
        assert not running.trouble(), running.output()


@pytest.fixture(scope="session")
def key(database: Path) -> str:
    return Server(directory=database, name="createkey").create_key("conformance")


@pytest.fixture(scope="session")
def foreign_key(database: Path) -> str:
    """A key of another project."""
    return Server(directory=database, name="createkey").create_key("stranger", project="another")


@pytest.fixture(params=["scripted", "fake-chat"])
def model(request: pytest.FixtureRequest) -> str:
    """Both kinds of engine: one in the server's process, one behind chat completions."""
    return request.param


@pytest.fixture
def door(server: Server, key: str) -> Door:
    return Door(server, key)


@pytest.fixture(autouse=True)
def healthy_log(request: pytest.FixtureRequest) -> Iterator[None]:
    """No client, however rude, makes the server log a traceback."""
    if "server" not in request.fixturenames:
        yield
        return
    running: Server = request.getfixturevalue("server")
    before = len(running.output())
    yield
    assert not running.trouble(before), running.output()[before:]


@pytest.fixture
def journal(tmp_path: Path) -> dict[str, str]:
    """Settings with which no turn waits for a commit."""
    return {"DURABILITY": "journal", "JOURNAL_DIR": str(tmp_path)}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    running = getattr(item, "funcargs", {}).get("server")
    if report.failed and running is not None:
        report.sections.append(("server log", running.output()[-5000:]))
    return report
