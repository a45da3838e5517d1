"""Prices are intervals; postings answer what was spent."""

from datetime import date, timedelta

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from responses_ws.billing import ledger
from responses_ws.models import Journal, Posting, Price
from tests.billing.rows import NOON, make_key, make_prices, make_project, make_record

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)


def price(start, end=None, **fields):
    return Price(model="m", component="input", nano_per_million=1, valid_from=start, valid_to=end, **fields)


def test_the_start_belongs_to_an_interval_and_the_end_does_not():
    first, second = price(NOON, NOON + DAY), price(NOON + DAY)
    first.save()
    second.save()

    assert list(Price.objects.valid_at(NOON)) == [first]
    assert list(Price.objects.valid_at(NOON + DAY)) == [second]


@pytest.mark.parametrize(
    ("start", "end", "fits"),
    [
        pytest.param(NOON - 2 * DAY, NOON, True, id="ends where it starts"),
        pytest.param(NOON + DAY, None, True, id="starts where it ends"),
        pytest.param(NOON - DAY, NOON + timedelta(seconds=1), False, id="reaches into it"),
        pytest.param(NOON + timedelta(hours=1), NOON + timedelta(hours=2), False, id="inside"),
        pytest.param(NOON - DAY, None, False, id="around"),
    ],
)
def test_prices_of_one_thing_do_not_overlap(start, end, fits):
    price(NOON, NOON + DAY).save()
    another = price(start, end)

    if fits:
        another.full_clean()
    else:
        with pytest.raises(ValidationError, match="end it first"):
            another.full_clean()


def test_the_database_holds_one_open_price():
    price(NOON).save()

    with pytest.raises(IntegrityError), transaction.atomic():
        price(NOON + DAY).save()


def test_an_interval_ends_after_its_start():
    with pytest.raises(IntegrityError), transaction.atomic():
        price(NOON, NOON).save()


def test_a_price_is_used_once_the_ledger_refers_to_it():
    used = make_prices(per_million={"output": 8})[0]
    unused = make_prices(model="other", per_million={"output": 8})[0]
    make_record()
    ledger.bill_batch()

    assert [used.is_used, unused.is_used, price(NOON).is_used] == [True, False, False]
    assert list(Price.objects.with_use().order_by("pk").values_list("used", flat=True)) == [True, False]


def test_spending_is_summed_by_day_model_and_key_and_reversals_count():
    make_prices()
    make_prices(model="large", per_million={"output": 80_000_000_000})
    laptop = make_key(make_project())
    make_record()
    make_record(model="large", api_key=laptop)
    make_record(started_at=NOON - DAY)
    reversed_record = make_record(model="large")
    ledger.bill_all()
    ledger.reverse(Journal.objects.get(usage=reversed_record), "test", NOON + DAY)

    charges = Posting.objects.charges()

    assert charges.total() == 2 * 2_800_000 + 8_000_000
    assert charges.between(NOON, NOON + DAY).total() == 2_800_000 + 16_000_000
    assert list(charges.by_day()) == [
        {"day": date(2026, 11, 28), "amount_nano": 2_800_000},
        {"day": date(2026, 11, 29), "amount_nano": 18_800_000},
        {"day": date(2026, 11, 30), "amount_nano": -8_000_000},
    ]
    assert list(charges.by_model()) == [
        {"model": "large", "amount_nano": 8_000_000},
        {"model": "m", "amount_nano": 5_600_000},
    ]
    assert list(charges.by_key()) == [
        {"key_id": laptop.pk, "key_name": "laptop", "project_name": "default", "amount_nano": 8_000_000},
        {"key_id": None, "key_name": None, "project_name": "default", "amount_nano": 5_600_000},
    ]


def test_spending_of_nothing_is_zero():
    assert Posting.objects.charges().total() == 0
