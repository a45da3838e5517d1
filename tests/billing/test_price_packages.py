"""What genai-prices says of a model, as steps of our own prices."""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import pytest

from responses_ws.billing.price_sources import _series_of

from .rows import NOON

types = pytest.importorskip("genai_prices.types")

SECOND = timedelta(seconds=1)
BEGINNING = datetime(2020, 1, 1, tzinfo=UTC)


def series_of(prices, variants=None, *, markup="1", now=NOON, with_history=False):
    listed = [
        types.ConditionalPrice(
            constraint=types.StartDateConstraint(start_date=start) if isinstance(start, date) else start,
            prices=types.ModelPrice(**{name: Decimal(str(price)) for name, price in said.items()}),
        )
        for start, said in prices
    ]
    more = [
        types.PriceVariant(
            when=when,
            prices=types.ModelPrice(**{name: Decimal(str(price)) for name, price in said.items()}),
            constraint=constraint,
        )
        for when, said, constraint in variants or ()
    ]
    model = types.ModelInfo(id="m", match=types.ClauseEquals(equals="m"), prices=listed, price_variants=more)
    return _series_of(model, Decimal(markup), with_history=with_history, now=now)


def test_without_its_past_a_price_is_from_now_on_until_one_that_is_announced():
    started, announced = date(2026, 3, 1), date(2027, 1, 1)
    prices = [(None, {"input_mtok": 1}), (started, {"input_mtok": 2}), (announced, {"input_mtok": 3})]

    series, left_out = series_of(prices)

    new_year = datetime(2027, 1, 1, tzinfo=UTC)
    assert (series, left_out) == (
        {("", "input", 0): [(None, new_year, 2 * 10**9), (new_year, None, 3 * 10**9)]},
        set(),
    )


def test_with_its_past_it_begins_long_ago():
    march, june = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 6, 1, tzinfo=UTC)
    prices = [
        (None, {"input_mtok": 1, "output_mtok": 8}),
        (march.date(), {"input_mtok": 2, "output_mtok": 8}),
        (june.date(), {"input_mtok": 2, "output_mtok": 9}),
    ]

    series, _ = series_of(prices, with_history=True)

    assert series == {
        ("", "input", 0): [(BEGINNING, march, 10**9), (march, None, 2 * 10**9)],
        ("", "output", 0): [(BEGINNING, june, 8 * 10**9), (june, None, 9 * 10**9)],
    }


def test_a_price_that_starts_now_is_that_of_now():
    midnight = NOON.replace(hour=0)
    prices = [(None, {"input_mtok": 1}), (midnight.date(), {"input_mtok": 2})]

    assert series_of(prices, now=midnight)[0] == {("", "input", 0): [(None, None, 2 * 10**9)]}
    before = series_of(prices, now=midnight - SECOND)[0]
    assert before == {("", "input", 0): [(None, midnight, 10**9), (midnight, None, 2 * 10**9)]}


def test_all_components_and_a_markup_that_is_rounded_half_even():
    said = {
        "input_mtok": "0.000000001",
        "cache_read_mtok": "0.000000003",
        "cache_write_mtok": "1",
        "output_mtok": "2",
        "output_reasoning_mtok": "3",
        "requests_kcount": "4",
    }

    series, left_out = series_of([(None, said)], markup="0.5")

    assert {component: steps[0][2] for (_, component, _), steps in series.items()} == {
        "input": 0,
        "cached_input": 2,
        "cache_write": 5 * 10**8,
        "output": 10**9,
        "reasoning": 1_500_000_000,
    }
    assert left_out == {"requests_kcount"}


def test_tiers_of_service_have_prices_of_their_own():
    variants = [
        ({"service_tier": "flex"}, {"input_mtok": 1}, None),
        ({"service_tier": "flex", "region": "eu"}, {"input_mtok": 7}, None),
        ({"region": "eu"}, {"input_mtok": 8}, None),
    ]

    series, _ = series_of([(None, {"input_mtok": 2, "output_mtok": 4})], variants)

    assert {place: steps[0][2] // 10**9 for place, steps in series.items()} == {
        ("", "input", 0): 2,
        ("", "output", 0): 4,
        ("flex", "input", 0): 1,
        ("flex", "output", 0): 4,
    }


def test_long_contexts_begin_one_token_later_than_theirs():
    tiers = types.TieredPrices(base=Decimal(1), tiers=[types.Tier(start=200_000, price=Decimal(2))])
    model = types.ModelInfo(id="m", match=types.ClauseEquals(equals="m"), prices=types.ModelPrice(input_mtok=tiers))

    series, _ = _series_of(model, Decimal(1), with_history=False, now=NOON)

    assert series == {
        ("", "input", 0): [(None, None, 10**9)],
        ("", "input", 200_001): [(None, None, 2 * 10**9)],
    }


@pytest.mark.parametrize("of", ["prices", "variants"])
def test_what_depends_on_the_time_of_day_cannot_be_taken_over(of):
    at_night = types.TimeOfDateConstraint(start_time=time(1), end_time=time(5))
    prices = [(None, {"input_mtok": 1})]
    variants = []
    if of == "prices":
        prices.append((at_night, {"input_mtok": 2}))
    else:
        variants.append(({"service_tier": "flex"}, {"input_mtok": 2}, at_night))

    with pytest.raises(ValueError, match="its price depends on the time of day"):
        series_of(prices, variants)


def test_a_variant_that_starts_some_day_changes_the_price_then():
    new_year = datetime(2027, 1, 1, tzinfo=UTC)
    constraint = types.StartDateConstraint(start_date=new_year.date())
    variants = [({"service_tier": "flex"}, {"input_mtok": 1}, constraint)]

    series, _ = series_of([(None, {"input_mtok": 2})], variants)

    assert series == {
        ("", "input", 0): [(None, None, 2 * 10**9)],
        ("flex", "input", 0): [(None, new_year, 2 * 10**9), (new_year, None, 10**9)],
    }
