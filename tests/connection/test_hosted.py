"""Items of hosted tools, told by a turn."""

import json
from typing import Any

from responses_ws.connection.turn import Turn
from responses_ws.protocol.sampling import CallArguments, CallEnd, CallStart, Delta, Finished, TextDelta
from responses_ws.protocol.usage import Usage
from tests.protocol import grammar

from .test_turn import new_turn

CALL = {"type": "mcp_call", "server_label": "s", "name": "t"}
SEARCH = {"type": "web_search_call", "action": {"type": "search", "query": ""}}
ASK = {"type": "mcp_approval_request", "server_label": "s", "name": "t"}


def said(turn: Turn, *deltas: Delta) -> list[str]:
    frames = turn.begin()
    for delta in deltas:
        frames += turn.feed(delta)
    return frames


def ended(turn: Turn, frames: list[str], cut_off: str | None = None) -> dict[str, Any]:
    """The final response, its events found legal."""
    frames = [*frames, *turn.close(Usage(), completed_at=2000, cut_off=cut_off), turn.end()]
    response: dict[str, Any] = grammar.read(frames)[-1]["response"]
    return response


def start(index: int, item: dict[str, Any]) -> CallStart:
    return CallStart(index, f"offered_{index}", item=item)


def test_calls_wait_until_they_are_run_and_end_in_any_order() -> None:
    turn = new_turn()
    frames = said(
        turn,
        start(0, CALL),
        CallArguments(0, '{"a":'),
        CallArguments(0, "1}"),
        CallEnd(0),
        start(1, SEARCH),
        CallArguments(1, "{}"),
        CallEnd(1),
        Finished("tool_calls"),
    )
    first, second = turn.hosted.waiting
    turn.hosted.progress(second.item_id, "searching", frames)
    turn.hosted.finish(second.item_id, {}, frames, kept={"model_output": "found"})
    turn.hosted.finish(first.item_id, {"output": "one"}, frames)
    response = ended(turn, frames)

    assert [(call.name, call.arguments) for call in (first, second)] == [("offered_0", '{"a":1}'), ("offered_1", "{}")]
    assert [item["type"] for item in response["output"]] == ["mcp_call", "web_search_call"]
    assert "model_output" not in json.dumps(response)
    assert turn.kept_output[1]["model_output"] == "found"


def test_a_call_that_its_engine_does_not_end_ends_with_the_answer() -> None:
    turn = new_turn()

    said(turn, start(0, CALL), Finished("stop"))

    assert [call.arguments for call in turn.hosted.waiting] == ["{}"]


def test_what_was_not_run_is_incomplete_when_the_response_ends() -> None:
    turn = new_turn()
    frames = said(turn, start(0, CALL), CallArguments(0, "{}"), CallEnd(0), start(1, SEARCH), Finished("tool_calls"))

    response = ended(turn, frames, cut_off="steered")

    assert [item["status"] for item in response["output"]] == ["incomplete", "incomplete"]


def test_a_request_for_approval_comes_out_whole() -> None:
    turn = new_turn()
    frames = said(turn, TextDelta("May I?"), start(0, ASK), CallArguments(0, "{}"), CallEnd(0), Finished("tool_calls"))

    response = ended(turn, frames)

    assert [item["type"] for item in response["output"]] == ["message", "mcp_approval_request"]
    assert turn.hosted.waiting == []


def test_a_request_for_approval_that_was_cut_off_does_not_come_out() -> None:
    turn = new_turn()
    frames = said(turn, start(0, ASK), CallArguments(0, '{"a'), Finished("length"))

    response = ended(turn, frames)

    assert response["output"] == []
    assert turn.hosted.has_dropped_call


def test_a_listing_that_is_interrupted_says_so() -> None:
    turn = new_turn()
    frames = said(turn)
    turn.hosted.begin({"type": "mcp_list_tools", "server_label": "s", "tools": []}, frames)

    response = ended(turn, frames, cut_off="steered")

    assert response["output"][0]["error"] == "The response has ended."
