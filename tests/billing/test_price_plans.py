"""What taking prices over would change, at every edge of every interval"""

from datetime import UTC, datetime, timedelta

import pytest

from responses_ws.billing import ledger, price_import
from responses_ws.billing.price_import import described, take_over
from responses_ws.billing.price_sources import PricesRefused, WantedPrice, nano_of_price, read_csv
from responses_ws.models import Price

from .rows import NOON, make_record

SECOND, DAY = timedelta(seconds=1), timedelta(days=1)
THING = ("USD", "m", "", "input", 0)


def want(nano, start=None, end=None, thing=THING, where="line 2"):
    return WantedPrice(where=where, thing=thing, nano_per_million=nano, valid_from=start, valid_to=end)


def have(nano, start=NOON - DAY, end=None, thing=THING):
    fields = dict(zip(Price.THING, thing, strict=True))
    return Price.objects.create(**fields, nano_per_million=nano, valid_from=start, valid_to=end)


def take(*wanted, now=NOON, **options):
    return take_over(wanted, now, **{"apply": True, **options})


def table(**thing):
    rows = Price.objects.standing().filter(**thing).order_by("valid_from")
    return [(row.nano_per_million, row.valid_from, row.valid_to) for row in rows]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "USD m input: 2.50 per million tokens, from 2026-11-29 12:00"),
        (
            {"currency": "EUR", "service_tier": "flex", "min_context": 200_001, "valid_to": NOON + DAY},
            "EUR m flex input from 200,001 tokens: 2.50 per million tokens, from 2026-11-29 12:00 to 2026-11-30 12:00",
        ),
        (
            {"component": "tool_call", "nano_per_million": 25_000 * 10**9},
            "USD m tool_call: 25.00 per thousand calls, from 2026-11-29 12:00",
        ),
        ({"nano_per_million": 1}, "USD m input: 0.000000001 per million tokens, from 2026-11-29 12:00"),
    ],
)
def test_a_price_in_a_line(fields, said):
    given = {"currency": "USD", "model": "m", "component": "input", "nano_per_million": 25 * 10**8, "valid_from": NOON}

    assert described(Price(**given | fields)) == said


def test_a_plan_in_lines_begins_with_what_goes():
    first, second, third, fourth = (
        Price(currency="USD", model=name, component="input", nano_per_million=10**9, valid_from=NOON) for name in "abcd"
    )
    plan = price_import.Plan(added=[first], ended=[(second, NOON + DAY)], removed=[third], withdrawn=[fourth])
    price = "input: 1.00 per million tokens, from 2026-11-29 12:00"

    assert plan.lines() == [
        f"- USD d {price}: it was wrong, and is withdrawn",
        f"- USD c {price}: never used, replaced",
        f"- USD b {price}: ends 2026-11-30 12:00",
        f"+ USD a {price}",
    ]


@pytest.mark.parametrize("field", ["added", "ended", "removed", "withdrawn"])
def test_a_plan_that_changes_anything_is_one(field):
    assert price_import.Plan(**{field: [None]})
    assert not price_import.Plan(unchanged=1)


@pytest.mark.parametrize("number", range(len(THING)))
def test_prices_of_other_things_are_left_alone(db, number):
    other = list(THING)
    other[number] = ["EUR", "n", "flex", "output", 5][number]
    have(1, thing=tuple(other))

    take(want(2))

    assert table(**dict(zip(Price.THING, other, strict=True))) == [(1, NOON - DAY, None)]
    assert table(**dict(zip(Price.THING, THING, strict=True))) == [(2, NOON, None)]


@pytest.mark.parametrize(
    ("start", "end"),
    [
        pytest.param(NOON - DAY, None, id="the whole of it"),
        pytest.param(NOON, None, id="from its middle on"),
        pytest.param(None, None, id="from now on"),
        pytest.param(NOON - DAY, NOON, id="its beginning"),
        pytest.param(NOON - SECOND, NOON, id="a part"),
    ],
)
def test_what_is_so_already_is_unchanged(db, start, end):
    have(1)

    plan = take(want(1, start, end))

    assert (bool(plan), plan.unchanged) == (False, 1)
    assert table() == [(1, NOON - DAY, None)]


def test_what_is_so_until_its_end_is_unchanged_to_its_last_moment(db):
    have(1, end=NOON + DAY)
    have(1, start=NOON + DAY)

    assert take(want(1, NOON, NOON + DAY)).unchanged == 1
    plan = take(want(1, NOON, NOON + DAY + SECOND), want(3, NOON + DAY + SECOND))

    assert plan and table()[-1] == (3, NOON + DAY + SECOND, None)


def test_a_price_that_begins_where_another_ends_does_not_overlap_it(db):
    have(1, end=NOON)
    have(2, start=NOON + DAY)

    take(want(3, NOON, NOON + DAY))

    assert table() == [(1, NOON - DAY, NOON), (3, NOON, NOON + DAY), (2, NOON + DAY, None)]


@pytest.fixture
def used(db):
    """A price by which a turn was billed that started two seconds before `NOON`."""
    have(1)
    make_record(started_at=NOON - 2 * SECOND)
    ledger.bill_batch()


def test_a_price_that_was_used_ends_behind_its_last_turn(used):
    with pytest.raises(PricesRefused) as refused:
        take(want(2, NOON - 2 * SECOND))
    take(want(2, NOON - SECOND))

    assert refused.value.problems == [
        "line 2: turns that started until 2026-11-29 11:59:58 were billed by another price: start later, or correct it"
    ]
    assert table() == [(1, NOON - DAY, NOON - SECOND), (2, NOON - SECOND, None)]


def test_who_corrects_a_price_may_end_it_under_its_turns_or_withdraw_it(used):
    take(want(2, NOON - 2 * SECOND), correct=True)
    assert table() == [(1, NOON - DAY, NOON - 2 * SECOND), (2, NOON - 2 * SECOND, None)]

    take(want(3, NOON - DAY), correct=True)

    assert Price.objects.exclude(withdrawn_at=None).get().nano_per_million == 1
    assert table() == [(3, NOON - DAY, NOON - 2 * SECOND), (2, NOON - 2 * SECOND, None)]


def test_from_now_on_is_since_it_has_been_so_but_never_before_what_is_said_of_the_past(db):
    have(1)
    plan = take(want(1), want(2, NOON + DAY))
    assert plan.unchanged == 1
    assert table() == [(1, NOON - DAY, NOON + DAY), (2, NOON + DAY, None)]

    take(want(5, NOON - DAY / 2), want(1))

    assert table() == [
        (1, NOON - DAY, NOON - DAY / 2),
        (5, NOON - DAY / 2, NOON),
        (1, NOON, NOON + DAY),
        (2, NOON + DAY, None),
    ]


def test_an_end_that_nothing_follows_is_refused_where_something_stood(db):
    have(1)

    with pytest.raises(PricesRefused) as refused:
        take(want(2, NOON, NOON + DAY))

    assert refused.value.problems == ["line 2: from 2026-11-30 12:00 on nothing would have a price: add a row"]
    take(want(2, NOON, NOON + DAY, thing=("USD", "new", "", "input", 0)))
    assert table(model="new") == [(2, NOON, NOON + DAY)]


def test_rows_of_one_thing_may_touch_and_not_overlap(db):
    take(want(1, NOON, NOON + DAY), want(2, NOON + DAY, where="line 3"))
    assert table() == [(1, NOON, NOON + DAY), (2, NOON + DAY, None)]

    with pytest.raises(PricesRefused) as refused:
        take(want(1, NOON, NOON + DAY + SECOND), want(2, NOON + DAY, where="line 3"))

    assert refused.value.problems == ["line 3: it overlaps line 2, which is for the same thing"]


def test_every_thing_that_cannot_be_is_told(db):
    output = ("USD", "m", "", "output", 0)
    wanted = [want(1), want(2, where="line 3"), want(3, thing=output), want(4, thing=output, where="line 5")]

    with pytest.raises(PricesRefused) as refused:
        take(*wanted, want(9, thing=("USD", "n", "", "input", 0)))

    assert [problem[:23] for problem in refused.value.problems] == [
        "line 3: it overlaps lin",
        "line 5: it overlaps lin",
    ]
    assert str(refused.value) == "\n".join(refused.value.problems)
    assert table() == []


def test_what_a_package_says_no_more_ends_now_but_for_calls_and_other_models(db):
    flex, calls = ("USD", "m", "flex", "input", 0), ("USD", "m", "", "tool_call", 0)
    euro, other = ("EUR", "m", "", "input", 0), ("USD", "n", "", "input", 0)
    for thing in (flex, calls, euro, other):
        have(1, thing=thing)
    have(2, NOON + DAY, thing=("USD", "m", "", "output", 0))
    over = have(3, end=NOON, thing=("USD", "m", "", "output", 0))

    plan = take(want(5), ends_others=True)

    assert [(price.service_tier, end) for price, end in plan.ended] == [("flex", NOON)]
    assert [price.nano_per_million for price in plan.removed] == [2] and not Price.objects.filter(
        nano_per_million=2
    ).exists()
    assert Price.objects.get(pk=over.pk).valid_to == NOON
    assert Price.objects.filter(nano_per_million=1, valid_to=None).count() == 3


@pytest.mark.parametrize(
    ("component", "price", "problem"),
    [
        ("input", "x", "'x' is not a price"),
        ("input", "-0.1", "'-0.1' is not a price from 0 to 1,000,000"),
        ("tool_call", "1000000.1", "'1000000.1' is not a price from 0 to 1,000,000"),
        ("input", "0.0000000001", "'0.0000000001' has more than 9 decimals"),
        ("tool_call", "0.0000000000001", "'0.0000000000001' has more than 12 decimals"),
    ],
)
def test_what_is_wrong_with_a_price_is_said(component, price, problem):
    with pytest.raises(ValueError) as refused:
        nano_of_price(component, price)

    assert str(refused.value) == problem


def test_cells_may_have_spaces_and_names_capitals_and_empty_ones_mean_what_goes_without_saying():
    text = "Model , COMPONENT,price,currency,service_tier,min_context,valid_from,valid_to\n m ,input, 2 ,,,,,\n"

    (one,) = read_csv(text.splitlines())

    assert one == want(2 * 10**9)


@pytest.mark.parametrize("context", ["4611686018427387905", "1.5", "²", "x"])
def test_a_context_is_a_number_of_tokens(context):
    text = f"model,component,price,min_context\nm,input,1,{context}\n"

    with pytest.raises(PricesRefused) as refused:
        read_csv(text.splitlines())

    assert refused.value.problems == [f"line 2: {context!r} is not a number of tokens"]


def test_the_longest_context_is_taken():
    (one,) = read_csv(["model,component,price,min_context", f"m,input,1,{2**62}"])

    assert one.thing[-1] == 2**62


@pytest.mark.parametrize("currency", ["usd", "US", "EURO", "U5D", "ÜSD"])
def test_a_currency_is_three_capitals(currency):
    text = f"model,component,price,currency\nm,input,1,{currency}\n"

    with pytest.raises(PricesRefused, match="is not a currency such as USD"):
        read_csv(text.splitlines())


def test_names_are_as_long_as_their_columns():
    text = "model,component,price,service_tier\n{},input,1,{}\n"

    read_csv(text.format("m" * 200, "t" * 20).splitlines())
    for words, field in (
        (("m" * 201, ""), "model has more than 200"),
        (("m", "t" * 21), "service_tier has more than 20"),
    ):
        with pytest.raises(PricesRefused, match=field):
            read_csv(text.format(*words).splitlines())


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-01", datetime(2026, 11, 1, tzinfo=UTC)),
        ("2026-11-01 10:00", datetime(2026, 11, 1, 10, tzinfo=UTC)),
        ("2026-11-01T10:00:00+02:00", datetime(2026, 11, 1, 8, tzinfo=UTC)),
    ],
)
def test_times_are_utc_unless_they_say_otherwise(text, moment):
    (one,) = read_csv(["model,component,price,valid_from", f"m,input,1,{text}"])

    assert one.valid_from == moment
