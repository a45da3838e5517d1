"""What the office's pages cost when there is much usage.

``python -m benchmarks.dashboard`` fills a database of its own with ten million usage records and their roll-ups, asks
every question of the dashboard of it, opens the pages, and prints one table. PostgreSQL, or SQLite with ``--sqlite``.
"""

import argparse
import contextlib
import importlib
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import django

from .durability import postgres
from .report import processor

Question = Callable[[], Any]


@contextlib.contextmanager
def database(home: Path, *, is_sqlite: bool) -> Iterator[None]:
    """An empty, migrated database, and Django with it."""
    home.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        named = {"DATABASE_URL": ""} if is_sqlite else stack.enter_context(postgres(home))
        os.environ.update(named | {"RESPONSES_WS_VAR": str(home), "DEBUG": "0", "SECRET_KEY": "bench" * 10})
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
        django.setup()
        management = importlib.import_module("django.core.management")
        management.call_command("migrate", verbosity=0)
        yield
        importlib.import_module("django.db").connection.close()


def questions(now: datetime) -> dict[str, Question]:
    """The dashboard's, on rows of days for a month and on rows of hours for a day."""
    models = importlib.import_module("responses_ws.models")
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    of_month, of_day = today - timedelta(days=29), now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=24)
    month, month_times, ends = (
        model.objects.days().between(of_month)
        for model in (models.UsageRollup, models.LatencyRollup, models.EndingRollup)
    )
    hours, hours_times = (model.objects.hours().between(of_day) for model in (models.UsageRollup, models.LatencyRollup))
    owner, project = models.Organization.objects.first(), models.Project.objects.first()
    key = models.ApiKey.objects.first()
    found: dict[str, Question] = {}
    for name, rows, times in (("30 days", month, month_times), ("24 hours", hours, hours_times)):
        found |= {
            f"{name}: series and totals": rows.totals,
            f"{name}: organisations, projects, keys and models": lambda rows=rows: rows.rankings(8),
            f"{name}: models to choose from": lambda rows=rows: list(
                rows.order_by().values_list("model", flat=True).distinct()
            ),
            f"{name}: times": times.latencies,
        }
    return found | {
        "30 days of an organisation: series": month.narrowed(organization_id=owner.pk).series,
        "30 days of a project: series": month.narrowed(project_id=project.pk).series,
        "30 days of a key: series": month.narrowed(api_key_id=key.pk).series,
        "30 days of a model: series": month.narrowed(model="model-small").series,
        "30 days: failures by code": lambda: list(ends.failures().by_reason()),
        "month against last": lambda: models.UsageRollup.objects.days().month_against_last(now),
        "unbilled, and the oldest": lambda: models.UsageRecord.objects.unbilled().backlog(),
        "in progress": lambda: models.UsageRecord.objects.in_progress().count(),
        "what a budget has spent": lambda: (
            models.UsageRollup.objects.days()
            .narrowed(organization_id=owner.pk)
            .between(today.replace(day=1), today + timedelta(days=1))
            .amount()
        ),
    }


def pages() -> dict[str, Question]:
    """What staff open, through all of Django but the socket."""
    from django.contrib.auth import get_user_model
    from django.test import Client

    models = importlib.import_module("responses_ws.models")
    client = Client()
    client.force_login(get_user_model().objects.get_or_create(username="boss", is_staff=True, is_superuser=True)[0])
    record = models.UsageRecord.objects.order_by("-pk")[1_000]
    project = models.Project.objects.first()
    usage = "/admin/responses_ws/usagerecord/"
    paths = {
        "page: dashboard": "/admin/responses_ws/dashboard/",
        "page: usage": usage,
        "page: usage, number 100": f"{usage}?p=100",
        "page: usage, searched by the beginning of an id": f"{usage}?q={record.response_id[:20]}",
        "page: usage, failed": f"{usage}?status__exact=failed",
        "page: usage, of today": f"{usage}?started_at__gte={datetime.now(UTC):%Y-%m-%d}+00:00:00%2B00:00",
        "page: usage, of a project": f"{usage}?project__id__exact={project.pk}",
        "page: usage, of a model": f"{usage}?model=model-small",
        "page: usage, sorted by tokens": f"{usage}?o=-6",
        "page: a usage record": f"{usage}{record.pk}/change/",
        "page: journal": "/admin/responses_ws/journal/",
        "page: journal, searched": f"/admin/responses_ws/journal/?q={record.response_id}",
        "page: API keys": "/admin/responses_ws/apikey/",
        "page: organisations": "/admin/responses_ws/organization/",
    }

    def opened(path: str) -> None:
        response = client.get(path, headers={"host": "localhost"}, secure=True)
        assert response.status_code == 200, (path, response.status_code)

    return {name: lambda path=path: opened(path) for name, path in paths.items()}


class Round(NamedTuple):
    """One answer to a question: milliseconds by the clock, of the processor in Django and in the database, statements.

    A busy machine makes the first longer and the others hardly.
    """

    clock: float
    django: float
    database: float
    statements: int


def measured(question: Question, rounds: int) -> list[Round]:
    """A first one, which is not counted, warms up. A slow question is asked once."""
    from django.db import connection

    statements = 0

    def count(execute: Any, *arguments: Any) -> Any:
        nonlocal statements
        statements += 1
        return execute(*arguments)

    def asked() -> Round:
        nonlocal statements
        statements = 0
        before = (time.perf_counter(), time.process_time(), backend_seconds())
        with connection.execute_wrapper(count):
            question()
        after = (time.perf_counter(), time.process_time(), backend_seconds())
        return Round(*((end - start) * 1000 for start, end in zip(before, after, strict=True)), statements)

    first = asked()
    return [first] if first.clock > 2_000 else [asked() for _ in range(rounds)]


def backend_seconds() -> float:
    """Of the processor, that PostgreSQL's process for us has used. SQLite works in ours; elsewhere than on Linux, 0."""
    from django.db import connection

    told = Path("/proc/-/schedstat")
    if connection.vendor == "postgresql":
        connection.ensure_connection()
        told = Path(f"/proc/{connection.connection.info.backend_pid}/schedstat")
    return int(told.read_text().split()[0]) / 1e9 if told.exists() else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="usage records (default: %(default)s)")
    parser.add_argument("--sqlite", action="store_true", help="on SQLite instead of PostgreSQL")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="measure only what has this in its name")
    parser.add_argument("--home", type=Path, help="where the database is, and stays (default: a directory that goes)")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        home = options.home or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="responses_ws_dashboard_")))
        stack.enter_context(database(home, is_sqlite=options.sqlite))
        from django.db import connection

        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                # What helpers of its process take would be in no sum.
                cursor.execute("SET max_parallel_workers_per_gather = 0")
        models = importlib.import_module("responses_ws.models")
        now = datetime.now(UTC)
        started = time.perf_counter()
        if not models.UsageRecord.objects.exists():
            seeding = importlib.import_module("benchmarks.seeding")
            seeding.seed(
                options.rows, now, lambda line: print(f"{time.perf_counter() - started:6.0f} s {line}", flush=True)
            )
        counted = [
            f"{model.objects.count():,}"
            for model in (models.UsageRecord, models.UsageRollup, models.LatencyRollup, models.EndingRollup)
        ]
        print(f"{datetime.now(UTC):%Y-%m-%d}, {processor()}, {os.cpu_count()} cores, {connection.display_name}")
        print(f"`python -m benchmarks.dashboard {shlex.join(sys.argv[1:])}`: {counted[0]} usage records,")
        print(f"{counted[1]} roll-ups, {counted[2]} of times, {counted[3]} of endings;")
        print(f"medians of {options.rounds} (fastest–slowest)\n")
        print("| | ms | processor: Django | database | statements |\n| --- | ---: | ---: | ---: | ---: |")
        for name, question in (questions(now) | pages()).items():
            if options.only in name:
                times = measured(question, options.rounds)
                clock, in_django, in_database, statements = (median(column) for column in zip(*times, strict=True))
                spread = f"{clock:.0f} ({min(times).clock:.0f}–{max(times).clock:.0f})"
                print(f"| {name} | {spread} | {in_django:.0f} | {in_database:.0f} | {statements:.0f} |", flush=True)


if __name__ == "__main__":
    main()
