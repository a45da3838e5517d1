from typing import Any

import msgspec
import pytest

from responses_ws.connection.rates import Allowance, Count, Rates, Standing, duration, headers, refusal

THREE = Allowance(requests=3)
HUNDRED = Allowance(tokens=100)
TWO_AT_ONCE = Allowance(slots=2, of="open sockets")


def entries(allowance: Allowance, *times: float) -> list[str | None]:
    """What is said to those who come at these times."""
    count = Count(0.0)
    return [count.enter(allowance, now).refused for now in times]


@pytest.mark.parametrize(
    ("allowance", "times", "refused"),
    [
        pytest.param(THREE, [0, 0, 0], [None] * 3, id="all of a minute at once"),
        pytest.param(THREE, [0, 0, 0, 0], [None] * 3 + ["requests"], id="one more"),
        pytest.param(THREE, [0, 0, 0, 19.9], [None] * 3 + ["requests"], id="just before there is room"),
        pytest.param(THREE, [0, 0, 0, 20], [None] * 4, id="as soon as there is room"),
        pytest.param(THREE, [0, 0, 0, 20, 39.9, 40], [None] * 4 + ["requests", None], id="refused, not counted"),
        pytest.param(THREE, [0, 0, 0, 1000, 1000, 1000, 1000], [None] * 6 + ["requests"], id="saved up: a minute"),
        pytest.param(THREE, [9, 9, 9, 8], [None] * 3 + ["requests"], id="a clock that goes back"),
        pytest.param(TWO_AT_ONCE, [0, 0, 0, 999], [None, None, "slots", "slots"], id="slots do not drain"),
        pytest.param(Allowance(), [0] * 9, [None] * 9, id="no limit"),
    ],
)  # fmt: skip
def test_who_may_come_in(allowance: Allowance, times: list[float], refused: list[str | None]) -> None:
    assert entries(allowance, *times) == refused


@pytest.mark.parametrize(
    ("used", "after", "refused"),
    [
        pytest.param(99, 0, None, id="one is left"),
        pytest.param(100, 0, "tokens", id="none is left"),
        pytest.param(100, 0.59, "tokens", id="not yet one"),
        pytest.param(100, 0.6, None, id="one again"),
        pytest.param(250, 90.5, "tokens", id="what was used beyond the limit is waited for"),
        pytest.param(250, 90.6, None, id="and no longer"),
    ],
)
def test_tokens_are_counted_when_they_are_used(used: int, after: float, refused: str | None) -> None:
    count = Count(0.0)
    count.charge(HUNDRED, 0.0, used)

    assert count.enter(HUNDRED, after).refused == refused


def test_an_estimate_that_was_too_high_is_given_back() -> None:
    count = Count(0.0)
    count.charge(HUNDRED, 0.0, 150)

    count.charge(HUNDRED, 0.0, -60)

    assert (count.tokens, count.enter(HUNDRED, 0.0).refused) == (90.0, None)


def test_a_refusal_takes_neither_a_request_nor_a_slot() -> None:
    count = Count(0.0)
    both = Allowance(requests=5, slots=1)
    count.enter(both, 0.0)

    assert count.enter(both, 0.0).refused == "slots"
    assert (count.requests, count.slots) == (1.0, 1)


def test_a_key_says_what_it_says_and_the_rest_is_the_defaults() -> None:
    default = Rates(requests_per_minute=60, open_sockets=8)

    assert Rates(open_sockets=2, concurrent_turns=1).over(default) == Rates(
        requests_per_minute=60, open_sockets=2, concurrent_turns=1
    )


def test_headers_tell_only_of_limits_that_there_are() -> None:
    both = Allowance(requests=60, tokens=6000, slots=1)

    assert headers(both, Standing(1, 2500.5)) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-tokens": "3499",
        "x-ratelimit-reset-tokens": "25.005s",
    }
    assert headers(TWO_AT_ONCE, Standing(0, 0)) == {}
    assert headers(HUNDRED, Standing(0, 250))["x-ratelimit-remaining-tokens"] == "0"


@pytest.mark.parametrize(
    ("allowance", "standing", "message", "retry_after"),
    [
        pytest.param(THREE, Standing(3, 0, "requests"), "3 requests per minute. Please try again in 20s", "20"),
        pytest.param(THREE, Standing(2.01, 0, "requests"), "Please try again in 200ms", "1"),
        pytest.param(HUNDRED, Standing(0, 250, "tokens"), "100 tokens per minute. Please try again in 1m31s", "91"),
        pytest.param(TWO_AT_ONCE, Standing(0, 0, "slots"), "2 open sockets. Please try again in 1s", "1"),
    ],
    ids=["requests", "a moment", "tokens", "slots"],
)
def test_a_refusal_says_when_to_come_back(
    allowance: Allowance, standing: Standing, message: str, retry_after: str
) -> None:
    error = refusal(allowance, standing)

    assert message in error.message
    assert (error.status, error.code, error.headers["retry-after"]) == (429, "rate_limit_exceeded", retry_after)


@pytest.mark.parametrize("used", [3, 2.4, 2.0001])
def test_who_waits_as_long_as_told_comes_in(used: float) -> None:
    refused = Count(0.0, requests=used).enter(THREE, 0.0)
    seconds = float(refusal(THREE, refused).headers["retry-after"])

    assert Count(0.0, requests=used).enter(THREE, seconds).refused is None


@pytest.mark.parametrize(
    ("seconds", "spelled"),
    [(0, "0ms"), (0.12, "120ms"), (0.9999, "1s"), (8.64, "8.64s"), (60, "1m0s"), (360, "6m0s"), (61.5, "1m2s")],
)
def test_durations_are_spelled_as_the_api_does(seconds: float, spelled: str) -> None:
    assert duration(seconds) == spelled


@pytest.mark.parametrize("wrong", [{"requests_per_minute": 0}, {"open_sockets": -1}])
def test_no_rate_is_below_one(wrong: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, Rates)
