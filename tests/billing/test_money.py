"""Amounts are read and told exactly, and rounded half-even on both sides of zero."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from responses_ws.billing import money


@pytest.mark.parametrize(
    ("nano", "currency", "cents"),
    [
        (5_000_000, "USD", 0),
        (15_000_000, "USD", 2),
        (15_000_001, "USD", 2),
        (5_000_001, "USD", 1),
        (-5_000_000, "USD", 0),
        (-15_000_000, "USD", -2),
        (-5_000_001, "USD", -1),
        (-4_999_999, "USD", 0),
        (1_500_000_000, "JPY", 2),
        (2_500_000_000, "JPY", 2),
        (500_000, "KWD", 0),
        (1_500_000, "KWD", 2),
    ],
)
def test_cents_are_rounded_half_even_on_both_sides_of_zero(nano: int, currency: str, cents: int) -> None:
    assert money.cents_of(nano, currency) == cents


@given(st.integers(-(10**18), 10**18), st.sampled_from(["USD", "JPY", "KWD"]))
def test_rounding_agrees_with_fractions_and_has_no_side(nano: int, currency: str) -> None:
    assert money.cents_of(nano, currency) == round(Fraction(nano, money.nano_per_cent(currency)))
    assert money.cents_of(-nano, currency) == -money.cents_of(nano, currency)


@given(st.integers(1, money.MAX_NANO))
def test_what_is_told_plainly_is_read_back(nano: int) -> None:
    assert money.nano_of(money.plain(nano)) == nano
    assert Decimal(money.plain(-nano)).scaleb(9) == -nano


@pytest.mark.parametrize(
    ("nano", "currency", "plain", "spoken"),
    [
        (0, "USD", "0.00", "0.00 USD"),
        (1_234_567_891_000_000, "USD", "1234567.891", "1,234,567.891 USD"),
        (-1_500_000_000, "USD", "-1.50", "\u22121.50 USD"),
        (1, "EUR", "0.000000001", "0.000000001 EUR"),
        (2_000_000_000_000, "JPY", "2000", "2,000 JPY"),
        (-500_000_000, "JPY", "-0.5", "\u22120.5 JPY"),
        (1_500_000_000, "KWD", "1.500", "1.500 KWD"),
    ],
)
def test_an_amount_is_told_exactly_with_the_places_of_its_currency(
    nano: int, currency: str, plain: str, spoken: str
) -> None:
    assert money.plain(nano, decimals=money.minor_digits(currency)) == plain
    assert money.spoken(nano, currency) == spoken


def test_a_machine_reads_two_places_where_nobody_says_how_many() -> None:
    assert money.plain(1_000_000_000) == "1.00"


@pytest.mark.parametrize(
    ("text", "nano"),
    [
        ("12.50", 12_500_000_000),
        ("0.000000001", 1),
        ("1", 10**9),
        (Decimal("1e9"), money.MAX_NANO),
        ("5e-1", 5 * 10**8),
    ],
)
def test_an_amount_is_read_exactly(text: str | Decimal, nano: int) -> None:
    assert money.nano_of(text) == nano


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("ten", "ten is not an amount"),
        ("0", "0 is not an amount above 0 and below 1,000,000,000"),
        ("1000000000.000000001", "1000000000.000000001 is not an amount above 0 and below 1,000,000,000"),
        ("0.0000000011", "0.0000000011 has more than nine decimals"),
    ],
)
def test_what_is_wrong_with_an_amount_is_said(text: str, problem: str) -> None:
    with pytest.raises(ValueError) as refused:
        money.nano_of(text)

    assert str(refused.value) == problem


@pytest.mark.parametrize("text", ["", "ten", "0", "-1", "nan", "inf", "1e30", "0.0000000001", "1,50"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        money.nano_of(text)


@pytest.mark.parametrize(
    ("nano", "currency", "told"),
    [
        (1_234_567_891_000, "EUR", "1,234.567891 EUR"),
        (-500_000_000, "EUR", "\u22120.50 EUR"),
        (12_000_000_000, "JPY", "12 JPY"),
        (1_000_000_000, "KWD", "1.000 KWD"),
    ],
)
def test_amounts_are_told_in_the_places_of_their_currency(nano: int, currency: str, told: str) -> None:
    assert money.spoken(nano, currency) == told
