"""Numbers as staff read them: money from integers, thousands apart, milliseconds rounded."""

from datetime import timedelta

NANO_PER_DOLLAR = 10**9


def dollars(nano: int | None, *, decimals: int = 2) -> str:
    """Nano-USD, exactly: ``$0.001234``. At least ``decimals`` places, more where they are not zero.

    Integers all the way: a float would show a ledger that is right as if it were wrong.
    """
    if nano is None:
        return "–"
    whole, rest = divmod(abs(nano), NANO_PER_DOLLAR)
    places = f"{rest:09d}".rstrip("0").ljust(decimals, "0")
    return f"{'-' if nano < 0 else ''}${whole:,}.{places}"


def short_dollars(nano: int) -> str:
    """Nano-USD for a headline: cents from a dollar on, hundredths of a cent below, four figures below a cent."""
    if nano == 0 or abs(_rounded(nano, NANO_PER_DOLLAR // 10_000)) >= NANO_PER_DOLLAR:
        return dollars(_rounded(nano, NANO_PER_DOLLAR // 100))
    if abs(nano) >= NANO_PER_DOLLAR // 100:
        return dollars(_rounded(nano, NANO_PER_DOLLAR // 10_000), decimals=4)
    return dollars(_rounded(nano, 10 ** max(len(str(abs(nano))) - 4, 0)))


def short_money(nano: int, currency: str) -> str:
    """The same in any currency: ``$12.30``, ``12.30 EUR``."""
    words = short_dollars(nano)
    return words if currency == "USD" else f"{words.replace('$', '')} {currency}"


def thousands(number: int | None) -> str:
    """An integer with separators; a dash for none."""
    return "–" if number is None else f"{number:,}"


def short_count(number: int) -> str:
    """An integer for an axis or a headline: ``950``, ``12.3k``, ``4.56M``, ``7.89B``."""
    for size, letter in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}" if number < size * 1000 else f"{number // size:,}{letter}"
    return str(number)


def milliseconds(value: float | None) -> str:
    """A duration: ``87 ms`` below a second, ``2.35 s`` above; a dash for none."""
    if value is None:
        return "–"
    return f"{value:,.0f} ms" if value < 1000 else f"{value / 1000:,.2f} s"


def age(duration: timedelta) -> str:
    """How long ago, in its largest unit: ``12 s``, ``5 min``, ``3 h``, ``2 d``."""
    seconds = max(int(duration.total_seconds()), 0)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:,} {unit}"
    return f"{seconds} s"


def shortened(identifier: str) -> str:
    """An id to recognise in a list; its own page has it whole."""
    return identifier if len(identifier) <= 20 else f"{identifier[:18]}…"


def percent(part: int, whole: int) -> str:
    """A share with one decimal; a dash of nothing."""
    return f"{100 * part / whole:.1f}%" if whole else "–"


def _rounded(number: int, unit: int) -> int:
    """To a multiple of ``unit``, halves to even."""
    whole, rest = divmod(number, unit)
    return (whole + (rest * 2 > unit or (rest * 2 == unit and whole % 2 == 1))) * unit
