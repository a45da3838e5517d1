"""System checks of what we lean on: one row a fault, and silence where there is none."""

from pathlib import Path
from typing import Any

import celery
import pytest
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.urls import path

from project.celery import app as celery_app
from responses_ws import service_checks
from responses_ws.routing import office_urlpatterns, websocket_urlpatterns

from .test_checks import found


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        ({}, []),
        ({"DURABILITY": "journal"}, ["E007"]),
        ({"DURABILITY": "journal", "JOURNAL_DIR": "{home}/new/journal"}, []),
        ({"DURABILITY": "journal", "JOURNAL_DIR": "{home}/file/journal"}, ["E007"]),
        ({"DURABILITY": "commit", "JOURNAL_DIR": "{home}/file/journal"}, []),
    ],
    ids=["none", "no place", "a place to be", "no directory", "not asked for"],
)
def test_running_ahead_needs_a_place(settings: Any, tmp_path: Path, given: dict[str, str], ids: list[str]) -> None:
    (tmp_path / "file").write_text("")
    settings.RESPONSES_WS = {key: value.replace("{home}", str(tmp_path)) for key, value in given.items()}

    assert [name for name, _ in found(service_checks.check_journal())] == ids


@pytest.mark.parametrize(("directory", "ids"), [("", ["W006"]), ("/var/lib/journal", [])])
def test_counts_have_a_place_when_the_database_is_down(settings: Any, directory: str, ids: list[str]) -> None:
    settings.RESPONSES_WS = {"JOURNAL_DIR": directory}

    assert [name for name, _ in found(service_checks.check_fallback())] == ids


@pytest.mark.parametrize(
    ("database", "text"),
    [
        ({"ENGINE": "django.db.backends.sqlite3"}, None),
        ({"OPTIONS": {}}, "has no pool"),
        ({"OPTIONS": {"pool": True}}, "wait for 30 s"),
        ({"OPTIONS": {"pool": {"timeout": 2}}}, "CONN_HEALTH_CHECKS"),
        ({"OPTIONS": {"pool": {"timeout": 2}}, "CONN_HEALTH_CHECKS": True}, "reconnect_timeout"),
        ({"OPTIONS": {"pool": {"timeout": 2, "reconnect_timeout": 1}}, "CONN_HEALTH_CHECKS": True}, None),
    ],
    ids=["sqlite", "no pool", "as it comes", "dead connections", "slow to return", "well"],
)
def test_postgresql_has_a_pool_that_nobody_waits_for(
    monkeypatch: pytest.MonkeyPatch, settings: Any, database: Any, text: str | None
) -> None:
    monkeypatch.setitem(settings.DATABASES, "default", {"ENGINE": "django.db.backends.postgresql", **database})

    messages = found(service_checks.check_pool())

    assert [name for name, _ in messages] == ([] if text is None else ["W005"])
    assert text is None or text in messages[0][1]


def test_the_demo_project_sets_all_that_celery_should_have(monkeypatch: pytest.MonkeyPatch) -> None:
    # Other tests leave apps of their own as the current one.
    monkeypatch.setattr(service_checks.celery, "current_app", celery_app)

    assert found(service_checks.check_celery()) == []


def test_celery_as_it_comes_is_told_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = celery.Celery("fresh", broker="redis://127.0.0.1:1/0", set_as_current=False)
    fresh.conf.accept_content = ["json", "pickle"]
    monkeypatch.setattr(service_checks.celery, "current_app", fresh)

    messages = found(service_checks.check_celery())

    assert [name for name, _ in messages] == ["W003"] * 5
    for hint in ("PREFETCH_MULTIPLIER", "TIME_LIMIT", "ACCEPT_CONTENT", "REMOTE_CONTROL", "visibility_timeout"):
        assert any(hint in text for _, text in messages), hint


@pytest.mark.parametrize(
    ("application", "ids"),
    [
        pytest.param("project.asgi.application", [], id="the router that we make"),
        pytest.param(f"{__name__}.with_the_office", [], id="a router of its own that has it"),
        pytest.param(f"{__name__}.without_the_office", ["W010"], id="a router of its own that has it not"),
        pytest.param(f"{__name__}.http_only", [], id="no sockets at all"),
        pytest.param(f"{__name__}.nowhere", [], id="no application"),
    ],
)
def test_a_router_without_the_live_view_is_told(settings: Any, application: str, ids: list[str]) -> None:
    settings.ASGI_APPLICATION = application

    assert [name for name, _ in found(service_checks.check_live_view())] == ids


def _routed(*routes: Any) -> ProtocolTypeRouter:
    sockets = URLRouter([*routes, path("v1/", URLRouter(websocket_urlpatterns))])
    return ProtocolTypeRouter({"websocket": AllowedHostsOriginValidator(sockets)})


with_the_office = _routed(*office_urlpatterns)
without_the_office = _routed()
http_only = ProtocolTypeRouter({"http": object()})
