"""Budgets in the office: amounts as people write them, and how much of each is left."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from responses_ws.billing import ledger
from responses_ws.models import Budget
from tests.billing.rows import make_key, make_prices, make_project, make_record

pytestmark = pytest.mark.django_db


@pytest.fixture
def accountant(log_in: Any) -> Client:
    client: Client = log_in("add_budget", "change_budget", "view_budget", "view_organization")
    return client


def given(organization: Any, **fields: Any) -> dict[str, Any]:
    said = {"organization": organization.pk, "window": "month", "limit": "12.50", "is_hard": "on", "is_active": "on"}
    return {**said, "alerts": "50, 80 %, 100", "addresses": "a@example.com\nb@example.com", **fields}


def test_a_budget_is_written_in_the_words_of_people(accountant: Client) -> None:
    organization = make_project("acme").organization

    answer = accountant.post(reverse("admin:responses_ws_budget_add"), given(organization))

    assert answer.status_code == 302
    budget = Budget.objects.get()
    assert (budget.limit_nano, budget.window, budget.is_hard) == (12_500_000_000, "month", True)
    assert budget.alert_percents == [50, 80, 100]
    assert budget.emails == ["a@example.com", "b@example.com"]


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"limit": "0"}, "not an amount above 0"),
        ({"limit": "many"}, "is not an amount"),
        ({"limit": "1.0000000001"}, ""),
        ({"alerts": "80, most"}, "Whole percents"),
        ({"alerts": "0"}, "Whole percents"),
        ({"addresses": "nobody"}, "Enter a valid email address"),
        ({"webhook_url": "javascript:alert(1)"}, "Enter a valid URL"),
    ],
    ids=lambda value: str(value),
)
def test_what_is_no_budget_is_refused_with_a_reason(accountant: Client, fields: dict[str, str], complaint: str) -> None:
    organization = make_project("acme").organization

    answer = accountant.post(reverse("admin:responses_ws_budget_add"), given(organization, **fields))

    assert answer.status_code == 200
    assert complaint in answer.content.decode()
    assert not Budget.objects.exists()


def test_a_key_of_another_organisation_is_refused(accountant: Client) -> None:
    ours, theirs = make_project("acme"), make_project("globex")
    key = make_key(theirs)

    answer = accountant.post(reverse("admin:responses_ws_budget_add"), given(ours.organization, api_key=key.pk))

    assert "This key is another organisation" in answer.content.decode()
    assert not Budget.objects.exists()


def test_the_page_says_what_is_spent_held_and_left(boss: Client) -> None:
    make_prices(per_million={"input": 10**9})
    project = make_project("acme")
    make_record(project, input_tokens=4_000_000, output_tokens=0, started_at=timezone.now())
    ledger.bill_all()
    budget = Budget.objects.create(organization=project.organization, limit_nano=5 * 10**9)

    listed = boss.get(reverse("admin:responses_ws_budget_changelist")).content.decode()
    shown = boss.get(reverse("admin:responses_ws_budget_change", args=(budget.pk,))).content.decode()

    for text in (listed, shown):
        assert "80 % used" in text
        assert "4.00 USD" in text
        assert "1.00 USD" in text
    assert "0.00 USD" in shown
    assert "nobody yet" in shown
