"""System checks of what we lean on: the database's pool, Celery's settings, the journal's directory."""

import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import celery
from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register
from django.utils.module_loading import import_string

from .checks import settings_value

LONGEST_POOL_SECONDS = 10
LONGEST_RECONNECT_SECONDS = 5


@register()
def check_journal(**_kwargs: Any) -> list[CheckMessage]:
    """E007: running ahead of the database needs a place for the promise."""
    directory = settings_value("JOURNAL_DIR")
    if settings_value("DURABILITY") != "journal":
        return []
    if not directory:
        fault = "is empty"
    elif not _can_be_written(Path(str(directory))):
        fault = f"cannot be written: {directory}"
    else:
        return []
    return [
        Error(
            f'RESPONSES_WS["JOURNAL_DIR"] {fault}: ends wait for the database, with DURABILITY = "journal", too.',
            hint="Name a directory on a local disk, kept over restarts.",
            id="responses_ws.E007",
        )
    ]


def _can_be_written(directory: Path) -> bool:
    """Whether it is one, or could be made."""
    there = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


@register(deploy=True)
def check_fallback(**_kwargs: Any) -> list[CheckMessage]:
    """W006: where the counts go when the database is down."""
    if settings_value("JOURNAL_DIR") or settings_value("DURABILITY") == "journal":
        return []
    return [
        Warning(
            'RESPONSES_WS["JOURNAL_DIR"] is empty: of turns that end while the database is down, only the last '
            "checkpoint is billed.",
            hint="Name a directory on a local disk, kept over restarts.",
            id="responses_ws.W006",
        )
    ]


@register()
def check_pool(**_kwargs: Any) -> list[CheckMessage]:
    """W005: connections of PostgreSQL cost milliseconds each, and the pool's own patience is half a minute."""
    messages: list[CheckMessage] = []
    for alias, database in settings.DATABASES.items():
        if database.get("ENGINE") != "django.db.backends.postgresql":
            continue
        pool = database.get("OPTIONS", {}).get("pool")
        seconds = pool.get("timeout", 30) if isinstance(pool, dict) else 30
        if not pool:
            fault = "has no pool: a connection is made for every look-up"
        elif seconds > LONGEST_POOL_SECONDS:
            fault = f"lets its pool wait for {seconds} s for a connection, and with it the turns"
        elif not database.get("CONN_HEALTH_CHECKS"):
            fault = "has a pool without CONN_HEALTH_CHECKS: after a restart of the server, dead connections are used"
        elif pool.get("reconnect_timeout", 300) > LONGEST_RECONNECT_SECONDS:
            fault = "has a pool that tries again ever more rarely while the server is away (reconnect_timeout)"
        else:
            continue
        messages.append(
            Warning(
                f"DATABASES[{alias!r}] {fault}.",
                hint='"CONN_HEALTH_CHECKS": True, '
                '"OPTIONS": {"pool": {"min_size": 1, "max_size": 10, "timeout": 2, "reconnect_timeout": 1}}',
                id="responses_ws.W005",
            )
        )
    return messages


@register(deploy=True)
def check_celery(**_kwargs: Any) -> list[CheckMessage]:
    """W003: settings under which a killed worker, or a busy one, holds up billing. Our tasks set what tasks can."""
    return [
        Warning(f"Celery: {fault}.", hint=hint, id="responses_ws.W003")
        for fault, hint in _celery_faults(celery.current_app.conf)
    ]


def _celery_faults(conf: Any) -> Iterator[tuple[str, str]]:
    if conf.worker_prefetch_multiplier != 1:
        yield "a worker holds messages that it does not work on", "CELERY_WORKER_PREFETCH_MULTIPLIER = 1"
    if not conf.task_time_limit:
        yield "a task may hang for ever", "CELERY_TASK_TIME_LIMIT = 120"
    if set(conf.accept_content) - {"json", "application/json"}:
        yield "a worker runs what a message says in other forms than JSON", 'CELERY_ACCEPT_CONTENT = ["json"]'
    if conf.worker_enable_remote_control:
        yield "remote control leaves queues in the broker", "CELERY_WORKER_ENABLE_REMOTE_CONTROL = False"
    options = conf.broker_transport_options or {}
    if str(conf.broker_url or "").startswith("redis") and options.get("visibility_timeout", 3600) > 600:
        yield (
            "the message of a killed worker waits for longer than ten minutes",
            'CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": 300}',
        )


@register(deploy=True)
def check_live_view(**_kwargs: Any) -> list[CheckMessage]:
    """W010: the live view's page is there, and no route leads to its socket."""
    path = getattr(settings, "ASGI_APPLICATION", None)
    if not path or not apps.is_installed("django.contrib.admin"):
        return []
    try:
        routes = [pattern.callback for pattern in import_module("responses_ws.routing").office_urlpatterns]
        application = import_string(path)
    except Exception:
        # Whoever serves it says what is wrong with it.
        return []
    by_type = getattr(application, "application_mapping", {})
    if "websocket" not in by_type or any(route in _behind(by_type["websocket"]) for route in routes):
        return []
    return [
        Warning(
            f"{path} has no route for the socket of the admin's live view, which stays empty.",
            hint="Put *office_urlpatterns of responses_ws.routing into your URLRouter, or use websocket_router.",
            id="responses_ws.W010",
        )
    ]


def _behind(application: Any) -> list[Any]:
    """Everything that an ASGI application of Channels routes to, middleware looked through."""
    found, waiting = [], [application]
    while waiting:
        one = waiting.pop()
        found.append(one)
        waiting += [route.callback for route in getattr(one, "routes", ())]
        waiting += [inner for name in ("inner", "application") if (inner := getattr(one, name, None)) is not None]
    return found
