"""The referee is tested too: it must refuse what is wrong, or it proves nothing."""

import copy
import itertools

import pytest

from responses_ws.connection.turn import Turn
from responses_ws.protocol.request import Request
from responses_ws.protocol.sampling import CallArguments, CallEnd, CallStart, Finished, ReasoningDelta, TextDelta
from responses_ws.protocol.usage import Usage

from .grammar import Event, Grammar, read


def frames() -> list[str]:
    count = itertools.count(1)
    turn = Turn(
        Request(model="m", input="hi"),
        response_id="resp_1",
        new_id=lambda prefix: f"{prefix}_{next(count)}",
        created_at=1000,
        seal=str,
        stream_id="a",
    )
    said = turn.begin()
    for delta in (
        ReasoningDelta("Hm"),
        TextDelta("Hel"),
        TextDelta("lo"),
        CallStart(0, "f"),
        CallArguments(0, "{}"),
        CallEnd(0),
        Finished("tool_calls"),
    ):
        said += turn.feed(delta)
    said += turn.close(Usage(input_tokens=1, output_tokens=4, reasoning_tokens=1), completed_at=1001)
    return [*said, turn.end()]


EVENTS = read(frames())


def is_legal(events: list[Event]) -> bool:
    grammar = Grammar()
    try:
        for number, event in enumerate(events):
            grammar.feed({**event, "sequence_number": number})
    except AssertionError:
        return False
    return grammar.ended is not None


def test_the_whole_stream_is_legal() -> None:
    assert is_legal(EVENTS)


@pytest.mark.parametrize("index", range(len(EVENTS)), ids=lambda index: f"{index} {EVENTS[index]['type']}")
def test_no_event_may_be_missing(index: int) -> None:
    assert not is_legal(EVENTS[:index] + EVENTS[index + 1 :])


@pytest.mark.parametrize("index", range(len(EVENTS)), ids=lambda index: f"{index} {EVENTS[index]['type']}")
def test_no_event_but_a_sign_of_life_may_come_twice(index: int) -> None:
    twice = EVENTS[: index + 1] + EVENTS[index:]

    assert is_legal(twice) == (EVENTS[index]["type"] == "response.in_progress")


def test_a_sign_of_life_may_come_anywhere_before_the_end() -> None:
    assert all(is_legal([*EVENTS[:index], EVENTS[1], *EVENTS[index:]]) for index in range(2, len(EVENTS)))
    assert not is_legal([*EVENTS, EVENTS[1]])


@pytest.mark.parametrize("index", range(len(EVENTS) - 1))
def test_no_two_neighbours_may_change_places(index: int) -> None:
    swapped = [*EVENTS[:index], EVENTS[index + 1], EVENTS[index], *EVENTS[index + 2 :]]

    # An item may be added before the one before it is done: parallel calls do so.
    is_free = [event["type"] for event in swapped[index : index + 2]] == [
        "response.output_item.added",
        "response.output_item.done",
    ]
    assert is_legal(swapped) == is_free


def test_a_gap_in_the_numbers_is_refused() -> None:
    grammar = Grammar()
    grammar.feed(EVENTS[0])

    with pytest.raises(AssertionError):
        grammar.feed(EVENTS[2])


CHANGES = {
    "another lane": (5, "stream_id", "b"),
    "another item": (4, "item_id", "rs_9"),
    "another place": (4, "output_index", 1),
    "another part": (4, "content_index", 1),
    "another text": (5, "text", "Hmm"),
}


@pytest.mark.parametrize(("index", "key", "value"), CHANGES.values(), ids=CHANGES)
def test_nothing_changes_on_the_way(index: int, key: str, value: object) -> None:
    events = copy.deepcopy(EVENTS)
    assert key in events[index]
    events[index][key] = value

    assert not is_legal(events)


def test_the_output_is_the_items_that_were_done() -> None:
    events = copy.deepcopy(EVENTS)
    events[-1]["response"]["output"].pop()

    assert not is_legal(events)
