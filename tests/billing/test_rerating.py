"""What was billed wrongly is billed again: once, with all that hangs on it, and the books agree."""

from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.urls import reverse

from responses_ws.billing import credits, invoices, ledger, rerating
from responses_ws.billing.reconcile import reconcile
from responses_ws.billing.rerating import Rerated, rerate
from responses_ws.models import (
    Account,
    CreditGrant,
    Invoice,
    InvoiceLine,
    Journal,
    Price,
    UsageRecord,
    UsageRollup,
)

from .rows import NOON, make_prices, make_project, make_record

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)
DOLLAR = 10**9


def correct_prices(**per_million):
    """All prices were wrong: these are the right ones, since ever."""
    for price in Price.objects.standing():
        price.withdraw()
    make_prices(per_million=per_million)


def owed():
    return Account.objects.get(kind="receivable").balance_nano


@pytest.fixture
def billed():
    """Two turns of $0.0028 each, and one of another model."""
    make_prices()
    make_prices(model="other")
    records = [make_record(), make_record(), make_record(model="other")]
    ledger.bill_all()
    return records


def test_a_wrong_price_is_put_right_by_a_reversal_and_a_new_entry(billed):
    correct_prices(input=1 * DOLLAR, output=8 * DOLLAR)

    changed = list(rerate(UsageRecord.objects.filter(model="m"), "wrong price", apply=True))

    first, second, other = billed
    assert changed == [
        Rerated(
            response_id=record.response_id,
            currency="USD",
            before_nano=2_800_000,
            after_nano=1_800_000,
            memo_before="",
            memo_after="",
        )
        for record in (first, second)
    ]
    journals = Journal.objects.filter(usage=first).order_by("pk")
    assert [(one.idempotency_key, one.kind, one.rating_version, one.memo) for one in journals] == [
        (f"usage:{first.response_id}:1", "usage", 1, ""),
        (f"reversal:usage:{first.response_id}:1", "reversal", 1, "wrong price"),
        (f"usage:{first.response_id}:2", "usage", 2, ""),
    ]
    assert journals.last().occurred_at == NOON
    assert Journal.objects.filter(usage=other).count() == 1
    assert owed() == 2 * 1_800_000 + 2_800_000
    assert reconcile() == []


def test_a_second_time_nothing_happens(billed):
    correct_prices(input=1 * DOLLAR, output=8 * DOLLAR)
    list(rerate(UsageRecord.objects.filter(model="m"), "", apply=True))

    again = list(rerate(UsageRecord.objects.filter(model="m"), "", apply=True))

    assert again == []
    assert Journal.objects.count() == 3 + 2 * 2


def test_a_price_made_anew_with_the_same_amount_changes_nothing(billed):
    correct_prices(input=2 * DOLLAR, output=8 * DOLLAR)

    assert list(rerate(UsageRecord.objects.filter(model="m"), "", apply=True)) == []


def test_a_dry_run_says_the_same_and_writes_nothing(billed):
    correct_prices(input=1 * DOLLAR, output=8 * DOLLAR)
    records = UsageRecord.objects.filter(model="m")

    shown = list(rerate(records, "", apply=False))

    assert Journal.objects.count() == 3
    assert shown == list(rerate(records, "", apply=True))


def test_a_price_that_was_missing_is_charged_afterwards():
    record = make_record(model="new")
    ledger.bill_batch()
    make_prices("new")

    (one,) = rerate(UsageRecord.objects.all(), "", apply=True)

    assert (one.before_nano, one.after_nano, one.memo_before, one.memo_after) == (
        0,
        2_800_000,
        "no price in USD for model new",
        "",
    )
    assert Journal.objects.standing().get(usage=record).memo == ""
    assert reconcile() == []


def test_a_policy_that_changed_is_applied(billed, settings):
    UsageRecord.objects.filter(pk=billed[0].pk).update(status="cancelled")
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "BILL_CANCELLED": False}

    (one,) = rerate(UsageRecord.objects.all(), "", apply=True)

    assert (one.after_nano, one.memo_after) == (0, "cancelled: not billed by policy")


def test_what_was_taken_back_or_is_not_billed_is_left_alone(billed):
    ledger.reverse(Journal.objects.get(usage=billed[0]), "a present")
    make_record()
    make_record(status="in_progress")
    correct_prices(input=1 * DOLLAR, output=8 * DOLLAR)

    changed = list(rerate(UsageRecord.objects.filter(model="m"), "", apply=True))

    assert [one.response_id for one in changed] == [billed[1].response_id]
    ledger.bill_all()
    assert reconcile() == []


def test_many_records_are_rated_in_batches(billed, monkeypatch):
    monkeypatch.setattr(rerating, "BATCH", 2)
    for _ in range(3):
        make_record()
    ledger.bill_all()
    correct_prices(input=1 * DOLLAR, output=8 * DOLLAR)

    assert len(list(rerate(UsageRecord.objects.filter(model="m"), "", apply=True))) == 5
    assert reconcile() == []


def test_credit_is_given_back_and_used_anew():
    make_prices()
    project = make_project()
    now = datetime.now(UTC)
    credits.grant(project.organization, 3_000_000, kind="paid")
    make_record(project, started_at=now)
    make_record(project, started_at=now)
    ledger.bill_all()
    assert (CreditGrant.objects.get().remaining_nano, owed()) == (0, 2_600_000)
    correct_prices(input=1 * DOLLAR, output=DOLLAR)

    list(rerate(UsageRecord.objects.all(), "", apply=True))

    assert (CreditGrant.objects.get().remaining_nano, owed()) == (3_000_000 - 2 * 1_100_000, 0)
    assert reconcile() == []


def test_roll_ups_follow(billed):
    correct_prices(input=1 * DOLLAR, output=8 * DOLLAR)

    list(rerate(UsageRecord.objects.filter(model="m"), "", apply=True))

    row = UsageRollup.objects.get(width="day", model="m")
    assert (row.responses, row.completed, row.input_tokens, row.amount_nano) == (2, 2, 2_000, 3_600_000)


def test_what_is_on_an_invoice_is_put_right_on_the_next():
    make_prices()
    project = make_project()
    october = datetime(2026, 10, 1, tzinfo=UTC)
    make_record(project, started_at=october + DAY, input_tokens=10**6)
    ledger.bill_all()
    first = invoices.draft(project.organization, october, datetime(2026, 11, 1, tzinfo=UTC))
    invoices.finalize(first)
    correct_prices(input=1 * DOLLAR, output=8 * DOLLAR)

    list(rerate(UsageRecord.objects.all(), "wrong price", apply=True))

    first.refresh_from_db()
    now = datetime.now(UTC)
    start = datetime(now.year, now.month, 1, tzinfo=UTC)
    second = invoices.draft(project.organization, start, (start + 31 * DAY).replace(day=1))
    assert (first.amount_nano, first.status) == (2 * DOLLAR + 800_000, "finalized")
    assert Invoice.objects.get(pk=second.pk).amount_nano == -1 * DOLLAR
    sections = InvoiceLine.objects.filter(invoice=second).values_list("section", flat=True)
    assert "correction" in sections
    assert reconcile() == []


def run(*args):
    out = StringIO()
    call_command("responses_ws_rerate", *args, stdout=out)
    return out.getvalue()


def test_the_command_shows_the_difference_and_writes_when_told(billed):
    correct_prices(input=1 * DOLLAR, output=8 * DOLLAR)
    args = ["--model", "m", "--since", "2026-11-29", "--until", "2026-11-29T12:00:01Z", "--organization", "acme"]

    shown, done, again = run(*args), run(*args, "--apply", "--memo", "typo"), run(*args, "--apply")

    assert f"{billed[0].response_id}: 0.0028 USD → 0.0018 USD\n" in shown
    assert "Together: 0.0056 USD → 0.0036 USD\n2 of 2 records cost something else.\n" in shown
    assert shown.endswith("say --apply to do it.\n")
    assert done.endswith("2 of 2 records cost something else.\n")
    assert again == "0 of 2 records cost something else.\n"
    assert set(Journal.objects.filter(kind="reversal").values_list("memo", flat=True)) == {"typo"}


@pytest.mark.parametrize(
    ("choice", "count"),
    [
        pytest.param(["--since", "2026-11-29 12:00:01"], 0, id="later"),
        pytest.param(["--until", "2026-11-29 12:00"], 0, id="earlier"),
        pytest.param(["--organization", "globex"], 0, id="another organisation"),
        pytest.param(["--project", "default"], 2, id="project"),
        pytest.param(["--project", "other"], 0, id="another project"),
        pytest.param(["--model", "other"], 0, id="another model"),
    ],
)
def test_only_what_is_chosen_is_rated(billed, choice, count):
    correct_prices(input=1 * DOLLAR, output=8 * DOLLAR)
    make_prices(model="other")

    assert f"{count} of " in run(*choice)


def test_one_response_is_rated_by_its_id(billed):
    correct_prices(input=1 * DOLLAR, output=8 * DOLLAR)

    assert "1 of 1 records" in run("--response", billed[1].response_id)


@pytest.mark.parametrize("args", [[], ["--since", "soon"], ["--until", "2026-13-01"]])
def test_the_command_says_what_is_wrong(args):
    with pytest.raises(CommandError, match="what to rate again|neither a date"):
        run(*args)


def test_the_office_compares_and_rates_again(admin_client, billed):
    correct_prices(input=1 * DOLLAR, output=8 * DOLLAR)
    page = reverse("admin:responses_ws_usagerecord_changelist")
    chosen = [str(record.pk) for record in billed[:2]]

    def act(action):
        return admin_client.post(page, {"action": action, "_selected_action": chosen}, follow=True).content.decode()

    assert "2 records would cost something else: 0.0056 USD → 0.0036 USD." in act("compare_rating")
    assert Journal.objects.count() == 3
    assert "2 records were rated again" in act("rate_again")
    assert "Nothing changes" in act("rate_again")
    assert Journal.objects.filter(kind="reversal").first().memo == "rated again by admin"
    assert reconcile() == []
