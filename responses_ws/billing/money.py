"""Amounts as people write them, and as coins round them. Pure: integers of nano units, and no float on the way."""

from decimal import Decimal, InvalidOperation

from responses_ws.connection.amounts import NANO, minor_digits, plain, spoken

__all__ = ("MAX_NANO", "NANO", "cents_of", "minor_digits", "nano_of", "nano_per_cent", "plain", "spoken")

MAX_NANO = 10**18
"""What nobody means: a thousand million of a currency in one row."""


def nano_per_cent(currency: str) -> int:
    """Nano units in the currency's smallest unit."""
    return int(10 ** (9 - minor_digits(currency)))


def cents_of(nano: int, currency: str) -> int:
    """Nano units in the currency's smallest unit, rounded half-even; of amounts below 0 as of those above."""
    unit = nano_per_cent(currency)
    whole, rest = divmod(nano, unit)
    return whole + (rest * 2 > unit or (rest * 2 == unit and whole % 2 == 1))


def nano_of(amount: str | Decimal) -> int:
    """``"12.50"`` in nano units. Raises ValueError: it is no number above 0, or says more than nine decimals."""
    try:
        nano = Decimal(amount).scaleb(9)
    except InvalidOperation as exc:
        raise ValueError(f"{amount} is not an amount") from exc
    if not nano.is_finite() or not 0 < nano <= MAX_NANO:
        raise ValueError(f"{amount} is not an amount above 0 and below {MAX_NANO // NANO:,}")
    if nano != nano.to_integral_value():
        raise ValueError(f"{amount} has more than nine decimals")
    return int(nano)
