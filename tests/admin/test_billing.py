"""Prices are said in USD and kept in nano-USD; what was used is only ended."""

from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from responses_ws.billing import ledger
from responses_ws.models import Price
from tests.billing.rows import NOON, make_prices, make_record

pytestmark = pytest.mark.django_db

ADD = "admin:responses_ws_price_add"
CHANGE = "admin:responses_ws_price_change"
DELETE = "admin:responses_ws_price_delete"


def form(usd="2.50", start=NOON, end=None, **fields):
    return {
        "model": "m",
        "component": "input",
        "usd_per_million": usd,
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
    return client.get(reverse(CHANGE, args=(price.pk,))).context["adminform"].form.initial["usd_per_million"]


@pytest.mark.parametrize("usd", ["-1", "0.0000000001", "1000000.01", "1e400", "NaN", "abc", ""])
def test_a_price_that_cannot_be_kept_is_refused(boss, usd):
    answer = boss.post(reverse(ADD), form(usd))

    assert answer.status_code == 200
    assert "usd_per_million" in answer.context["adminform"].form.errors
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

    assert "$8.00" in page
