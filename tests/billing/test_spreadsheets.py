"""A spreadsheet that opens our CSV shows what was said, and computes nothing of it."""

import csv
import io
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from responses_ws.billing.spreadsheets import FORMULAS, cell, line


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("chat", "chat"),
        ("=1+1", "'=1+1"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        ("\r=1", "'\r=1"),
        ("\n=1", "'\n=1"),
        ("\uff1d1", "'\uff1d1"),
        ("a=1", "a=1"),
        ("", ""),
        (None, ""),
        (-5, "-5"),
        (Decimal("-0.5"), "-0.5"),
    ],
)
def test_words_are_never_formulas_and_numbers_stay_numbers(value: object, told: str) -> None:
    assert cell(value) == told


@given(st.lists(st.text(alphabet=st.characters(codec="utf-8")), min_size=1))
def test_no_cell_begins_as_a_formula_and_none_is_lost(values: list[str]) -> None:
    (read,) = csv.reader(io.StringIO(line(values), newline=""))

    assert not any(text.startswith(FORMULAS) for text in read)
    assert [text[1:] if text != value else text for text, value in zip(read, values, strict=True)] == values
