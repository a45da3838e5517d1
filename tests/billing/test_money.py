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
