"""What it costs to invoice a large month.

``python -m benchmarks.large_month`` fills a PostgreSQL of its own with a million billed responses of one organisation
in one month, with the working and the postings of each, and prints how long the draft, finalising and voiding take.
"""

import argparse
import importlib
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import django

from .durability import postgres
from .report import processor

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
NANO = 1_234_567
"""What each costs; every tenth has a tenth of it from credit."""

SEED = """
SET session_replication_role = replica;
INSERT INTO responses_ws_usagerecord (
    id, response_id, organization_id, project_id, api_key_id, model, service_tier, transport, status, reason, is_warmup,
    estimated, input_tokens, cached_tokens, cache_write_tokens, output_tokens, reasoning_tokens, tool_calls,
    render_path, rendered_tokens, started_at, ended_at, lease_until, billed_at, billing_tries, billing_error
)
SELECT n, 'resp_' || md5(n::text), k.organization_id, k.project_id, k.api_key_id, 'model-' || n % 5, 'default',
    'websocket', 'completed', '', false, false, 1000, 0, 0, 100, 0, 0, '', 0, m, m, m, m, 0, ''
FROM generate_series(1, {rows}) n JOIN bench_key k ON k.number = n % 20,
    LATERAL (SELECT timestamptz '2026-10-01 00:00+00' + interval '31 days' * n / {rows} * 0.999 AS m) moment;
INSERT INTO responses_ws_journal (id, idempotency_key, kind, organization_id, usage_id, rating_version, memo,
    occurred_at, posted_at)
SELECT id, 'usage:' || response_id || ':1', 'usage', organization_id, id, 1, '', started_at, started_at
FROM responses_ws_usagerecord;
INSERT INTO responses_ws_ratedline (journal_id, component, quantity, amount_nano)
SELECT id, component, quantity, amount FROM responses_ws_journal,
    (VALUES ('input', 1000, {nano} - 1000), ('output', 100, 1000)) AS line(component, quantity, amount);
INSERT INTO responses_ws_posting (journal_id, account_id, amount_nano)
SELECT j.id, a.id, CASE a.kind WHEN 'revenue' THEN -{nano}
    WHEN 'prepaid' THEN {nano} / 10 ELSE {nano} - CASE WHEN j.id % 10 = 0 THEN {nano} / 10 ELSE 0 END END
FROM responses_ws_journal j JOIN responses_ws_account a ON a.kind <> 'prepaid' OR j.id % 10 = 0;
INSERT INTO responses_ws_grantuse (journal_id, grant_id, amount_nano)
SELECT id, (SELECT id FROM responses_ws_creditgrant), {nano} / 10 FROM responses_ws_journal WHERE id % 10 = 0;
SELECT setval(pg_get_serial_sequence(t, 'id'), {rows} * 10)
FROM unnest(ARRAY['responses_ws_journal', 'responses_ws_posting', 'responses_ws_usagerecord']) t;
SET session_replication_role = origin;
"""


def seed(rows: int) -> Any:
    models = importlib.import_module("responses_ws.models")
    connection = importlib.import_module("django.db").connection
    organization = models.Organization.objects.create(name="Acme")
    for kind in ("receivable", "revenue", "prepaid"):
        models.Account.objects.create(organization=organization, kind=kind)
    models.CreditGrant.objects.create(
        organization=organization, kind="paid", amount_nano=NANO * rows, remaining_nano=NANO * rows
    )
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE bench_key (number bigint, organization_id bigint, project_id bigint, api_key_id bigint)"
        )
        for number in range(20):
            project, _ = models.Project.objects.get_or_create(organization=organization, name=f"project {number % 4}")
            key = models.ApiKey.objects.create_with_secret(project=project, name=f"key {number}")
            values = (number, organization.pk, project.pk, key.pk)
            cursor.execute("INSERT INTO bench_key VALUES (%s, %s, %s, %s)", values)
        for statement in SEED.format(rows=rows, nano=NANO).split(";\n"):
            if statement.strip():
                cursor.execute(statement)
        cursor.execute("VACUUM ANALYZE")
    return organization


def timed(step: Callable[[], Any]) -> tuple[Any, float, int]:
    """What it returned, its seconds, and how many statements it took."""
    db = importlib.import_module("django.db")
    statements = 0

    def count(execute: Any, *args: Any) -> Any:
        nonlocal statements
        statements += 1
        return execute(*args)

    began = time.perf_counter()
    with db.connection.execute_wrapper(count):
        made = step()
    return made, time.perf_counter() - began, statements


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory(prefix="responses_ws_bench_", ignore_cleanup_errors=True) as directory:
        home = Path(directory)
        with postgres(home) as named:
            os.environ.update(named | {"RESPONSES_WS_VAR": str(home), "DEBUG": "0", "SECRET_KEY": "bench" * 10})
            os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
            django.setup()
            importlib.import_module("django.core.management").call_command("migrate", verbosity=0)
            measure(rows)
            importlib.import_module("django.db").connection.close()


def measure(rows: int) -> None:
    invoices = importlib.import_module("responses_ws.billing.invoices")
    reconcile = importlib.import_module("responses_ws.billing.reconcile")
    organization = seed(rows)
    print(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {processor()}, load {os.getloadavg()[0]:.1f}")
    print(f"{shlex.join(sys.orig_argv[1:])}: {rows:,} responses in one month\n")
    print(f"| {'step':<22} | seconds | statements |\n|{'-' * 24}|--------:|-----------:|")
    one, *told = timed(lambda: invoices.draft(organization, START, END))
    say("draft", *told)
    say("draft again", *timed(lambda: invoices.preview(one))[1:])
    say("finalise", *timed(lambda: invoices.finalize(one, END + timedelta(days=2)))[1:])
    found, *told = timed(lambda: [*reconcile._wrong_invoices(), *reconcile._uninvoiced(END + timedelta(days=9))])
    assert not found, found
    say("look of reconcile", *told)
    again, *told = timed(lambda: invoices.void(one))
    say("void, drafted again", *told)
    say("finalise again", *timed(lambda: invoices.finalize(again, END + timedelta(days=2)))[1:])
    print(f"\n{one.lines.count()} lines, {one.amount_nano:,} nano, {one.total_cents:,} cents")


def say(step: str, seconds: float, statements: int) -> None:
    print(f"| {step:<22} | {seconds:>7.1f} | {statements:>10} |", flush=True)


if __name__ == "__main__":
    main()
