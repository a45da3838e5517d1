"""Numbers in words."""

from datetime import timedelta

import pytest

from responses_ws.admin.formats import (
    age,
    dollars,
    milliseconds,
    percent,
    short_count,
    short_dollars,
    shortened,
    thousands,
)


@pytest.mark.parametrize(
    ("nano", "exact", "short"),
    [
        (0, "$0.00", "$0.00"),
        (1_234_000, "$0.001234", "$0.001234"),
        (1, "$0.000000001", "$0.000000001"),
        (123_456_789, "$0.123456789", "$0.1235"),
        (1_500_000_000, "$1.50", "$1.50"),
        (1_234_567_891_234, "$1,234.567891234", "$1,234.57"),
        (999_999_999, "$0.999999999", "$1.00"),
        (-2_800_000, "-$0.0028", "-$0.0028"),
        (2**62, "$4,611,686,018.427387904", "$4,611,686,018.43"),
    ],
)
def test_money_is_exact_or_short(nano, exact, short):
    assert (dollars(nano), short_dollars(nano)) == (exact, short)


@pytest.mark.parametrize(
    ("number", "words"),
    [(0, "0"), (999, "999"), (1_000, "1k"), (12_345, "12.3k"), (4_560_000, "4.56M"), (7 * 10**9, "7B")],
)
def test_counts_are_short(number, words):
    assert short_count(number) == words


def test_the_rest_is_plain():
    assert [thousands(None), thousands(1_234)] == ["–", "1,234"]
    assert [milliseconds(None), milliseconds(86.6), milliseconds(2_350)] == ["–", "87 ms", "2.35 s"]
    assert [shortened("resp_1"), shortened(f"resp_{0:048x}")] == ["resp_1", "resp_0000000000000…"]
    assert [percent(1, 3), percent(0, 0)] == ["33.3%", "–"]
    assert [age(timedelta(seconds=s)) for s in (-1, 59, 60, 7_200, 200_000)] == ["0 s", "59 s", "1 min", "2 h", "2 d"]
