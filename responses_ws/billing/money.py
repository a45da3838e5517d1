"""Amounts as people write them. Pure: integers of nano units everywhere, and no float on the way."""

from decimal import Decimal, InvalidOperation

NANO = 10**9
MAX_NANO = 10**18
"""What nobody means: a thousand million of a currency in one row."""

WITHOUT_CENTS = frozenset(
    (
        "BIF",
        "CLP",
        "DJF",
        "GNF",
        "ISK",
        "JPY",
        "KMF",
        "KRW",
        "PYG",
        "RWF",
        "UGX",
        "UYI",
        "VND",
        "VUV",
        "XAF",
        "XOF",
        "XPF",
    )
)
IN_THOUSANDTHS = frozenset(("BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"))
"""Currencies whose smallest coin is not a hundredth. Source: ISO 4217."""


def minor_digits(currency: str) -> int:
    """Decimals of the currency's smallest unit: its cents, of which there are usually a hundred."""
    if currency in WITHOUT_CENTS:
        return 0
    return 3 if currency in IN_THOUSANDTHS else 2


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


def plain(nano: int, *, decimals: int = 2) -> str:
    """``1234.5678``: exact, with at least ``decimals`` places, for machines."""
    whole, rest = divmod(abs(nano), NANO)
    places = f"{rest:09d}".rstrip("0").ljust(decimals, "0")
    return f"{'-' if nano < 0 else ''}{whole}{'.' if places else ''}{places}"


def spoken(nano: int, currency: str) -> str:
    """``1,234.5678 EUR``: exact, with the currency's own places at least, for people."""
    whole, _, places = plain(abs(nano), decimals=minor_digits(currency)).partition(".")
    sign = "\u2212" if nano < 0 else ""
    return f"{sign}{int(whole):,}{'.' if places else ''}{places} {currency}"
