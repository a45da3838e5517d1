"""How an engine does: told of calls and probes at times, asked what that makes of it."""

import pytest

from responses_ws.engines.base import EngineError
from responses_ws.engines.health import (
    BUSY_SECONDS,
    FIRST_REST_SECONDS,
    LONGEST_BUSY_SECONDS,
    LONGEST_REST_SECONDS,
    Condition,
    State,
)

GONE = EngineError("unavailable", "connection refused")
FULL = EngineError("overloaded", "queue full")


@pytest.fixture
def condition() -> Condition:
    return Condition()


def rank(condition: Condition, now: float, *, is_running: bool = False) -> int | None:
    return condition.rank(now, is_running=is_running)


def test_it_is_well_until_told_otherwise(condition: Condition) -> None:
    assert rank(condition, 0) == rank(condition, 0, is_running=True) == 0
    assert not condition.wants_probe


def test_one_that_cannot_be_reached_is_not_called_whatever_the_time(condition: Condition) -> None:
    condition.failed(GONE, 100, has_spoken=False)

    assert condition.wants_probe and condition.until == 100 + FIRST_REST_SECONDS
    assert rank(condition, 100) is rank(condition, 10_000) is None


def test_each_probe_in_vain_doubles_the_rest_up_to_a_limit(condition: Condition) -> None:
    condition.failed(GONE, 0, has_spoken=False)

    rests = []
    # As often as in some hours.
    for _ in range(2000):
        now = condition.until
        condition.probed(GONE, now)
        rests.append(condition.until - now)

    assert rests[:4] == [times * FIRST_REST_SECONDS for times in (2, 4, 8, 16)]
    assert set(rests[4:]) == {LONGEST_REST_SECONDS}


def test_many_calls_that_fail_together_are_one_failure(condition: Condition) -> None:
    for _ in range(50):
        condition.failed(GONE, 0, has_spoken=False)

    assert condition.until == FIRST_REST_SECONDS


def test_one_that_is_back_is_tried_by_one_call_at_a_time(condition: Condition) -> None:
    condition.failed(GONE, 0, has_spoken=False)
    condition.probed(None, 1)

    assert condition.state is State.TRIAL
    assert (rank(condition, 1), rank(condition, 1, is_running=True)) == (0, 1)

    condition.answered()

    assert rank(condition, 1, is_running=True) == 0


def test_one_whose_probe_was_too_kind_rests_longer(condition: Condition) -> None:
    condition.failed(GONE, 0, has_spoken=False)
    condition.probed(None, 1)

    condition.failed(GONE, 2, has_spoken=False)

    assert condition.state is State.DOWN and condition.until == 2 + 2 * FIRST_REST_SECONDS


@pytest.mark.parametrize(
    ("hint", "seconds"),
    [
        (None, BUSY_SECONDS),
        ("7", 7),
        ("0.5", 0.5),
        ("9999", LONGEST_BUSY_SECONDS),
        ("Wed, 21 Oct 2026 07:28:00 GMT", BUSY_SECONDS),
        ("-5", BUSY_SECONDS),
        ("nan", BUSY_SECONDS),
        ("inf", LONGEST_BUSY_SECONDS),
    ],
)
def test_one_that_is_overloaded_is_asked_last_for_as_long_as_it_says(
    condition: Condition, hint: str | None, seconds: float
) -> None:
    headers = {} if hint is None else {"retry-after": hint}

    condition.failed(EngineError("overloaded", "full", headers=headers), 100, has_spoken=False)

    assert rank(condition, 100) == 1 and not condition.wants_probe
    assert rank(condition, 100 + seconds - 0.01) == 1
    assert rank(condition, 100 + seconds) == 0


@pytest.mark.parametrize(
    ("error", "has_spoken"),
    [
        pytest.param(GONE, True, id="breaks an answer off"),
        pytest.param(EngineError("timeout", "no word"), True, id="falls silent"),
        pytest.param(EngineError("timeout", "no word"), False, id="never speaks"),
    ],
)
def test_one_that_may_have_died_is_looked_at_and_asked_last_meanwhile(
    condition: Condition, error: EngineError, has_spoken: bool
) -> None:
    condition.failed(error, 100, has_spoken=has_spoken)

    assert rank(condition, 100) == 1
    assert condition.wants_probe and condition.until == 100

    condition.probed(None, 100)

    # To be well is not to answer.
    assert condition.state is State.TRIAL


def test_one_that_broke_an_answer_off_because_it_died_is_down(condition: Condition) -> None:
    condition.failed(GONE, 100, has_spoken=True)

    condition.probed(GONE, 100)

    assert condition.state is State.DOWN and condition.until == 100 + FIRST_REST_SECONDS


@pytest.mark.parametrize("kind", ["rate_limited", "auth", "protocol", "engine"])
def test_what_says_nothing_of_health_changes_nothing(condition: Condition, kind: str) -> None:
    condition.failed(EngineError(kind, ""), 0, has_spoken=False)  # type: ignore[arg-type]

    assert condition.state is State.WELL


@pytest.mark.parametrize("kind", ["bad_request", "context_length"])
def test_one_that_refuses_a_call_for_what_it_says_is_well(condition: Condition, kind: str) -> None:
    condition.failed(FULL, 0, has_spoken=False)

    condition.failed(EngineError(kind, ""), 0, has_spoken=False)  # type: ignore[arg-type]

    assert condition.state is State.WELL


@pytest.mark.parametrize(("now", "seconds"), [(0, "1"), (0.4, "1"), (-5, "6")])
def test_a_refusal_says_why_and_when_to_come_back(condition: Condition, now: float, seconds: str) -> None:
    condition.failed(GONE, 0, has_spoken=False)

    refusal = condition.refusal(now)

    assert (refusal.kind, refusal.message) == ("unavailable", "connection refused")
    assert refusal.headers == {"retry-after": seconds}
