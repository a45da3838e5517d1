"""Ways in which others have charged wrongly, each of them tried on our books."""

from datetime import timedelta

import pytest

from responses_ws.billing import ledger
from responses_ws.billing.reconcile import reconcile
from responses_ws.models import Account, Journal

from .rows import NOON, make_key, make_prices, make_project, make_record

pytestmark = pytest.mark.django_db


def charged(**fields):
    """What one turn costs, in nano-USD."""
    record = make_record(**fields)
    ledger.bill_batch()
    assert reconcile(NOON) == []
    return sum(Journal.objects.get(usage=record).lines.values_list("amount_nano", flat=True))


def test_cached_tokens_are_not_charged_at_the_full_price_nor_on_top():
    make_prices()

    assert charged(input_tokens=1_000, cached_tokens=1_000, output_tokens=0) == 500_000


def test_written_tokens_are_not_charged_beside_input():
    make_prices()

    assert charged(cache_write_tokens=400) == charged()


def test_reasoning_is_not_charged_on_top_of_output():
    make_prices()

    assert charged(reasoning_tokens=90) == charged()


def test_turns_of_one_key_and_one_socket_are_each_billed_under_their_own_response():
    make_prices()
    key = make_key(make_project())
    for number in range(5):
        make_record(api_key=key, started_at=NOON + timedelta(seconds=number))

    ledger.bill_all()

    assert Journal.objects.values("idempotency_key").distinct().count() == 5
    assert Account.objects.get(kind="receivable").balance_nano == 5 * 2_800_000


@pytest.mark.parametrize("status", ["incomplete", "cancelled", "abandoned"])
def test_usage_of_a_turn_that_did_not_complete_is_not_lost(status):
    make_prices()

    assert charged(status=status, reason="x") == 2_800_000


def test_a_stream_that_the_provider_broke_costs_nothing():
    make_prices()

    assert charged(status="failed", input_tokens=10**6, output_tokens=10**6) == 0


def test_an_answer_without_usage_is_estimated_and_flagged_and_not_free():
    make_prices()

    assert charged(estimated=True) == 2_800_000
    assert Journal.objects.get().memo == "estimated"
