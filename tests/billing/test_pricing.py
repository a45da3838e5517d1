"""Prices are integers, and parts never overlap."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from responses_ws.billing.pricing import (
    MAX_AMOUNT_NANO,
    Charge,
    Line,
    Rate,
    amount_for,
    charge_for,
    partition,
    waived,
)
from responses_ws.protocol.usage import Usage

DOLLAR = 10**9
RATES = {
    "input": Rate(1, 2 * DOLLAR),
    "cached_input": Rate(2, DOLLAR // 2),
    "cache_write": Rate(3, 3 * DOLLAR),
    "output": Rate(4, 8 * DOLLAR),
    "reasoning": Rate(5, 10 * DOLLAR),
}
FULL = Usage(input_tokens=1_000, cached_tokens=600, cache_write_tokens=100, output_tokens=50, reasoning_tokens=20)

counts = st.integers(min_value=0, max_value=10**9)


@st.composite
def usages(draw):
    return Usage(
        input_tokens=draw(counts),
        output_tokens=draw(counts),
        cached_tokens=draw(counts),
        cache_write_tokens=draw(counts),
        reasoning_tokens=draw(counts),
    ).clamped()


def only(*components: str) -> dict[str, Rate]:
    return {component: RATES[component] for component in components}


@pytest.mark.parametrize(
    ("quantity", "per_million", "amount"),
    [
        pytest.param(0, 5 * DOLLAR, 0, id="no tokens"),
        pytest.param(1, 0, 0, id="free"),
        pytest.param(1_000_000, 123, 123, id="a million"),
        pytest.param(1, 499_999, 0, id="under a half"),
        pytest.param(1, 500_000, 0, id="half above an even number goes down"),
        pytest.param(3, 500_000, 2, id="half above an odd number goes up"),
        pytest.param(5, 500_000, 2, id="half above two goes down"),
        pytest.param(1, 500_001, 1, id="over a half"),
        pytest.param(2**62, 10**15, 2**62 * 10**9, id="larger than a float can hold"),
    ],
)
def test_amounts_are_rounded_half_even(quantity, per_million, amount):
    assert amount_for(quantity, per_million) == amount


@given(counts, st.integers(min_value=0, max_value=10**13))
def test_amounts_agree_with_exact_fractions(quantity, per_million):
    assert amount_for(quantity, per_million) == round(Fraction(quantity * per_million, 1_000_000))


def test_a_usage_falls_into_parts_that_do_not_overlap():
    assert partition(FULL) == {"input": 300, "cached_input": 600, "cache_write": 100, "output": 30, "reasoning": 20}


@given(usages())
def test_parts_add_up_to_the_whole(usage):
    parts = partition(usage)

    assert sum(parts.values()) == usage.input_tokens + usage.output_tokens
    assert min(parts.values()) >= 0


@pytest.mark.parametrize(
    ("rates", "lines", "memo"),
    [
        pytest.param(
            RATES,
            [
                ("input", 300, 1, 600_000),
                ("cached_input", 600, 2, 300_000),
                ("cache_write", 100, 3, 300_000),
                ("output", 30, 4, 240_000),
                ("reasoning", 20, 5, 200_000),
            ],
            "",
            id="every part has its price",
        ),
        pytest.param(
            only("input", "output"),
            [("input", 1_000, 1, 2_000_000), ("output", 50, 4, 400_000)],
            "",
            id="parts without a price stay in their whole",
        ),
        pytest.param(
            only("input", "cached_input", "output"),
            [("input", 400, 1, 800_000), ("cached_input", 600, 2, 300_000), ("output", 50, 4, 400_000)],
            "",
            id="cached tokens are not charged twice",
        ),
        pytest.param(
            only("input"),
            [("input", 1_000, 1, 2_000_000), ("output", 50, None, 0)],
            "no price in USD for output of model m",
            id="output has no price",
        ),
        pytest.param(
            only("reasoning"),
            [("input", 1_000, None, 0), ("output", 30, None, 0), ("reasoning", 20, 5, 200_000)],
            "no price in USD for input and output of model m",
            id="only reasoning has a price",
        ),
        pytest.param(
            {},
            [("input", 1_000, None, 0), ("output", 50, None, 0)],
            "no price in USD for model m",
            id="no price at all",
        ),
        pytest.param(
            {"input": Rate(1, 0), "output": Rate(4, 0)},
            [("input", 1_000, 1, 0), ("output", 50, 4, 0)],
            "the price is zero",
            id="free model",
        ),
        pytest.param(
            {"input": Rate(1, 1), "output": Rate(4, 1)},
            [("input", 1_000, 1, 0), ("output", 50, 4, 0)],
            "rounds to zero",
            id="less than a nano",
        ),
    ],
)
def test_a_usage_is_rated_line_by_line(rates, lines, memo):
    charge = charge_for(FULL, rates, model="m")

    assert charge == Charge(tuple(Line(*line) for line in lines), memo)


def test_a_response_without_tokens_costs_nothing_and_says_so():
    assert charge_for(Usage(), RATES, model="m") == Charge((), "no tokens")


def test_reasoning_is_not_charged_on_top_of_output():
    thinking = Usage(output_tokens=50, reasoning_tokens=20)
    silent = Usage(output_tokens=50)

    assert charge_for(thinking, only("output"), model="m") == charge_for(silent, only("output"), model="m")


def test_an_engine_that_counts_wrong_is_held_back():
    absurd = Usage(output_tokens=10**18)

    charge = charge_for(absurd, RATES, model="m")

    assert charge.amount_nano == 0
    assert charge.memo == "held: 8,000,000,000,000 USD for one response cannot be right"
    assert charge.lines == (Line("output", 10**18, None, 0),)


@given(usages(), st.sets(st.sampled_from(sorted(RATES))))
def test_whatever_is_priced_every_token_is_on_one_line(usage, priced):
    charge = charge_for(usage, only(*priced), model="m")

    assert sum(line.quantity for line in charge.lines) == usage.input_tokens + usage.output_tokens
    assert 0 <= charge.amount_nano <= MAX_AMOUNT_NANO
    assert bool(charge.memo) or charge.amount_nano > 0


def test_a_waived_response_keeps_its_tokens_on_lines_without_price():
    charge = waived(FULL, "because")

    assert charge.amount_nano == 0
    assert charge.memo == "because"
    assert [(line.component, line.quantity, line.price_id) for line in charge.lines] == [
        ("input", 300, None),
        ("cached_input", 600, None),
        ("cache_write", 100, None),
        ("output", 30, None),
        ("reasoning", 20, None),
    ]
