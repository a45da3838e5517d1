"""Prices are said in USD and kept in nano-USD; what was used is only ended."""

from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from responses_ws.billing import ledger
from responses_ws.models import Price
from tests.billing.rows import NOON, make_prices, make_record

pytestmark = pytest.mark.django_db

LIST = "admin:responses_ws_price_changelist"
ADD = "admin:responses_ws_price_add"
CHANGE = "admin:responses_ws_price_change"
DELETE = "admin:responses_ws_price_delete"


def form(usd="2.50", start=NOON, end=None, **fields):
    return {
        "currency": "USD",
        "model": "m",
        "service_tier": "",
        "component": "input",
        "min_context": "0",
        "price": usd,
        "valid_from_0": f"{start:%Y-%m-%d}",
        "valid_from_1": f"{start:%H:%M:%S}",
        "valid_to_0": f"{end:%Y-%m-%d}" if end else "",
        "valid_to_1": f"{end:%H:%M:%S}" if end else "",
    } | fields


@pytest.fixture
def used(db):
    """A price of $8 that a turn at `NOON` was billed with."""
    (price,) = make_prices(per_million={"output": 8_000_000_000})
    make_record()
    ledger.bill_batch()
    return price


@pytest.mark.parametrize(
    ("usd", "nano"),
    [
        ("2.50", 2_500_000_000),
        ("0", 0),
        ("0.000000001", 1),
        ("0.1", 100_000_000),
        ("999999.999999999", 999_999_999_999_999),
        ("1000000", 10**15),
    ],
)
def test_a_price_is_exact(boss, usd, nano):
    boss.post(reverse(ADD), form(usd))

    price = Price.objects.get()
    assert price.nano_per_million == nano
    boss.post(reverse(CHANGE, args=(price.pk,)), form(shown_price(boss, price)))
    assert Price.objects.get().nano_per_million == nano


def shown_price(client, price):
    """What the form offers for editing."""
    return client.get(reverse(CHANGE, args=(price.pk,))).context["adminform"].form.initial["price"]


@pytest.mark.parametrize("usd", ["-1", "0.0000000001", "1000000.01", "1e400", "NaN", "abc", ""])
def test_a_price_that_cannot_be_kept_is_refused(boss, usd):
    answer = boss.post(reverse(ADD), form(usd))

    assert answer.status_code == 200
    assert "price" in answer.context["adminform"].form.errors
    assert not Price.objects.exists()


def test_a_price_that_overlaps_another_is_refused(boss):
    boss.post(reverse(ADD), form())

    answer = boss.post(reverse(ADD), form(start=NOON + timedelta(days=1)))

    assert "end it first" in answer.content.decode()
    assert Price.objects.count() == 1


def test_a_used_price_keeps_what_it_says(boss, used):
    boss.post(reverse(CHANGE, args=(used.pk,)), form("1", model="other", end=NOON + timedelta(days=1)))

    price = Price.objects.get()
    assert (price.model, price.nano_per_million, price.valid_from) == ("m", 8_000_000_000, used.valid_from)
    assert price.valid_to == NOON + timedelta(days=1)


def test_a_used_price_does_not_end_before_its_last_use(boss, used):
    answer = boss.post(reverse(CHANGE, args=(used.pk,)), form(end=NOON))

    assert "were billed with it" in answer.content.decode()
    assert Price.objects.get().valid_to is None


def test_what_has_ended_stays_ended(boss, used):
    end = timezone.now() - timedelta(seconds=1)
    Price.objects.update(valid_to=end)

    boss.post(reverse(CHANGE, args=(used.pk,)), form())

    assert Price.objects.get().valid_to == end


def test_a_used_price_is_not_deleted(boss, used):
    assert boss.post(reverse(DELETE, args=(used.pk,)), {"post": "yes"}).status_code == 403
    assert Price.objects.count() == 1


def test_an_unused_price_is_deleted(boss):
    (price,) = make_prices(per_million={"output": 1})

    boss.post(reverse(DELETE, args=(price.pk,)), {"post": "yes"})

    assert not Price.objects.exists()


def test_who_may_view_prices_sees_them_in_usd(log_in, used):
    page = log_in("view_price").get(reverse(CHANGE, args=(used.pk,))).content.decode()

    assert "8.00 USD" in page


def test_the_price_of_calls_is_said_for_a_thousand(boss):
    boss.post(reverse(ADD), form("25", component="tool_call", currency="eur"))

    price = Price.objects.get()
    assert (price.nano_per_million, price.currency) == (25_000 * 10**9, "EUR")
    assert shown_price(boss, price) == "25.00"
    assert "25.00 EUR / 1,000 calls" in boss.get(reverse(LIST)).content.decode()


@pytest.mark.parametrize("currency", ["", "EU", "12€"])
def test_a_currency_is_three_letters(boss, currency):
    answer = boss.post(reverse(ADD), form(currency=currency))

    assert "currency" in answer.context["adminform"].form.errors
    assert not Price.objects.exists()


def test_a_wrong_price_is_withdrawn_and_another_takes_its_place(boss, used):
    told = boss.post(reverse(LIST), {"action": "withdraw", "_selected_action": [used.pk]}, follow=True)
    boss.post(reverse(ADD), form("4", start=used.valid_from, component="output"))

    assert "1 prices are withdrawn" in told.content.decode()
    wrong, right = Price.objects.order_by("pk")
    assert (wrong.withdrawn_at is not None, right.withdrawn_at) == (True, None)
    assert list(Price.objects.valid_at(NOON)) == [right]


def test_who_may_only_view_prices_withdraws_none(log_in, used):
    log_in("view_price").post(reverse(LIST), {"action": "withdraw", "_selected_action": [used.pk]})

    assert Price.objects.get().withdrawn_at is None


def test_prices_are_found_by_what_they_are_now(boss, used):
    now = timezone.now()
    make_prices("planned", per_million={"output": 1}, valid_from=now + timedelta(days=1))
    make_prices("past", per_million={"output": 1}, valid_to=now - timedelta(days=1))
    withdrawn = make_prices("withdrawn", per_million={"output": 1})[0]
    withdrawn.withdraw()

    shown = {
        state: [price.model for price in boss.get(reverse(LIST), {"state": state}).context["cl"].result_list]
        for state in ("now", "planned", "past", "withdrawn")
    }

    assert shown == {"now": ["m"], "planned": ["planned"], "past": ["past"], "withdrawn": ["withdrawn"]}
