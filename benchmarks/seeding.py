"""Many usage records at once, made within the database: each as plausible as the next, and always the same."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import F

from responses_ws.billing.rebuilding import fill_day
from responses_ws.models import Account, ApiKey, Journal, Organization, Posting, Project, UsageRecord

ORGANIZATIONS, PROJECTS, KEYS = 20, 2, 5
"""Of an organisation, of a project: 200 keys, of which few are busy."""
DAYS = 90
AT_ONCE = 500_000
IN_LEDGER = 500_000
"""The newest records have entries in the ledger, too: lists show those, and look the others' up nowhere."""
PRICE_NANO = {"input": 2_000, "cached": 500, "output": 8_000}
"""For a token."""

_RECORDS = """
INSERT INTO responses_ws_usagerecord (
    response_id, organization_id, project_id, api_key_id, model, service_tier, transport, status, reason, is_warmup,
    estimated, input_tokens, cached_tokens, cache_write_tokens, output_tokens, reasoning_tokens, tool_calls,
    render_path, rendered_tokens, started_at, ended_at, checks_ms, render_ms, first_token_ms, duration_ms,
    lease_until, billed_at, billing_tries, billing_error
)
SELECT
    'resp_' || {hexadecimal} || n, k.organization_id, k.project_id, k.api_key_id,
    CASE WHEN c < 0.8 THEN 'model-' || (k.number %% 3) ELSE 'model-small' END,
    CASE WHEN d < 0.9 THEN 'default' ELSE 'flex' END,
    CASE WHEN c < 0.7 THEN 'websocket' WHEN c < 0.9 THEN 'sse' ELSE 'http' END,
    CASE WHEN b < 0.95 THEN 'completed' WHEN b < 0.965 THEN 'incomplete' WHEN b < 0.98 THEN 'failed'
         WHEN b < 0.995 THEN 'cancelled' ELSE 'abandoned' END,
    CASE WHEN b < 0.95 THEN '' WHEN b < 0.965 THEN 'max_output_tokens' WHEN b < 0.972 THEN 'server_error'
         WHEN b < 0.976 THEN 'engine_timeout' WHEN b < 0.98 THEN 'engine_overloaded' WHEN b < 0.995 THEN 'client_left'
         ELSE 'lease_expired' END,
    {false}, {false}, CAST(20000 * d + 200 AS bigint), CAST(16000 * d AS bigint), 0, CAST(900 * c + 10 AS bigint),
    CAST(300 * c AS bigint), CASE WHEN d < 0.2 THEN 2 ELSE 0 END, 'append', 200,
    {moment}, {moment}, 0.4 + a, 1 + 2 * d, CASE WHEN b < 0.97 THEN 40 / (1.02 - a) ELSE NULL END,
    40 / (1.02 - a) + 3000 * c, {moment}, {moment}, 0, ''
FROM (
    SELECT n, (n * 7919 %% 10007) / 10007.0 AS a, (n * 104729 %% 99991) / 99991.0 AS b,
        (n * 611953 %% 65537) / 65537.0 AS c, (n * 15485863 %% 32771) / 32771.0 AS d
    FROM {numbers}
) drawn JOIN bench_key k ON k.number = CAST({keys} * a * a AS integer)
"""
_FRAGMENTS = {
    "postgresql": {
        "numbers": "generate_series(CAST(%(first)s AS bigint), %(last)s) AS n",
        "moment": "to_timestamp(%(start)s + %(step)s * n)",
        "hexadecimal": "md5(CAST(n AS text))",
        "false": "false",
    },
    "sqlite": {
        "numbers": "(WITH RECURSIVE some(n) AS (SELECT %(first)s UNION ALL SELECT n + 1 FROM some WHERE n < %(last)s)"
        " SELECT n FROM some)",
        "moment": "strftime('%%Y-%%m-%%d %%H:%%M:%%S', %(start)s + %(step)s * n, 'unixepoch')",
        "hexadecimal": "printf('%%08x', n * 2654435761 %% 4294967296)",
        "false": "0",
    },
}


def seed(rows: int, now: datetime, told: Callable[[str], None]) -> None:
    """Fill empty tables with ``rows`` records of the last `DAYS` days, all billed, and their roll-ups."""
    _keys()
    today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    start = today - timedelta(days=DAYS - 1)
    step = (now - start).total_seconds() / rows
    query = _RECORDS.format(**_FRAGMENTS[connection.vendor], keys=ORGANIZATIONS * PROJECTS * KEYS)
    for first in range(1, rows + 1, AT_ONCE):
        last = min(first + AT_ONCE - 1, rows)
        with transaction.atomic(), connection.cursor() as cursor:
            if connection.vendor == "postgresql":
                # No look at what the rows refer to: we know.
                cursor.execute("SET LOCAL session_replication_role = replica")
            cursor.execute(query, {"first": first, "last": last, "start": start.timestamp(), "step": step})
        told(f"{last:,} records")
    _ledger()
    told("the newest in the ledger")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    amount = (
        (F("input_tokens") - F("cached_tokens")) * PRICE_NANO["input"]
        + F("cached_tokens") * PRICE_NANO["cached"]
        + F("output_tokens") * PRICE_NANO["output"]
    )
    made = 0
    for number in range(DAYS):
        day = start + timedelta(days=number)
        records = UsageRecord.objects.between(day, day + timedelta(days=1))
        with transaction.atomic():
            made += fill_day(day, records, "", amount)
    told(f"{made:,} roll-ups")
    with connection.cursor() as cursor:
        # As an hour of autovacuum does: the planner knows the tables, and pages their visibility.
        cursor.execute("VACUUM ANALYZE" if connection.vendor == "postgresql" else "ANALYZE")


def _keys() -> None:
    numbers: list[tuple[Any, ...]] = []
    for organization_number in range(ORGANIZATIONS):
        organization = Organization.objects.create(name=f"Organisation {organization_number:02}")
        for project_number in range(PROJECTS):
            project = Project.objects.create(organization=organization, name=f"project {project_number}")
            for key_number in range(KEYS):
                key = ApiKey.objects.create_with_secret(project=project, name=f"key {key_number}")
                numbers.append((len(numbers), organization.pk, project.pk, key.pk))
    with connection.cursor() as cursor:
        columns = ("number", "organization_id", "project_id", "api_key_id")
        cursor.execute(f"CREATE TABLE bench_key ({', '.join(f'{column} bigint' for column in columns)})")
        cursor.executemany("INSERT INTO bench_key VALUES (%s, %s, %s, %s)", numbers)


def _ledger() -> None:
    """Entries of the newest records; every organisation has its two accounts."""
    for organization in Organization.objects.all():
        for kind in (Account.Kind.RECEIVABLE, Account.Kind.REVENUE):
            Account.objects.create(organization=organization, kind=kind)
    journal, posting, account = (model._meta.db_table for model in (Journal, Posting, Account))
    amount = "(input_tokens - cached_tokens) * {input} + cached_tokens * {cached} + output_tokens * {output}"
    amount = amount.format(**PRICE_NANO)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            f"""
            INSERT INTO {journal} (idempotency_key, kind, organization_id, usage_id, rating_version, memo, occurred_at,
                posted_at)
            SELECT 'usage:' || response_id || ':1', 'usage', organization_id, id, 1, '', started_at, started_at
            FROM responses_ws_usagerecord ORDER BY id DESC LIMIT {IN_LEDGER}
            """
        )
        cursor.execute(
            f"""
            INSERT INTO {posting} (journal_id, account_id, amount_nano)
            SELECT j.id, a.id, ({amount}) * CASE a.kind WHEN 'revenue' THEN -1 ELSE 1 END
            FROM {journal} j JOIN responses_ws_usagerecord u ON u.id = j.usage_id
            JOIN {account} a ON a.organization_id = j.organization_id
            """
        )
