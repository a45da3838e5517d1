"""The app in someone else's project, set up by the README's five lines."""

import os
import signal
import socket
from pathlib import Path

import pytest
from openai import AuthenticationError, OpenAI

from tests.live import until
from tests.ports import free_port

from .fresh_project import STOP_SECONDS, FreshProject, children, is_gone


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> tuple[FreshProject, str]:
    """The project and its key."""
    fresh = FreshProject(tmp_path_factory.mktemp("fresh"))
    return fresh, fresh.build()


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("manage.py", "runserver", "--noreload"), id="runserver with daphne"),
        pytest.param(("manage.py", "responses_ws_serve", "--port"), id="responses_ws_serve"),
    ],
)
@pytest.mark.conformance
def test_a_fresh_project_serves_turns_over_http_and_websocket(
    project: tuple[FreshProject, str], command: tuple[str, ...]
) -> None:
    fresh, key = project
    port = free_port()

    with fresh.serving(*command, str(port), port=port) as url, OpenAI(base_url=url, api_key=key) as client:
        first = client.responses.create(model="scripted", input="Hello")
        with client.responses.connect() as connection:
            connection.response.create(model="scripted", input="And again", previous_response_id=first.id)
            while (event := connection.recv()).type != "response.completed":
                assert event.type not in ("error", "response.failed"), event
        second = event.response
        with pytest.raises(AuthenticationError):
            client.with_options(api_key="sk-wrong").models.list()

    assert first.output_text == 'You said: "Hello"'
    assert second.output_text == 'You said: "And again"'
    assert second.previous_response_id == first.id


@pytest.mark.conformance
def test_several_workers_share_a_port_and_one_that_dies_is_replaced(project: tuple[FreshProject, str]) -> None:
    fresh, key = project
    port = free_port()

    with fresh.serving("manage.py", "responses_ws_serve", "--workers", "2", "--port", str(port), port=port) as url:
        assert fresh.server is not None
        before = children(fresh.server.pid)
        os.kill(before[0], signal.SIGKILL)
        until(lambda: before[0] not in (now := children(fresh.server.pid)) and len(now) == 2, "another worker")
        with OpenAI(base_url=url, api_key=key) as client:
            answers = [client.responses.create(model="scripted", input="Hello").output_text for _ in range(4)]
        workers = children(fresh.server.pid)
        fresh.server.terminate()
        code = fresh.server.wait(STOP_SECONDS)

    assert answers == ['You said: "Hello"'] * 4
    assert code == 0
    assert [pid for pid in workers if not is_gone(pid)] == []


def test_a_port_that_is_taken_is_named_by_the_server(project: tuple[FreshProject, str]) -> None:
    fresh, _ = project
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(RuntimeError) as failure:
            fresh.run("manage.py", "responses_ws_serve", "--port", str(port))

    assert f"Port {port} is taken; --port names another." in str(failure.value)
    assert "Traceback" not in str(failure.value)


def test_a_fresh_project_passes_its_checks(project: tuple[FreshProject, str]) -> None:
    fresh, _ = project

    said = fresh.run("manage.py", "check")

    # Nothing but Celery is left to set up.
    assert "responses_ws.E" not in said


def test_the_doctor_misses_nothing_but_celery_in_a_fresh_project(project: tuple[FreshProject, str]) -> None:
    fresh, _ = project

    with pytest.raises(RuntimeError) as failure:
        fresh.run("manage.py", "responses_ws_doctor")

    faults = [line for line in str(failure.value).splitlines() if line.startswith("FAULT")]
    assert faults == ["FAULT  Broker: Celery has none"]


def test_the_doctor_names_the_cure(project: tuple[FreshProject, str], tmp_path: Path) -> None:
    fresh, _ = project
    broken = FreshProject(fresh.directory)
    settings = 'from house.settings import *\nRESPONSES_WS = {**RESPONSES_WS, "REDIS_URL": "redis://127.0.0.1:1"}\n'
    (fresh.directory / "house" / "broken.py").write_text(settings)
    broken.environment["DJANGO_SETTINGS_MODULE"] = "house.broken"

    with pytest.raises(RuntimeError) as failure:
        broken.run("manage.py", "responses_ws_doctor")

    assert "FAULT  Redis" in str(failure.value)
    assert "cure: Start Redis" in str(failure.value)


def test_the_doctor_survives_settings_that_cannot_be_read(project: tuple[FreshProject, str]) -> None:
    fresh, _ = project
    broken = FreshProject(fresh.directory)
    settings = 'from house.settings import *\nRESPONSES_WS = {**RESPONSES_WS, "LIMITS": {"max_items": "many"}}\n'
    (fresh.directory / "house" / "unreadable.py").write_text(settings)
    broken.environment["DJANGO_SETTINGS_MODULE"] = "house.unreadable"

    with pytest.raises(RuntimeError) as failure:
        broken.run("manage.py", "responses_ws_doctor")

    assert "FAULT  Settings responses_ws.E001: RESPONSES_WS['LIMITS']['max_items'] is invalid" in str(failure.value)
    assert "Traceback" not in str(failure.value)
