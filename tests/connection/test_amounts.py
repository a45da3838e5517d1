"""Amounts are told exactly, to the last nano unit, with the places that their currency has."""

import pytest

from responses_ws.connection.amounts import minor_digits, plain, spoken


@pytest.mark.parametrize(
    ("nano", "currency", "text"),
    [
        (0, "USD", "0.00 USD"),
        (1, "USD", "0.000000001 USD"),
        (1_500_000_000, "USD", "1.50 USD"),
        (-25 * 10**7, "USD", "\u22120.25 USD"),
        (1_234_567 * 10**9, "EUR", "1,234,567.00 EUR"),
        (1_234 * 10**9, "JPY", "1,234 JPY"),
        (5 * 10**8, "JPY", "0.5 JPY"),
        (10**9, "KWD", "1.000 KWD"),
    ],
)
def test_people_are_told_exactly_with_the_places_of_the_currency(nano: int, currency: str, text: str) -> None:
    assert spoken(nano, currency) == text


@pytest.mark.parametrize(
    ("nano", "decimals", "text"),
    [(1_234_567_800_000, 2, "1234.5678"), (10**9, 2, "1.00"), (10**9, 0, "1"), (-(10**6), 2, "-0.001")],
)
def test_machines_are_told_exactly_and_without_commas(nano: int, decimals: int, text: str) -> None:
    assert plain(nano, decimals=decimals) == text


def test_currencies_have_the_coins_that_they_have() -> None:
    assert [minor_digits(currency) for currency in ("USD", "JPY", "KWD", "XYZ")] == [2, 0, 3, 2]
