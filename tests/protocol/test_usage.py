import pytest
from hypothesis import given
from hypothesis import strategies as st

from responses_ws.protocol.usage import Usage

from . import shapes


def test_the_wire_form_has_every_key_and_the_sum() -> None:
    usage = Usage(input_tokens=36, output_tokens=87, cached_tokens=30, cache_write_tokens=6, reasoning_tokens=64)

    assert usage.wire() == {
        "input_tokens": 36,
        "input_tokens_details": {"cached_tokens": 30, "cache_write_tokens": 6},
        "output_tokens": 87,
        "output_tokens_details": {"reasoning_tokens": 64},
        "total_tokens": 123,
    }


CLAIMS = {
    "possible": ({"input_tokens": 5, "cached_tokens": 3, "cache_write_tokens": 2}, {}),
    "negative": (
        {"input_tokens": -1, "output_tokens": -2, "cached_tokens": -3, "reasoning_tokens": -4},
        {"input_tokens": 0, "output_tokens": 0, "cached_tokens": 0, "reasoning_tokens": 0},
    ),
    "more cached than read": ({"input_tokens": 5, "cached_tokens": 9}, {"cached_tokens": 5}),
    "cached and written overlap": (
        {"input_tokens": 5, "cached_tokens": 4, "cache_write_tokens": 4},
        {"cache_write_tokens": 1},
    ),
    "more reasoning than output": ({"output_tokens": 5, "reasoning_tokens": 9}, {"reasoning_tokens": 5}),
    "an estimate stays one": ({"output_tokens": 5, "estimated": True}, {}),
}


@pytest.mark.parametrize(("claim", "cut"), CLAIMS.values(), ids=CLAIMS)
def test_impossible_claims_are_cut_back(claim: dict[str, int], cut: dict[str, int]) -> None:
    assert Usage(**claim).clamped() == Usage(**{**claim, **cut})


counts = st.integers(-10, 10)


@given(st.builds(Usage, **dict.fromkeys(Usage.__struct_fields__[:5], counts)))
def test_clamped_usage_is_a_partition_and_stays_as_it_is(usage: Usage) -> None:
    clamped = usage.clamped()

    shapes.check_usage(clamped.wire())
    assert clamped.clamped() == clamped
