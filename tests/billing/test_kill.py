"""Billing is killed with SIGKILL, again and again, and the books are right."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECORDS, KILLS = 3_000, 12

SEED = f"""
from tests.billing.rows import NOON, make_prices, make_project
from responses_ws.models import UsageRecord
make_prices()
project = make_project()
UsageRecord.objects.bulk_create(
    UsageRecord(
        response_id=f"resp_{{number}}", organization=project.organization, project=project, model="m",
        transport="websocket", status="completed", input_tokens=number, output_tokens=7,
        started_at=NOON, ended_at=NOON, lease_until=NOON,
    )
    for number in range({RECORDS})
)
"""
BILL = """
from responses_ws.billing import ledger
print("ready", flush=True)
while ledger.bill_batch(limit=5):
    pass
"""
TOTAL = """
from responses_ws.models import Account, Journal
print(Journal.objects.count(), Account.objects.get(kind="receivable").balance_nano)
"""


@pytest.mark.stack
def test_billing_survives_sigkill_at_any_moment(tmp_path):
    environment = {**os.environ, "RESPONSES_WS_VAR": str(tmp_path), "DJANGO_SETTINGS_MODULE": "project.settings"}
    environment.pop("DATABASE_URL", None)

    def manage(*command):
        arguments = [sys.executable, "manage.py", *command]
        return subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)

    def billing():
        command = [sys.executable, "manage.py", "shell", "--no-imports", "-c", BILL]
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)

    assert manage("migrate").returncode == 0
    assert manage("shell", "--no-imports", "-c", SEED).returncode == 0
    moments = random.Random(7)

    for _ in range(KILLS):
        process = billing()
        with process:
            assert process.stdout.readline() == "ready\n"
            try:
                process.wait(moments.uniform(0.005, 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
    with billing() as process:
        assert process.wait(60) == 0

    reconciled = manage("responses_ws_reconcile")
    assert reconciled.returncode == 0, reconciled.stdout
    expected = sum(number * 2_000 + 7 * 8_000 for number in range(RECORDS))
    assert manage("shell", "--no-imports", "-c", TOTAL).stdout.split() == [str(RECORDS), str(expected)]
