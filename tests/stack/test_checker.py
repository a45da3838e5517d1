"""The checker sees what is wrong: otherwise no campaign has shown anything."""

from collections.abc import Callable
from typing import Any

import pytest

from .checker import admitted, in_order, kept_apart, posted_once
from .turns import Turn

USAGE = {
    "input_tokens": 3,
    "output_tokens": 5,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 0},
}
MADE = {"resp_1": [{"request_id": "resp_1", "output_tokens": 5, "outcome": "completed"}]}


def turn(*kinds: str, tenant: str = "us", usage: dict[str, Any] | None = USAGE) -> Turn:
    asked = {"model": "scripted", "store": True, "input": "hello"}
    events = [
        {"type": kind, "sequence_number": number, "response": {"id": "resp_1", "usage": usage}}
        for number, kind in enumerate(kinds or ("response.created", "response.output_text.delta", "response.completed"))
    ]
    return Turn("it", asked, "key", tenant, events)


def record(**changes: Any) -> dict[str, Any]:
    plain = {"response_id": "resp_1", "status": "completed", "model": "scripted", "estimated": False}
    counts = {"input_tokens": 3, "cached_tokens": 0, "output_tokens": 5, "reasoning_tokens": 0}
    return {**plain, **counts, "is_billed": True, "entries": 1, **changes}


def books(*records: dict[str, Any]) -> dict[str, Any]:
    return {"records": list(records), "stored": {}, "differences": []}


CUT = ("response.created", "response.output_text.delta")


@pytest.mark.parametrize(
    ("invariant", "found", "seen"),
    [
        pytest.param(posted_once, books(), turn(), id="no record"),
        pytest.param(posted_once, books(record(), record()), turn(), id="two records"),
        pytest.param(posted_once, books(record(entries=2)), turn(), id="posted twice"),
        pytest.param(posted_once, books(record(entries=0)), turn(), id="not posted"),
        pytest.param(posted_once, books(record(is_billed=False)), turn(), id="not marked"),
        pytest.param(posted_once, books(record(status="in_progress")), turn(), id="not closed"),
        pytest.param(admitted, books(record(), record(response_id="resp_2")), turn(), id="asked for by nobody"),
        pytest.param(admitted, books(record(output_tokens=4)), turn(), id="not what the wire said"),
        pytest.param(
            admitted, books(record(status="abandoned", output_tokens=6)), turn(*CUT, usage=None), id="more than made"
        ),
        pytest.param(
            admitted, books(record(status="cancelled", output_tokens=4)), turn(*CUT, usage=None), id="less than made"
        ),
        pytest.param(
            admitted, books(record(status="cancelled", estimated=True)), turn(*CUT, usage=None), id="estimated"
        ),
    ],
)
def test_books_that_are_wrong(invariant: Callable[..., Any], found: dict[str, Any], seen: Turn) -> None:
    assert list(invariant(found, [seen], MADE))


def test_books_that_are_right() -> None:
    cut = turn(*CUT, usage=None)
    for seen, one in ((turn(), record()), (cut, record(status="abandoned", output_tokens=2)), (cut, record())):
        found = [
            *posted_once(books(one), [seen], MADE),
            *admitted(books(one), [seen], MADE),
        ]

        assert found == []


def test_events_with_a_gap_or_after_the_end() -> None:
    gap, late = turn(), turn("response.created", "response.completed", "response.output_text.delta")
    del gap.events[1]

    assert not list(in_order([turn()]))
    assert list(in_order([gap]))
    assert list(in_order([late]))


def test_a_word_of_another_tenant() -> None:
    theirs = turn(tenant="them-77")
    theirs.events[1]["delta"] = "them-77"
    ours = turn(tenant="us-33")

    assert not list(kept_apart([ours, theirs]))
    ours.events[1]["delta"] = "as them-77 said"
    assert list(kept_apart([ours, theirs]))
