"""Which of a model's prices a response is charged by: of its tier, its context, and the moment of its start."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from responses_ws.billing.pricing import FALLBACKS, ListPrice, Rate, rates_for

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def listed(price_id, component, **fields):
    """A price whose amount tells its id."""
    fields = {"valid_from": NOON - DAY} | fields
    return ListPrice(price_id=price_id, component=component, nano_per_million=price_id * 100, **fields)


def ids(prices, *, moment=NOON, service_tier="default", input_tokens=1_000):
    """The price ids by component."""
    rates = rates_for(prices, moment=moment, service_tier=service_tier, input_tokens=input_tokens)
    assert all(rate == Rate(rate.price_id, rate.price_id * 100) for rate in rates.values())
    return {component: rate.price_id for component, rate in rates.items()}


ALL_TIERS = (listed(1, "input"), listed(2, "cached_input"), listed(3, "output"), listed(4, "reasoning"))
FLEX = (listed(11, "input", service_tier="flex"), listed(13, "output", service_tier="flex"))
LONG = (listed(21, "input", min_context=200_000), listed(23, "output", min_context=200_000))
LONGER = (listed(31, "input", min_context=1_000_000), listed(32, "cached_input", min_context=1_000_000))


@pytest.mark.parametrize(
    ("prices", "asked", "expected"),
    [
        pytest.param((), {}, {}, id="no price at all"),
        pytest.param(ALL_TIERS, {}, {"input": 1, "cached_input": 2, "output": 3, "reasoning": 4}, id="of all tiers"),
        pytest.param(
            ALL_TIERS + FLEX,
            {"service_tier": "priority"},
            {"input": 1, "cached_input": 2, "output": 3, "reasoning": 4},
            id="another tier's prices are not ours",
        ),
        pytest.param(FLEX, {}, {}, id="only another tier has prices"),
        pytest.param(
            ALL_TIERS + FLEX,
            {"service_tier": "flex"},
            {"input": 11, "output": 13},
            id="a part stays in its whole of the tier, whatever it costs in all tiers",
        ),
        pytest.param(
            (*ALL_TIERS, listed(12, "cached_input", service_tier="flex")),
            {"service_tier": "flex"},
            {"input": 1, "cached_input": 12, "output": 3, "reasoning": 4},
            id="a part alone has a price in the tier",
        ),
        pytest.param(
            ALL_TIERS + LONG,
            {"input_tokens": 199_999},
            {"input": 1, "cached_input": 2, "output": 3, "reasoning": 4},
            id="just below the long context",
        ),
        pytest.param(
            ALL_TIERS + LONG,
            {"input_tokens": 200_000},
            {"input": 21, "output": 23},
            id="from the long context on, all of the request",
        ),
        pytest.param(
            ALL_TIERS + LONG + LONGER,
            {"input_tokens": 1_000_000},
            {"input": 31, "cached_input": 32, "output": 23},
            id="the highest context that fits, and the next where it says nothing",
        ),
        pytest.param(
            LONGER + LONG + ALL_TIERS[::-1],
            {"input_tokens": 1_000_000},
            {"input": 31, "cached_input": 32, "output": 23},
            id="in whatever order they come",
        ),
        pytest.param(
            ALL_TIERS + FLEX + LONG,
            {"service_tier": "flex", "input_tokens": 300_000},
            {"input": 11, "output": 13},
            id="the tier comes before the context",
        ),
        pytest.param(
            (*FLEX, listed(14, "output", service_tier="flex", min_context=200_000), *LONG),
            {"service_tier": "flex", "input_tokens": 300_000},
            {"input": 11, "output": 14},
            id="a context within the tier",
        ),
        pytest.param(
            (listed(1, "input", valid_to=NOON), listed(2, "input", valid_from=NOON)),
            {},
            {"input": 2},
            id="the start belongs to an interval and the end does not",
        ),
        pytest.param(
            (listed(1, "input", valid_to=NOON), listed(2, "input", valid_from=NOON)),
            {"moment": NOON - timedelta(microseconds=1)},
            {"input": 1},
            id="a moment before, the price before",
        ),
        pytest.param((listed(1, "input", valid_from=NOON + DAY),), {}, {}, id="not yet"),
        pytest.param(
            (listed(1, "input"), listed(2, "input", valid_from=NOON - DAY / 2)),
            {},
            {"input": 2},
            id="where two overlap, the later one",
        ),
        pytest.param(
            (listed(5, "tool_call"), *FLEX),
            {"service_tier": "flex"},
            {"input": 11, "output": 13, "tool_call": 5},
            id="calls have one price in all tiers",
        ),
    ],
)
def test_a_response_is_charged_by(prices, asked, expected):
    assert ids(prices, **asked) == expected


components = st.sampled_from(["input", "cached_input", "cache_write", "output", "reasoning", "tool_call"])
places = st.tuples(st.sampled_from(["", "flex", "priority"]), st.sampled_from([0, 1_000, 200_000]), components)


@given(st.sets(places), st.sampled_from(["flex", "default"]), st.sampled_from([0, 999, 1_000, 500_000]))
def test_each_component_is_charged_at_the_first_place_that_names_it_or_its_whole(drawn, tier, input_tokens):
    """Told the other way round: component by component, place by place."""
    drawn = sorted(drawn)
    prices = [
        listed(number, component, service_tier=service_tier, min_context=context)
        for number, (service_tier, context, component) in enumerate(drawn, 1)
    ]
    number_of = {place: number for number, place in enumerate(drawn, 1)}
    order = [
        (service_tier, context)
        for service_tier in (tier, "")
        for context in (200_000, 1_000, 0)
        if context <= input_tokens
    ]

    def expected(component):
        for place in order:
            for name in (component, FALLBACKS.get(component)):
                if (*place, name) in number_of:
                    return number_of[(*place, name)]
        return None

    rates = ids(prices, service_tier=tier, input_tokens=input_tokens)

    for component in ("input", "cached_input", "cache_write", "output", "reasoning", "tool_call"):
        charged = rates.get(component, rates.get(FALLBACKS.get(component)))
        assert charged == expected(component), component
