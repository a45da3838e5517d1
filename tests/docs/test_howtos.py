"""The how-tos, followed to the letter: their blocks make a project, and the project does what they say."""

import re
from pathlib import Path
from typing import Any

import pytest
from openai import AuthenticationError, NotFoundError, OpenAI

from responses_ws import checks
from responses_ws.engines.registry import registry
from tests.ports import free_port
from tests.project.fresh_project import FreshProject

from .pages import DOCS, blocks_of

# What `startproject` has written and the how-tos add to; the other files are written whole.
ADDED_TO = {"mysite/settings.py", "mysite/urls.py", "mysite/__init__.py"}
HOWTOS = ("add-to-your-project", "engines", "testing", "safety", "hosted-tools")
PYTEST = """
[pytest]
DJANGO_SETTINGS_MODULE = mysite.settings
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
filterwarnings = error
"""


def project_of(directory: Path, *howtos: str) -> FreshProject:
    """A new project with the files of the how-tos, in order."""
    fresh = FreshProject(directory)
    fresh.run("-m", "django", "startproject", "mysite", ".")
    for howto in howtos:
        for block in blocks_of(DOCS / "howto" / f"{howto}.md"):
            if block.file:
                path = directory / block.file
                path.parent.mkdir(exist_ok=True)
                with path.open("a" if block.file in ADDED_TO else "w") as file:
                    file.write(block.text)
    fresh.run("manage.py", "migrate", "--verbosity", "0")
    return fresh


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> FreshProject:
    return project_of(tmp_path_factory.mktemp("howto"), *HOWTOS)


def test_the_project_of_the_howto_passes_every_check(project: FreshProject) -> None:
    said = project.run("manage.py", "check")

    assert "no issues" in said


@pytest.mark.conformance
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("manage.py", "runserver", "--noreload"), id="runserver"),
        pytest.param(("-m", "uvicorn", "mysite.asgi:application", "--port"), id="uvicorn"),
    ],
)
def test_the_agent_of_the_tutorial_runs_in_it_and_is_billed(project: FreshProject, command: tuple[str, ...]) -> None:
    key = project.run("manage.py", "responses_ws_createkey", "me").strip()
    (agent,) = [block for block in blocks_of(DOCS / "tutorial.md") if block.file == "demo/agent.py"]
    program = project.directory / "agent.py"
    program.write_text(agent.text)
    port = free_port()

    with project.serving(*command, str(port), port=port) as url:
        said = project.run(str(program), url, key)
    project.run("manage.py", "shell", "-c", "from responses_ws.tasks import bill_batch; bill_batch()")
    books = project.run("manage.py", "responses_ws_reconcile")

    assert said.count("[get_weather") == 2
    assert "0 records waiting to be billed" in books and "The books agree." in books


def test_the_tests_and_the_engine_of_the_howtos_pass(project: FreshProject) -> None:
    (project.directory / "pytest.ini").write_text(PYTEST)

    said = project.run("-m", "pytest", "-q", "-p", "no:cacheprovider")

    assert " passed" in said and "failed" not in said


@pytest.mark.conformance
def test_the_accounts_of_the_howto_own_what_they_store(tmp_path: Path) -> None:
    project = project_of(tmp_path, "add-to-your-project", "own-authentication")
    make = "from django.contrib.auth.models import User; [User.objects.create_user(n) for n in ('alice', 'bob')]"
    project.run("manage.py", "shell", "-c", make)
    alice, bob = (project.run("manage.py", "drf_create_token", name).split()[2] for name in ("alice", "bob"))
    port = free_port()

    with project.serving("manage.py", "responses_ws_serve", "--port", str(port), port=port) as url:
        with OpenAI(base_url=url, api_key=alice) as client:
            response = client.responses.create(model="scripted", input="Hello")
            found = client.responses.retrieve(response.id)
            with client.responses.connect() as connection:
                connection.response.create(model="scripted", input="Go on", previous_response_id=response.id)
                while (event := connection.recv()).type != "response.completed":
                    assert event.type not in ("error", "response.failed"), event
            with pytest.raises(NotFoundError):
                client.with_options(api_key=bob).responses.retrieve(response.id)
            with pytest.raises(AuthenticationError):
                client.with_options(api_key="nobody").models.list()

    assert found.output_text == 'You said: "Hello"'


def settings_in(howto: str) -> list[dict[str, Any]]:
    """The ``RESPONSES_WS`` dicts that a how-to shows whole."""
    texts = [block.text for block in blocks_of(DOCS / "howto" / f"{howto}.md") if block.language == "python"]
    found = []
    for text in texts:
        if re.search(r"^RESPONSES_WS = ", text, re.MULTILINE):
            names: dict[str, Any] = {}
            exec(text, names)
            found.append(names["RESPONSES_WS"])
    return found


@pytest.mark.parametrize("howto", ["engines", "production", "safety", "hosted-tools"])
def test_the_settings_shown_are_accepted(howto: str, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROVIDER_KEY", "sk-provider")

    shown = settings_in(howto)

    assert shown
    for given in shown:
        settings.RESPONSES_WS = given
        # The models of our examples are on nobody's disk.
        faults = [fault for fault in checks.check_settings() if fault.id != "responses_ws.W008"]
        assert faults + checks.check_dotted_paths() == []
        engines = given.get("ENGINES", {})
        assert [registry.engine(name).name for name in engines] == list(engines)
