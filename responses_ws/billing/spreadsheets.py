"""Tables of values as CSV that a spreadsheet shows, and never runs. Pure."""

import csv
import io
from collections.abc import Iterable
from typing import Any

FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What spreadsheets take for the beginning of a formula, or leave out before one; the last four are the full-width
forms of the first."""


class Number(str):
    """A number that is written out already, such as an exact amount."""


def cell(value: Any) -> str:
    """A value as a cell. Words that a spreadsheet would run get an apostrophe before them; numbers are numbers.

    Source: OWASP, CSV Injection.
    """
    if value is None:
        return ""
    text = str(value)
    if isinstance(value, str) and not isinstance(value, Number) and text.startswith(FORMULAS):
        return f"'{text}"
    return text


def line(values: Iterable[Any]) -> str:
    """One line of RFC 4180, with its end."""
    told = io.StringIO()
    csv.writer(told).writerow([cell(value) for value in values])
    return told.getvalue()
