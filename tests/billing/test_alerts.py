"""Parts of budgets that are spent are told: once each window, every way for itself, and never at billing's cost."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core import mail
from django.utils import timezone

from responses_ws.billing import alerts, ledger, webhooks
from responses_ws.models import Budget, BudgetAlert, Organization, Price, UsageRecord
from responses_ws.models.budgets import ALERT_TRIES
from responses_ws.runtime.http import FetchFailed
from responses_ws.signals import budget_alert

from .rows import make_key, make_prices, make_project, make_record

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 3, 18, 12, tzinfo=UTC)  # a Wednesday
DOLLAR = 10**9


@pytest.fixture
def heard() -> Iterator[list[dict[str, Any]]]:
    told: list[dict[str, Any]] = []

    def receiver(**facts: Any) -> None:
        told.append(facts)

    budget_alert.connect(receiver)
    yield told
    budget_alert.disconnect(receiver)


@pytest.fixture
def posted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, Any]]:
    sent: list[tuple[str, str, Any]] = []
    monkeypatch.setattr(webhooks, "tell", lambda *told: sent.append(told))
    return sent


def organization() -> Organization:
    if not Price.objects.exists():
        make_prices(per_million={"input": DOLLAR}, valid_from=NOW - timedelta(days=400))
    return make_project("acme").organization


def spend(dollars: int, at: datetime = NOW, **fields: Any) -> None:
    project = make_project("acme")
    make_record(project, started_at=at, input_tokens=dollars * 1_000_000, output_tokens=0, **fields)
    ledger.bill_all()


def budget(**fields: Any) -> Budget:
    return Budget.objects.create(**{"organization": organization(), "limit_nano": 10 * DOLLAR, **fields})


def told() -> list[tuple[int, int]]:
    return list(BudgetAlert.objects.order_by("id").values_list("budget", "percent"))


def test_each_part_is_noticed_once_a_window() -> None:
    month = budget()
    spend(7)
    assert alerts.notice(now=NOW) == 0

    spend(1)
    noticed = [alerts.notice(now=NOW), alerts.notice(now=NOW)]
    spend(5)
    alerts.notice(now=NOW)

    assert noticed == [1, 0]
    assert told() == [(month.pk, 80), (month.pk, 100)]


def test_in_a_new_window_it_begins_again() -> None:
    day = budget(window="day")
    spend(9)
    alerts.notice(now=NOW)
    next_day = NOW + timedelta(days=1)
    spend(8, at=next_day)
    alerts.notice(now=next_day)

    assert told() == [(day.pk, 80), (day.pk, 80)]


def test_what_is_billed_behind_midnight_is_news_of_the_day_before_and_of_no_other() -> None:
    day = budget(window="day")
    spend(9, at=datetime(2026, 3, 18, 23, 59, tzinfo=UTC))
    spend(1, at=datetime(2026, 3, 19, 0, 5, tzinfo=UTC))

    alerts.notice(now=datetime(2026, 3, 19, 0, 10, tzinfo=UTC))

    (alert,) = BudgetAlert.objects.all()
    assert (alert.budget, alert.percent, alert.spent_nano) == (day, 80, 9 * DOLLAR)
    assert alert.window_start == datetime(2026, 3, 18, tzinfo=UTC)


@pytest.mark.parametrize("window", ["day", "week", "month", "total"])
def test_every_window_counts_what_is_its_own(window: str) -> None:
    one = budget(window=window, limit_nano=100 * DOLLAR)
    for days, dollars in ((0, 1), (2, 10), (9, 100), (40, 1_000)):
        spend(dollars, at=NOW - timedelta(days=days))

    (row,) = Budget.objects.filter(pk=one.pk).with_spent(NOW)

    assert row.spent_nano // DOLLAR == {"day": 1, "week": 11, "month": 111, "total": 1_111}[window]


def test_a_budget_counts_what_it_names() -> None:
    whole = budget()
    project = make_project("acme")
    key, other = make_key(project), make_key(project)
    narrow = {"project": project, "api_key": key, "model": "m"}
    rows = [budget(**{name: narrow[name]}) for name in narrow] + [budget(**narrow)]
    make_prices(model="n", per_million={"input": DOLLAR}, valid_from=NOW - timedelta(days=400))
    spend(1, api_key=key, model="m")
    spend(10, api_key=other, model="m")
    spend(100, api_key=key, model="n")

    spent = {row.pk: row.spent_nano // DOLLAR for row in Budget.objects.with_spent(NOW)}

    assert [spent[row.pk] for row in (whole, *rows)] == [111, 111, 101, 11, 1]


def test_the_fullest_budgets_come_first() -> None:
    spend_limit = [(12, 9), (20, 10), (5, 9)]
    rows = [budget(limit_nano=limit * DOLLAR, is_active=limit != 5) for limit, _ in spend_limit]
    spend(9)

    near = list(Budget.objects.near_limit(NOW, percent=40))

    assert [row.pk for row in near] == [rows[0].pk, rows[1].pk]


def test_people_are_told_every_way(heard: list[dict[str, Any]], posted: list[Any]) -> None:
    row = budget(emails=["office@example.com"], webhook_url="https://hooks.example.com/x", is_hard=False)
    spend(8)
    alerts.notice(now=NOW)

    assert alerts.tell() == 1
    assert alerts.tell() == 0

    (signal,) = heard
    assert (signal["budget_id"], signal["percent"], signal["spent_nano"]) == (row.pk, 80, 8 * DOLLAR)
    (message,) = mail.outbox
    assert message.to == ["office@example.com"]
    assert "8.00 USD of 10.00 USD are spent" in message.body
    assert "Nothing is refused" in message.body
    ((url, event_id, body),) = posted
    assert (url, event_id) == ("https://hooks.example.com/x", f"budget_alert_{signal['alert_id']}")
    assert body["data"]["limit_nano"] == 10 * DOLLAR


def test_every_way_says_the_same_facts(heard: list[dict[str, Any]], posted: list[Any]) -> None:
    owner = organization()
    Organization.objects.update(currency="EUR")
    Price.objects.update(currency="EUR")
    row = budget(emails=["a@example.com", "b@example.com"], webhook_url="https://hooks.example.com/x", window="week")
    spend(8)
    alerts.notice(now=NOW)
    alerts.tell()

    facts = {
        "alert_id": BudgetAlert.objects.get().pk,
        "budget_id": row.pk,
        "organization_id": owner.pk,
        "percent": 80,
        "window_start": datetime(2026, 3, 16, tzinfo=UTC),
        "spent_nano": 8 * DOLLAR,
        "limit_nano": 10 * DOLLAR,
        "currency": "EUR",
    }
    (signal,) = heard
    assert signal.pop("sender") is BudgetAlert and signal.pop("signal")
    assert signal == facts
    ((_, _, body),) = posted
    created_at = BudgetAlert.objects.get().created_at
    assert body == {
        "type": "budget.alert",
        "timestamp": created_at.isoformat(),
        "data": {**facts, "window_start": "2026-03-16T00:00:00+00:00"},
    }
    (message,) = mail.outbox
    assert message.subject == f"80 % of the budget {row} is spent"
    assert message.to == ["a@example.com", "b@example.com"]
    assert message.body == (
        f"8.00 EUR of 10.00 EUR are spent since 2026-03-16 00:00 UTC.\n\nBudget: {row}\n"
        "Requests beyond it are refused.\n"
    )


def test_who_names_no_address_and_no_webhook_hears_the_signal_only(heard: list[Any], posted: list[Any]) -> None:
    budget()
    spend(8)
    alerts.notice(now=NOW)
    now = timezone.now()

    assert alerts.tell(now) == 1

    assert (len(heard), mail.outbox, posted) == (1, [], [])
    alert = BudgetAlert.objects.get()
    assert (alert.told, alert.told_at, alert.tries, alert.error) == (["signal"], now, 1, "")


def test_parts_are_reached_to_the_nano_unit() -> None:
    organization()
    row = budget(limit_nano=DOLLAR + 1, alert_percents=[100, 50])
    spend(1)
    alerts.notice(now=NOW)
    assert told() == [(row.pk, 50)]

    Budget.objects.update(limit_nano=DOLLAR)

    assert alerts.notice(now=NOW) == 1
    assert told() == [(row.pk, 50), (row.pk, 100)]


def test_only_active_budgets_of_those_that_were_billed_are_looked_at() -> None:
    mine = budget()
    budget(is_active=False)
    other = budget(organization=make_project("globex").organization)
    spend(8)
    make_record(make_project("globex"), started_at=NOW, input_tokens=9_000_000, output_tokens=0)
    ledger.bill_all()

    assert alerts.notice([], NOW) == 0
    assert alerts.notice([mine.organization_id], NOW) == 1
    assert alerts.notice(now=NOW) == 1

    assert told() == [(mine.pk, 80), (other.pk, 80)]


def test_news_of_a_window_that_is_over_are_told_for_an_hour() -> None:
    day = budget(window="day")
    spend(9, at=datetime(2026, 3, 18, 23, 59, tzinfo=UTC))

    assert alerts.notice(now=datetime(2026, 3, 19, 1, 0, tzinfo=UTC)) == 0
    assert alerts.notice(now=datetime(2026, 3, 19, 0, 59, 59, tzinfo=UTC)) == 1
    assert told() == [(day.pk, 80)]


def test_pauses_between_tries_double(monkeypatch: pytest.MonkeyPatch) -> None:
    budget(webhook_url="https://hooks.example.com/x")
    spend(8)
    alerts.notice(now=NOW)
    began = timezone.now()
    BudgetAlert.objects.update(created_at=began)
    tries: list[int] = []
    now = began

    def fails(*_told: Any) -> None:
        tries.append(int((now - began).total_seconds()))
        raise FetchFailed("the status is 500")

    monkeypatch.setattr(webhooks, "tell", fails)
    for second in range(0, 4500, 30):
        now = began + timedelta(seconds=second)
        alerts.tell(now)

    assert tries == [0, 30, 90, 210, 450, 930, 1890, 3810]


def test_what_is_told_by_somebody_else_at_this_moment_is_left_to_him(heard: list[Any]) -> None:
    budget()
    spend(8)
    alerts.notice(now=NOW)
    seen = BudgetAlert.objects.untold().get()
    BudgetAlert.objects.update(tries=1)

    assert not alerts._tell(seen, timezone.now())

    assert heard == []
    assert BudgetAlert.objects.get().tries == 1


def test_the_end_of_a_long_error_is_cut_off(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    budget(emails=["office@example.com"], webhook_url="https://hooks.example.com/x")
    spend(8)
    alerts.notice(now=NOW)

    def fails(*_told: Any, **_more: Any) -> None:
        raise FetchFailed("x" * 90)

    monkeypatch.setattr(webhooks, "tell", fails)
    monkeypatch.setattr(alerts, "send_mail", fails)
    alerts.tell()

    alert = BudgetAlert.objects.get()
    assert alert.error == f"email: FetchFailed: {'x' * 90}; webhook: FetchFailed: {'x' * 90}"[:200]
    # Addresses and URLs may be secrets: the log says which way only.
    assert f"Budget alert {alert.pk} cannot be told by email: FetchFailed" in caplog.text
    assert "xxx" not in caplog.text


def test_a_way_that_fails_is_tried_again_alone_and_not_for_ever(
    heard: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    budget(emails=["office@example.com"], webhook_url="https://hooks.example.com/x")
    spend(8)
    alerts.notice(now=NOW)
    tries: list[str] = []

    def fails(*_told: Any) -> None:
        tries.append("webhook")
        raise FetchFailed("the status is 500")

    monkeypatch.setattr(webhooks, "tell", fails)
    now = timezone.now()
    assert [alerts.tell(now), alerts.tell(now)] == [0, 0]
    assert len(tries) == 1, "it is not tried again at once"
    for day in range(1, 20):
        alerts.tell(now + timedelta(days=day))

    assert len(tries) == ALERT_TRIES
    assert (len(heard), len(mail.outbox)) == (1, 1)
    alert = BudgetAlert.objects.get()
    assert alert.told == ["signal", "email"]
    assert alert.told_at is None
    assert "the status is 500" in alert.error


def test_a_name_with_a_line_break_breaks_no_subject(heard: list[dict[str, Any]]) -> None:
    row = budget(emails=["office@example.com"], model="m\r\nBcc: x@example.com")
    BudgetAlert.objects.create(budget=row, percent=80, window_start=NOW, spent_nano=1)

    alerts.tell()

    (message,) = mail.outbox
    assert "\n" not in message.subject
    assert message.recipients() == ["office@example.com"]


@pytest.mark.django_db(transaction=True)
def test_billing_notices_and_an_error_of_it_costs_no_bill(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    row = budget(window="total")
    spend(8)
    assert told() == [(row.pk, 80)]

    def breaks(*_given: Any) -> int:
        raise RuntimeError("no")

    monkeypatch.setattr(alerts, "notice", breaks)
    spend(5)

    assert UsageRecord.objects.unbilled().count() == 0
    assert "no" in caplog.text
