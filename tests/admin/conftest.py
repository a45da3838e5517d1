"""Staff with just the rights that a test names, and a room full of rows."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.utils import timezone

from responses_ws.billing import credits, deliveries, invoices, ledger
from responses_ws.models import (
    AdminKey,
    Budget,
    BudgetAlert,
    Delivery,
    Flag,
    Journal,
    PromptTemplate,
    PromptVersion,
    Reconciliation,
    SafetyRule,
    UsageRecord,
    WebSocketShare,
)
from responses_ws.stores import conversations, rows
from tests.billing.rows import NOON, make_key, make_prices, make_project, make_record

SCRIPT = "<script>alert('x')</script>"


@pytest.fixture
def log_in():
    """Logs in a member of staff with the permissions of these code names; ``superuser=True`` has them all."""

    def log_in(*codenames: str, superuser: bool = False) -> Client:
        user = User.objects.create(username=f"staff{User.objects.count()}", is_staff=True, is_superuser=superuser)
        permissions = Permission.objects.filter(content_type__app_label="responses_ws", codename__in=codenames)
        assert permissions.count() == len(codenames), codenames
        user.user_permissions.set(permissions)
        client = Client()
        client.force_login(user)
        return client

    return log_in


@pytest.fixture
def boss(log_in):
    return log_in(superuser=True)


@pytest.fixture
def filled(db):
    """Some of everything: billed and unbilled usage, a reversal, a key, prices, and a stored response in two turns."""
    now = timezone.now()
    project = make_project("acme", "chat")
    key = make_key(project)
    make_prices()
    AdminKey.objects.create_with_secret(organization=project.organization, name="books")
    for number, status in enumerate(UsageRecord.Status.values):
        make_record(
            project,
            api_key=key,
            status=status,
            started_at=now,
            first_token_ms=100.0 * number,
            duration_ms=2_345.0,
            input_tokens=1_234_567,
            cached_tokens=1_000,
            reasoning_tokens=5,
            estimated=status == "abandoned",
        )
    make_record(make_project("globex"), model="unpriced", started_at=now)
    ledger.bill_all()
    ledger.reverse(Journal.objects.usage().exclude(memo="").first(), "a test")
    make_record(project, started_at=now)
    say(project, "resp_stored", [{"id": "msg_1", "type": "message", "content": SCRIPT}])
    conversations.create(project.pk, "conv_kept", {"topic": "trains"}, [{"id": "msg_kept", "content": SCRIPT}])
    template = PromptTemplate.objects.create(project=project, name="greeting")
    PromptVersion.objects.create(template=template, text="Greet {{name}}.\n[user]\nHello", model="m")
    PromptVersion.objects.filter(template=template).publish()
    make_flag(project, "resp_stored", category="aws_access_key", action="redact", excerpt=SCRIPT)
    SafetyRule.objects.create(name="no bombs", kind="words", pattern="bomb", action="refuse")
    PromptVersion.objects.create(template=template, text="Greet {{name}} warmly.\n[user]\nHello", note="warmer")
    WebSocketShare.objects.create(project=project, percent=10)
    credits.grant(project.organization, 5, kind="paid", note="welcome")
    invoices.draft(project.organization, *invoices.month_of(now))
    Reconciliation.objects.create(started_at=now, ended_at=now, differences=0)
    budget = Budget.objects.create(organization=project.organization, limit_nano=10**9, emails=["office@example.com"])
    journal = Journal.objects.usage().first()
    entry = ledger.reversals_of([journal], "as another system is told of it", now)[0]
    Delivery.objects.create(sink="books", journal=journal, body=deliveries.facts(entry), due_at=None, error="410")
    BudgetAlert.objects.create(budget=budget, percent=80, window_start=now, spent_nano=9 * 10**8)
    return project


def make_flag(project, response_id, **fields):
    """An open flag, as a classifier raises it."""
    given = {"side": "input", "classifier": "rules", "category": "bomb", "action": "flag", **fields}
    return Flag.objects.create(project=project, response_id=response_id, model="m", **given)


def say(project, response_id, output, status="completed"):
    """Store a response with one item of input."""
    response = {
        "id": response_id,
        "previous_response_id": None,
        "model": "m",
        "status": status,
        "instructions": "be secret",
        "output": output,
    }
    items = [{"id": "msg_0", "type": "message", "content": "what was asked"}, *output]
    expires_at = timezone.now() + timedelta(days=30)
    rows.save(project_id=project.pk, response=response, parent=None, items=items, input_end=1, expires_at=expires_at)


__all__ = ["NOON", "SCRIPT", "make_flag", "say"]
