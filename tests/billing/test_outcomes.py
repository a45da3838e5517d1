"""Every ending says who pays for it, in the ledger, in the admin and in the documentation alike."""

from pathlib import Path

import pytest

from responses_ws.billing import ledger, outcomes
from responses_ws.billing.outcomes import Policy, explained, waiver_for
from responses_ws.models import Journal, UsageRecord

from .rows import make_prices, make_record

BILL_ALL = Policy(bill_cancelled=True, bill_warmup=True, bill_abandoned=True)
BILL_LEAST = Policy(bill_cancelled=False, bill_warmup=False, bill_abandoned=False)


@pytest.mark.parametrize(
    ("status", "is_warmup", "policy", "waiver"),
    [
        pytest.param("completed", False, BILL_LEAST, "", id="completed"),
        pytest.param("incomplete", False, BILL_LEAST, "", id="incomplete"),
        pytest.param("failed", False, BILL_ALL, "failed: provider failures are free", id="failed"),
        pytest.param("failed", True, BILL_ALL, "failed: provider failures are free", id="failed warm-up"),
        pytest.param("cancelled", False, BILL_ALL, "", id="cancelled, billed"),
        pytest.param("cancelled", False, BILL_LEAST, "cancelled: not billed by policy", id="cancelled, free"),
        pytest.param("abandoned", False, BILL_ALL, "", id="abandoned, billed"),
        pytest.param("abandoned", False, BILL_LEAST, "abandoned: not billed by policy", id="abandoned, free"),
        pytest.param("completed", True, BILL_ALL, "", id="warm-up, billed"),
        pytest.param("completed", True, BILL_LEAST, "warm-up: the engine did no work", id="warm-up, free"),
        pytest.param("cancelled", True, BILL_LEAST, "warm-up: the engine did no work", id="cancelled warm-up"),
    ],
)
def test_who_pays_depends_on_how_it_ended(status, is_warmup, policy, waiver):
    assert waiver_for(status, is_warmup=is_warmup, policy=policy) == waiver


def test_the_default_policy_bills_what_was_made():
    assert Policy() == Policy(bill_cancelled=True, bill_warmup=False, bill_abandoned=True)


def test_every_ending_has_a_rule():
    ended = set(UsageRecord.Status.values) - {"in_progress"}

    assert {outcome.status for outcome in outcomes.OUTCOMES} == ended


def test_the_documentation_says_what_is_done():
    page = (Path(__file__).parents[2] / "docs" / "howto" / "money.md").read_text()

    assert outcomes.table() in page


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("fields", "sentences"),
    [
        pytest.param(
            {"status": "in_progress"}, "It still runs. Nothing is billed before it has ended.", id="in progress"
        ),
        pytest.param(
            {}, "All is well. Tokens: measured by the engine. Cost: by the prices of its start.", id="completed"
        ),
        pytest.param(
            {"status": "incomplete", "reason": "max_output_tokens"},
            "An output limit or a content filter ended it (max_output_tokens). Tokens: measured by the engine."
            " Cost: by the prices of its start.",
            id="incomplete",
        ),
        pytest.param(
            {"status": "failed", "reason": "server_error", "estimated": True},
            "The engine, or we, broke (server_error). Tokens: estimated, since the engine did not say."
            " Cost: failed: provider failures are free.",
            id="failed",
        ),
        pytest.param(
            {"status": "cancelled", "estimated": True},
            "The client left, or cancelled it, or its socket was closed; the engine was stopped at once. Tokens:"
            " estimated, since the engine did not say. Cost: by the prices of its start.",
            id="cancelled, estimated",
        ),
        pytest.param(
            {"is_warmup": True},
            "The engine did no work. Tokens: measured by the engine. Cost: warm-up: the engine did no work.",
            id="warm-up",
        ),
        pytest.param(
            {"model": "unpriced"},
            "All is well. Tokens: measured by the engine. Cost: no price in USD for model unpriced.",
            id="no price",
        ),
        pytest.param(
            {"model": "unpriced", "estimated": True},
            "All is well. Tokens: estimated, since the engine did not say. Cost: no price in USD for model unpriced.",
            id="no price, estimated",
        ),
    ],
)
def test_every_record_says_why_it_costs_what_it_costs(fields, sentences):
    make_prices()
    record = make_record(**fields)
    ledger.bill_batch()

    record.refresh_from_db()
    journal = Journal.objects.filter(usage=record).first()

    assert explained(record, journal and journal.memo) == sentences


@pytest.mark.django_db
def test_what_is_not_billed_says_so():
    record = make_record()

    assert explained(record, None).endswith("It waits to be billed.")
    record.billing_error = "IntegrityError: taken"
    assert explained(record, None).endswith("Not billed: IntegrityError: taken.")
    record.billed_at = record.ended_at
    assert explained(record, None).endswith("What was billed was taken back.")
