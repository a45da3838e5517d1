import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from responses_ws.connection.turn import CANCELLED, Turn
from responses_ws.protocol.errors import InvalidRequest, Overloaded, RateLimited, ServerError
from responses_ws.protocol.request import Request
from responses_ws.protocol.sampling import (
    CallArguments,
    CallEnd,
    CallStart,
    Delta,
    Finished,
    ReasoningDelta,
    RefusalDelta,
    Started,
    TextDelta,
)
from responses_ws.protocol.usage import Usage
from tests.protocol import grammar

USAGE = Usage(input_tokens=36, output_tokens=87, cached_tokens=30, cache_write_tokens=2, reasoning_tokens=64)
WIRE_USAGE = {
    "input_tokens": 36,
    "input_tokens_details": {"cached_tokens": 30, "cache_write_tokens": 2},
    "output_tokens": 87,
    "output_tokens_details": {"reasoning_tokens": 64},
    "total_tokens": 123,
}


def new_turn(*, stream_id: str | None = None, shows_raw_reasoning: bool = True, **fields: Any) -> Turn:
    count = itertools.count(1)
    return Turn(
        Request(**{"model": "m", "input": "hi", **fields}),
        response_id="resp_1",
        new_id=lambda prefix: f"{prefix}_{next(count)}",
        created_at=1000,
        seal=lambda text: f"sealed:{text}",
        stream_id=stream_id,
        shows_raw_reasoning=shows_raw_reasoning,
    )


def frames_of(turn: Turn, *deltas: Delta) -> list[str]:
    frames = turn.begin()
    for delta in deltas:
        frames += turn.feed(delta)
    return frames


def run(*deltas: Delta, turn: Turn | None = None) -> list[grammar.Event]:
    """A whole turn's events, found legal."""
    turn = turn or new_turn()
    if not deltas or not isinstance(deltas[-1], Finished):
        deltas = (*deltas, Finished("stop"))
    frames = frames_of(turn, *deltas)
    frames += turn.close(USAGE, completed_at=1001)
    frames.append(turn.end())
    return grammar.read(frames)


def between(events: list[grammar.Event]) -> list[grammar.Event]:
    """Without created, in_progress and the terminal event, and without the numbers, which `grammar` checks."""
    return [{key: value for key, value in event.items() if key != "sequence_number"} for event in events[2:-1]]


def message(number: int, *parts: dict[str, Any], status: str = "completed") -> dict[str, Any]:
    return {
        "id": f"msg_{number}",
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": list(parts),
    }


def text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def test_text_is_told_in_the_documented_order() -> None:
    events = run(TextDelta("Hel"), TextDelta("lo"))

    response = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1000,
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "model": "m",
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": "default",
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": None,
        "user": None,
        "metadata": {},
    }
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    done = message(1, text_part("Hello"))
    completed = {**response, "status": "completed", "completed_at": 1001, "output": [done], "usage": WIRE_USAGE}
    assert events == [
        {"type": "response.created", "sequence_number": 0, "response": response},
        {"type": "response.in_progress", "sequence_number": 1, "response": response},
        {
            "type": "response.output_item.added",
            "sequence_number": 2,
            "output_index": 0,
            "item": message(1, status="in_progress"),
        },
        {"type": "response.content_part.added", "sequence_number": 3, **place, "part": text_part("")},
        {"type": "response.output_text.delta", "sequence_number": 4, **place, "delta": "Hel", "logprobs": []},
        {"type": "response.output_text.delta", "sequence_number": 5, **place, "delta": "lo", "logprobs": []},
        {"type": "response.output_text.done", "sequence_number": 6, **place, "text": "Hello", "logprobs": []},
        {"type": "response.content_part.done", "sequence_number": 7, **place, "part": text_part("Hello")},
        {"type": "response.output_item.done", "sequence_number": 8, "output_index": 0, "item": done},
        {"type": "response.completed", "sequence_number": 9, "response": completed},
    ]


def test_a_refusal_is_a_part_of_a_completed_message() -> None:
    events = run(RefusalDelta("I "), RefusalDelta("won't"))

    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    part = {"type": "refusal", "refusal": "I won't"}
    assert between(events) == [
        {"type": "response.output_item.added", "output_index": 0, "item": message(1, status="in_progress")},
        {"type": "response.content_part.added", **place, "part": {"type": "refusal", "refusal": ""}},
        {"type": "response.refusal.delta", **place, "delta": "I "},
        {"type": "response.refusal.delta", **place, "delta": "won't"},
        {"type": "response.refusal.done", **place, "refusal": "I won't"},
        {"type": "response.content_part.done", **place, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": message(1, part)},
    ]
    assert events[-1]["type"] == "response.completed"


def test_raw_reasoning_is_an_item_before_its_message() -> None:
    events = run(ReasoningDelta("Hm"), ReasoningDelta("m"), TextDelta("Yes"))

    place = {"item_id": "rs_1", "output_index": 0, "content_index": 0}
    part = {"type": "reasoning_text", "text": "Hmm"}
    empty = {"id": "rs_1", "type": "reasoning", "summary": []}
    assert between(events)[:7] == [
        {"type": "response.output_item.added", "output_index": 0, "item": empty},
        {"type": "response.content_part.added", **place, "part": {"type": "reasoning_text", "text": ""}},
        {"type": "response.reasoning_text.delta", **place, "delta": "Hm"},
        {"type": "response.reasoning_text.delta", **place, "delta": "m"},
        {"type": "response.reasoning_text.done", **place, "text": "Hmm"},
        {"type": "response.content_part.done", **place, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": {**empty, "content": [part]}},
    ]
    assert events[-1]["response"]["output"] == [{**empty, "content": [part]}, message(2, text_part("Yes"))]


def call(number: int, call_id: str, name: str, arguments: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": f"fc_{number}",
        "type": "function_call",
        "status": "completed",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        **fields,
    }


def test_parallel_calls_may_interleave() -> None:
    events = run(
        CallStart(0, "f", "call_a"),
        CallStart(1, "g", "call_b"),
        CallArguments(0, '{"x":'),
        CallArguments(1, '{"y":2}'),
        CallArguments(0, "1}"),
        CallEnd(1),
        CallEnd(0),
        Finished("tool_calls"),
    )

    first, second = call(1, "call_a", "f", '{"x":1}'), call(2, "call_b", "g", '{"y":2}')
    opened = {"status": "in_progress", "arguments": ""}
    name = "response.function_call_arguments"
    assert between(events) == [
        {"type": "response.output_item.added", "output_index": 0, "item": {**first, **opened}},
        {"type": "response.output_item.added", "output_index": 1, "item": {**second, **opened}},
        {"type": f"{name}.delta", "item_id": "fc_1", "output_index": 0, "delta": '{"x":'},
        {"type": f"{name}.delta", "item_id": "fc_2", "output_index": 1, "delta": '{"y":2}'},
        {"type": f"{name}.delta", "item_id": "fc_1", "output_index": 0, "delta": "1}"},
        {"type": f"{name}.done", "item_id": "fc_2", "output_index": 1, "arguments": '{"y":2}'},
        {"type": "response.output_item.done", "output_index": 1, "item": second},
        {"type": f"{name}.done", "item_id": "fc_1", "output_index": 0, "arguments": '{"x":1}'},
        {"type": "response.output_item.done", "output_index": 0, "item": first},
    ]
    assert events[-1]["response"]["output"] == [first, second]


THOUGHTS = (ReasoningDelta("Hm. "), ReasoningDelta("So be it."))
SUMMARY = {"type": "summary_text", "text": "Hm. So be it."}


@pytest.mark.parametrize("summary", ["auto", "detailed"])
def test_a_whole_summary_streams_as_the_reasoning_comes(summary: str) -> None:
    events = run(*THOUGHTS, TextDelta("Yes"), turn=new_turn(reasoning={"summary": summary}))

    item = {"id": "rs_1", "type": "reasoning", "summary": []}
    place = {"item_id": "rs_1", "output_index": 0, "summary_index": 0}
    name = "response.reasoning_summary"
    assert between(events)[:7] == [
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": f"{name}_part.added", **place, "part": {"type": "summary_text", "text": ""}},
        {"type": f"{name}_text.delta", **place, "delta": "Hm. "},
        {"type": f"{name}_text.delta", **place, "delta": "So be it."},
        {"type": f"{name}_text.done", **place, "text": "Hm. So be it."},
        {"type": f"{name}_part.done", **place, "part": SUMMARY},
        {"type": "response.output_item.done", "output_index": 0, "item": {**item, "summary": [SUMMARY]}},
    ]
    assert events[-1]["response"]["reasoning"] == {"effort": None, "summary": summary}


def test_a_concise_summary_comes_in_one_piece_at_the_end_of_the_reasoning() -> None:
    turn = new_turn(reasoning={"summary": "concise"})

    events = run(*THOUGHTS, ReasoningDelta(" x" * 200), turn=turn)

    place = {"item_id": "rs_1", "output_index": 0, "summary_index": 0}
    assert [event["type"] for event in events].count("response.reasoning_summary_text.delta") == 1
    assert {"type": "response.reasoning_summary_text.delta", **place, "delta": "Hm. So be it."} in between(events)
    assert events[-1]["response"]["output"][0]["summary"] == [SUMMARY]


@pytest.mark.parametrize(
    ("reasoning", "summary"),
    [(None, []), ({"summary": "auto"}, [SUMMARY]), ({"summary": "concise"}, [SUMMARY])],
    ids=["no summary", "auto", "concise"],
)
def test_raw_reasoning_can_be_hidden_altogether(reasoning: dict[str, str] | None, summary: list[Any]) -> None:
    turn = new_turn(reasoning=reasoning, shows_raw_reasoning=False)

    events = run(*THOUGHTS, turn=turn)

    assert events[-1]["response"]["output"] == [{"id": "rs_1", "type": "reasoning", "summary": summary}]
    assert not [event for event in events if "reasoning_text" in event["type"]]


@pytest.mark.parametrize(
    ("asked", "reasoning", "shows_raw"),
    [(True, None, True), (False, {"summary": "auto"}, True), (False, None, False), (True, None, False)],
    ids=["asked for", "a summary", "hidden", "hidden and asked for"],
)
def test_reasoning_is_kept_whole_and_sent_sealed_where_asked_for(
    asked: bool, reasoning: dict[str, str] | None, shows_raw: bool
) -> None:
    include = ["reasoning.encrypted_content", "something.else"] if asked else []
    turn = new_turn(reasoning=reasoning, include=include, shows_raw_reasoning=shows_raw)

    run(*THOUGHTS, TextDelta("Yes"), turn=turn)

    assert turn.output[0].get("encrypted_content") == ("sealed:Hm. So be it." if asked else None)
    assert turn.kept_output[0]["encrypted_content"] == "sealed:Hm. So be it."
    assert turn.kept_output[1:] == turn.output[1:]


def test_reasoning_that_is_told_in_full_is_not_sealed_unasked() -> None:
    turn = new_turn()

    run(*THOUGHTS, turn=turn)

    assert turn.kept_output == turn.output
    assert "encrypted_content" not in turn.output[0]


def test_a_summary_that_was_cut_off_says_so() -> None:
    events = run(*THOUGHTS, Finished("length"), turn=new_turn(reasoning={"summary": "auto"}))

    (done,) = [event for event in events if event["type"] == "response.reasoning_summary_part.done"]
    assert done["status"] == "incomplete"
    assert events[-1]["response"]["output"][0]["status"] == "incomplete"


def test_a_compaction_comes_before_the_answer_and_tells_nothing_of_the_summary() -> None:
    turn = new_turn()
    frames = turn.begin() + turn.begin_compaction(samples=True)
    for delta in (Started(30, 0), ReasoningDelta("Hm"), TextDelta(" In"), TextDelta(" short. "), Finished("length")):
        frames += turn.hear_summary(delta)
    counted = (turn.output_tokens, turn.reasoning_tokens, turn.started, turn.finished)
    frames += turn.end_step(USAGE)
    frames += turn.end_compaction("sealed")
    for delta in (TextDelta("Yes"), Finished("stop")):
        frames += turn.feed(delta)
    frames += turn.close(USAGE, completed_at=1001)
    events = grammar.read([*frames, turn.end()])

    item = {"id": "cmp_1", "type": "compaction", "encrypted_content": "sealed"}
    assert between(events)[:3] == [
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "encrypted_content": ""}},
        {"type": "response.compaction.compacting", "item_id": "cmp_1", "output_index": 0},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
    ]
    assert counted == (3, 1, Started(30, 0), Finished("length"))
    assert turn.summary == "In short."
    assert turn.past_usage == USAGE
    assert events[-1]["response"]["output"] == [item, message(2, text_part("Yes"))]


def test_a_custom_call_gives_its_input_bare() -> None:
    events = run(
        CallStart(0, "apply_patch", "call_a", custom=True),
        CallArguments(0, "*** Begin"),
        CallArguments(0, " Patch"),
        CallEnd(0),
        Finished("tool_calls"),
    )

    done = {
        "id": "ctc_1",
        "type": "custom_tool_call",
        "status": "completed",
        "call_id": "call_a",
        "name": "apply_patch",
        "input": "*** Begin Patch",
    }
    place = {"item_id": "ctc_1", "output_index": 0}
    name = "response.custom_tool_call_input"
    assert between(events) == [
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**done, "status": "in_progress", "input": ""},
        },
        {"type": f"{name}.delta", **place, "delta": "*** Begin"},
        {"type": f"{name}.delta", **place, "delta": " Patch"},
        {"type": f"{name}.done", **place, "input": "*** Begin Patch"},
        {"type": "response.output_item.done", "output_index": 0, "item": done},
    ]


def output_of(*deltas: Delta) -> list[dict[str, Any]]:
    output: list[dict[str, Any]] = run(*deltas)[-1]["response"]["output"]
    return output


REASONING = {
    "id": "rs_1",
    "type": "reasoning",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "Hm"}],
}
CUSTOM = {"type": "custom_tool_call", "status": "completed", "call_id": "c", "name": "n"}

OUTPUTS: dict[str, tuple[list[Delta], list[dict[str, Any]]]] = {
    "nothing": ([], []),
    "only a word of the start": ([Started(12, 4)], []),
    "an empty piece opens nothing": ([TextDelta(""), ReasoningDelta(""), RefusalDelta("")], []),
    "an empty piece before a call": (
        [TextDelta(""), CallStart(0, "f", "c"), CallArguments(0, "{}"), CallEnd(0)],
        [call(1, "c", "f", "{}")],
    ),
    "reasoning, then calls": (
        [ReasoningDelta("Hm"), CallStart(0, "f", "c"), CallArguments(0, "{}"), CallEnd(0)],
        [REASONING, call(2, "c", "f", "{}")],
    ),
    "reasoning alone": ([ReasoningDelta("Hm")], [REASONING]),
    "text after a call": (
        [CallStart(0, "f", "c"), CallArguments(0, "{}"), CallEnd(0), TextDelta("So")],
        [call(1, "c", "f", "{}"), message(2, text_part("So"))],
    ),
    "text beside an open call": (
        [CallStart(0, "f", "c"), TextDelta("So"), CallArguments(0, "{}"), CallEnd(0)],
        [call(1, "c", "f", "{}"), message(2, text_part("So"))],
    ),
    "two messages about a reasoning": (
        [TextDelta("A"), ReasoningDelta("Hm"), TextDelta("B")],
        [message(1, text_part("A")), {**REASONING, "id": "rs_2"}, message(3, text_part("B"))],
    ),
    "text, then a refusal: two parts": (
        [TextDelta("A"), RefusalDelta("No")],
        [message(1, text_part("A"), {"type": "refusal", "refusal": "No"})],
    ),
    "a refusal, then text: two parts": (
        [RefusalDelta("No"), TextDelta("A")],
        [message(1, {"type": "refusal", "refusal": "No"}, text_part("A"))],
    ),
    "a call without arguments is called with an empty object": (
        [CallStart(0, "f", "c"), CallEnd(0)],
        [call(1, "c", "f", "{}")],
    ),
    "a custom call may be empty": (
        [CallStart(0, "n", "c", custom=True), CallEnd(0)],
        [{**CUSTOM, "id": "ctc_1", "input": ""}],
    ),
    "a call in a namespace says so": (
        [CallStart(0, "f", "c", namespace="crm"), CallArguments(0, "{}"), CallEnd(0)],
        [call(1, "c", "f", "{}", namespace="crm")],
    ),
    "a custom call in a namespace": (
        [CallStart(0, "n", "c", namespace="crm", custom=True), CallEnd(0)],
        [{**CUSTOM, "id": "ctc_1", "input": "", "namespace": "crm"}],
    ),
    "a call without an id gets one": (
        [CallStart(0, "f"), CallArguments(0, "{}"), CallEnd(0)],
        [call(2, "call_1", "f", "{}")],
    ),
    "calls of one id are told apart": (
        [CallStart(0, "f", "c"), CallEnd(0), CallStart(1, "g", "c"), CallEnd(1)],
        [call(1, "c", "f", "{}"), call(3, "call_2", "g", "{}")],
    ),
    "an index is used again": (
        [CallStart(0, "f", "c"), CallArguments(0, '{"a":1}'), CallEnd(0), CallStart(0, "g", "d"), CallEnd(0)],
        [call(1, "c", "f", '{"a":1}'), call(2, "d", "g", "{}")],
    ),
    "an index is used again without an end": (
        [CallStart(0, "f", "c"), CallArguments(0, '{"a":1}'), CallStart(0, "g", "d"), CallEnd(0)],
        [call(1, "c", "f", '{"a":1}'), call(2, "d", "g", "{}")],
    ),
    "a call whose end is not told": (
        [CallStart(0, "f", "c"), CallArguments(0, "{}"), Finished("tool_calls")],
        [call(1, "c", "f", "{}")],
    ),
    "strange characters": (
        [TextDelta('"\\\n\u2028\x00'), TextDelta("😀")],
        [message(1, text_part('"\\\n\u2028\x00😀'))],
    ),
}


@pytest.mark.parametrize(("deltas", "output"), OUTPUTS.values(), ids=OUTPUTS)
def test_deltas_make_these_items(deltas: list[Delta], output: list[dict[str, Any]]) -> None:
    assert output_of(*deltas) == output


CUT: dict[str, tuple[list[Delta], list[dict[str, Any]]]] = {
    "nothing said": ([], []),
    "in a text": ([TextDelta("Hel")], [message(1, text_part("Hel"), status="incomplete")]),
    "in a refusal": (
        [RefusalDelta("I w")],
        [message(1, {"type": "refusal", "refusal": "I w"}, status="incomplete")],
    ),
    "in a reasoning": ([ReasoningDelta("Hm")], [{**REASONING, "status": "incomplete"}]),
    "in a call": (
        [CallStart(0, "f", "c"), CallArguments(0, '{"a')],
        [call(1, "c", "f", '{"a', status="incomplete")],
    ),
    "in a call that has no arguments yet": (
        [CallStart(0, "f", "c")],
        [call(1, "c", "f", "", status="incomplete")],
    ),
    "in the second of two calls": (
        [CallStart(0, "f", "c"), CallArguments(0, "{}"), CallEnd(0), CallStart(1, "g", "d"), CallArguments(1, "{")],
        [call(1, "c", "f", "{}"), call(2, "d", "g", "{", status="incomplete")],
    ),
    "after a text, in a custom call": (
        [TextDelta("So"), CallStart(0, "n", "c", custom=True), CallArguments(0, "ab")],
        [message(1, text_part("So")), {**CUSTOM, "id": "ctc_2", "status": "incomplete", "input": "ab"}],
    ),
}


@pytest.mark.parametrize(
    ("reason", "told"), [("length", "max_output_tokens"), ("content_filter", "content_filter")], ids=str
)
@pytest.mark.parametrize(("deltas", "output"), CUT.values(), ids=CUT)
def test_what_is_open_at_a_cut_is_closed_as_incomplete(
    deltas: list[Delta], output: list[dict[str, Any]], reason: Any, told: str
) -> None:
    turn = new_turn()

    events = run(*deltas, Finished(reason), turn=turn)

    response = events[-1]["response"]
    assert events[-1]["type"] == "response.incomplete"
    assert response["output"] == output
    assert response["incomplete_details"] == {"reason": told}
    assert response["usage"] == WIRE_USAGE
    assert (turn.status, turn.incomplete_reason) == ("incomplete", told)


FAILURES = {
    "ours": (ServerError("Sorry."), {"code": "server_error", "message": "Sorry."}),
    "overload": (Overloaded("Later."), {"code": "server_error", "message": "Later."}),
    "rate limit": (RateLimited("Later."), {"code": "rate_limit_exceeded", "message": "Later."}),
    "the request's": (
        InvalidRequest("Too long.", code="context_length_exceeded"),
        {"code": "invalid_prompt", "message": "Too long."},
    ),
}


@pytest.mark.parametrize(("error", "told"), FAILURES.values(), ids=FAILURES)
def test_a_failure_keeps_whole_items_only(error: Any, told: dict[str, Any]) -> None:
    turn = new_turn()

    frames = frames_of(turn, ReasoningDelta("Hm"), TextDelta("Hel"), CallStart(0, "f", "c"), TextDelta("x"))
    events = grammar.read([*frames, turn.fail(error)])

    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"] == told
    assert events[-1]["response"]["output"] == [REASONING, message(2, text_part("Hel"))]
    assert events[-1]["response"]["usage"] is None
    assert turn.status == "failed"


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_a_turn_that_cannot_be_saved_fails_although_it_was_whole(reason: Any) -> None:
    turn = new_turn()
    frames = frames_of(turn, TextDelta("Hello"), Finished(reason))
    frames += turn.close(USAGE, completed_at=1001)

    events = grammar.read([*frames, turn.fail(ServerError("Sorry."))])

    response = events[-1]["response"]
    assert (response["status"], response["completed_at"]) == ("failed", None)
    assert response["incomplete_details"] is None


def test_a_warm_up_is_a_whole_response_without_output() -> None:
    turn = new_turn(generate=False, input=None)

    frames = turn.begin()
    frames += turn.feed(Finished("stop"))
    frames += turn.close(Usage(input_tokens=18), completed_at=1000)
    events = grammar.read([*frames, turn.end()])

    assert [event["type"] for event in events] == ["response.created", "response.in_progress", "response.completed"]
    assert events[-1]["response"]["output"] == []
    assert events[-1]["response"]["usage"] == {
        "input_tokens": 18,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 18,
    }


def test_every_event_of_a_named_lane_says_so() -> None:
    turn = new_turn(stream_id="main")

    events = run(ReasoningDelta("Hm"), TextDelta("A"), CallStart(0, "f"), CallEnd(0), turn=turn)

    assert {event["stream_id"] for event in events} == {"main"}


def test_no_event_of_the_default_lane_names_one() -> None:
    events = run(ReasoningDelta("Hm"), TextDelta("A"), CallStart(0, "f"), CallEnd(0))

    assert not any("stream_id" in event for event in events)


def test_tokens_are_counted_as_they_come() -> None:
    turn = new_turn()

    frames_of(
        turn,
        Started(7, 3),
        ReasoningDelta("Hm", tokens=3),
        TextDelta("", tokens=1),
        TextDelta("Hello", tokens=2),
        RefusalDelta("No"),
        CallStart(0, "f"),
        CallArguments(0, "", tokens=4),
        CallArguments(0, "{}", tokens=1),
        CallEnd(0),
    )

    assert (turn.output_tokens, turn.reasoning_tokens) == (12, 3)
    assert turn.started == Started(7, 3)


def test_a_turn_is_whole_before_its_terminal_event() -> None:
    """Between the two it is saved: what is saved must be what is told."""
    turn = new_turn()
    frames_of(turn, TextDelta("Hello"), Finished("stop"))

    turn.close(USAGE, completed_at=1001)
    saved = json.loads(json.dumps(turn.response))
    terminal = json.loads(turn.end())

    assert terminal["response"] == saved
    assert saved["status"] == "completed"
    assert turn.output == saved["output"]


def test_it_knows_the_number_of_the_event_to_come() -> None:
    turn = new_turn()

    frames = frames_of(turn, TextDelta("A"))

    assert turn.has_begun
    assert turn.next_sequence_number == len(frames) == 5


def test_what_is_no_delta_is_told_from_what_is() -> None:
    with pytest.raises(AssertionError, match="Usage"):
        new_turn().feed(Usage())  # type: ignore[arg-type]


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
indexes = st.integers(0, 2)
deltas = st.one_of(
    st.builds(TextDelta, texts),
    st.builds(ReasoningDelta, texts),
    st.builds(RefusalDelta, texts),
    st.builds(
        CallStart,
        indexes,
        st.sampled_from(["f", "g"]),
        st.sampled_from([None, "", "c", "d"]),
        st.sampled_from([None, "crm"]),
        st.booleans(),
    ),
    st.builds(CallArguments, indexes, texts),
    st.builds(CallEnd, indexes),
    st.builds(Started, st.integers(0, 5)),
)


def possible(sequence: list[Delta]) -> list[Delta]:
    """Without pieces and ends of calls that have not begun: no engine sends them."""
    begun: set[int] = set()
    kept = []
    for delta in sequence:
        if isinstance(delta, CallStart):
            begun.add(delta.index)
        elif isinstance(delta, CallArguments | CallEnd):
            if delta.index not in begun:
                continue
            if isinstance(delta, CallEnd):
                begun.discard(delta.index)
        kept.append(delta)
    return kept


@given(st.lists(deltas, max_size=20), st.sampled_from(["stop", "length", "content_filter", "tool_calls", "failed"]))
def test_whatever_an_engine_says_the_stream_is_legal(sequence: list[Delta], end: Any) -> None:
    turn = new_turn()
    frames = frames_of(turn, *possible(sequence))

    if end == "failed":
        frames.append(turn.fail(ServerError("Sorry.")))
    else:
        frames += turn.feed(Finished(end))
        frames += turn.close(USAGE, completed_at=1001)
        frames.append(turn.end())

    said = "".join(delta.text for delta in sequence if isinstance(delta, TextDelta))
    told = [json.loads(frame) for frame in frames]
    grammar.read(frames)
    assert "".join(event["delta"] for event in told if event["type"] == "response.output_text.delta") == said


def background_turn() -> Turn:
    return new_turn(background=True, stream=True)


def test_a_queued_response_begins_later() -> None:
    turn = background_turn()

    frames = turn.queue() + frames_of(turn, TextDelta("Hi"), Finished("stop"))
    frames += turn.close(USAGE, completed_at=1001)
    events = grammar.read([*frames, turn.end()])

    statuses = [(event["type"], event["response"]["status"]) for event in events if "response" in event]
    assert statuses == [
        ("response.created", "queued"),
        ("response.queued", "queued"),
        ("response.in_progress", "in_progress"),
        ("response.completed", "completed"),
    ]


@pytest.mark.parametrize("has_begun", [False, True], ids=["queued", "in progress"])
def test_a_cancelled_response_ends_as_an_incomplete_one_that_says_so(has_begun: bool) -> None:
    turn = background_turn()
    frames = turn.queue()
    if has_begun:
        frames += frames_of(turn, TextDelta("Hi"))

    frames += turn.close(USAGE, completed_at=1001, cut_off=CANCELLED)
    events = grammar.read([*frames, turn.end()])

    response = events[-1]["response"]
    assert (events[-1]["type"], response["status"]) == ("response.incomplete", "cancelled")
    assert (response["incomplete_details"], response["completed_at"]) == (None, None)
    assert response["usage"] == WIRE_USAGE
    assert [item["status"] for item in response["output"]] == ["incomplete"] * has_begun


def test_a_queued_response_can_fail() -> None:
    turn = background_turn()

    events = grammar.read([*turn.queue(), turn.fail(ServerError("broken"))])

    assert [event["type"] for event in events] == ["response.created", "response.queued", "response.failed"]
