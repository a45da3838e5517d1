"""Amounts as people and machines read them: integers of nano units of a currency, and no float on the way."""

NANO = 10**9

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
