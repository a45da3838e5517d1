import contextlib
import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from responses_ws.connection.guard import Guard
from responses_ws.connection.turn import Turn
from responses_ws.engines.base import EngineError
from responses_ws.engines.responses_stream import Forgotten, ResponsesReader
from responses_ws.protocol.request import Request
from responses_ws.protocol.sampling import (
    Annotation,
    CallArguments,
    CallEnd,
    CallStart,
    Delta,
    Finished,
    OutputItem,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)
from responses_ws.protocol.usage import Usage
from responses_ws.rendering.tools import CallTranslator, ToolSet

Event = dict[str, Any]

COUNTS = {
    "input_tokens": 11,
    "input_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 1},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 16,
}
COUNTED = Usage(input_tokens=11, output_tokens=5, cached_tokens=8, cache_write_tokens=1, reasoning_tokens=2)
STOP = Finished("stop", COUNTED, "named up_1")
CALLED = Finished("tool_calls", COUNTED, "named up_1")


def created(**fields: Any) -> Event:
    return {"type": "response.created", "response": {"id": "up_1", "status": "in_progress", "output": [], **fields}}


def ended(status: str = "completed", **fields: Any) -> Event:
    return {"type": f"response.{status}", "response": {"id": "up_1", "status": status, "usage": COUNTS, **fields}}


def added(index: int | None, **item: Any) -> Event:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def done(index: int | None, **item: Any) -> Event:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def said(index: int | None, kind: str, delta: Any, **fields: Any) -> Event:
    return {"type": f"response.{kind}.delta", "output_index": index, "item_id": f"i{index}", "delta": delta, **fields}


def message(*parts: Event) -> Event:
    return {"type": "message", "id": "msg_up", "role": "assistant", "status": "completed", "content": list(parts)}


def text(words: str) -> Event:
    return {"type": "output_text", "text": words, "annotations": []}


def call(name: str, call_id: str, arguments: Any = "", **fields: Any) -> Event:
    return {"type": "function_call", "id": "fc_up", "name": name, "call_id": call_id, "arguments": arguments, **fields}


def custom(given: str = "") -> Event:
    return {"type": "custom_tool_call", "id": "ctc_up", "name": "edit", "call_id": "c", "input": given}


def fed(*events: Event, reader: ResponsesReader | None = None) -> list[Delta]:
    reader = reader or ResponsesReader(lambda response_id: f"named {response_id}")
    deltas: list[Delta] = []
    for event in events:
        reader.feed(msgspec.json.encode(event), deltas)
    reader.finish(deltas)
    return deltas


def noted(index: int | None, **annotation: Any) -> Event:
    return {"type": "response.output_text.annotation.added", "output_index": index, "annotation": annotation}


SEARCH = {"type": "web_search_call", "id": "ws_up", "status": "completed", "action": {"type": "search", "query": "x"}}
WHOLE_CALL = [CallStart(0, "a", "x"), CallArguments(0, '{"q":1}'), CallEnd(0), CALLED]
STREAMS: dict[str, tuple[list[Event], list[Delta]]] = {
    "text": (
        [created(), added(0, **message()), said(0, "output_text", "Hel"), said(0, "output_text", "lo"), ended()],
        [TextDelta("Hel"), TextDelta("lo"), STOP],
    ),
    "text that is told again": (
        [
            added(0, **message()),
            said(0, "output_text", "Hi", obfuscation="x"),
            {"type": "response.output_text.done", "output_index": 0, "text": "Hi"},
            {"type": "response.content_part.done", "output_index": 0, "part": text("Hi")},
            done(0, **message(text("Hi"))),
            ended(output=[message(text("Hi"))]),
        ],
        [TextDelta("Hi"), STOP],
    ),
    "text in one piece": ([created(), done(0, **message(text("Hi"))), ended()], [TextDelta("Hi"), STOP]),
    "text in the last event only": ([created(), ended(output=[message(text("Hi"))])], [TextDelta("Hi"), STOP]),
    "the answer as JSON": (
        [{"id": "up_1", "object": "response", "status": "completed", "output": [message(text("Hi"))], "usage": COUNTS}],
        [TextDelta("Hi"), STOP],
    ),
    "two messages": (
        [said(0, "output_text", "Let me see."), said(1, "output_text", "It is 4."), ended()],
        [TextDelta("Let me see."), TextDelta("\n\n", 0), TextDelta("It is 4."), STOP],
    ),
    "logprobs": (
        [said(0, "output_text", "Hi", logprobs=[{"token": "Hi", "logprob": -0.5, "top_logprobs": []}]), ended()],
        [
            TextDelta("Hi", logprobs=({"token": "Hi", "bytes": [72, 105], "logprob": -0.5, "top_logprobs": []},)),
            STOP,
        ],
    ),
    "a refusal": ([said(0, "refusal", "No"), ended()], [RefusalDelta("No"), STOP]),
    "a refusal in one piece": (
        [done(0, **message({"type": "refusal", "refusal": "No"})), ended()],
        [RefusalDelta("No"), STOP],
    ),
    "reasoning": (
        [
            added(0, type="reasoning", id="rs", summary=[]),
            said(0, "reasoning_text", "hm"),
            done(0, type="reasoning", summary=[], content=[{"type": "reasoning_text", "text": "hm"}]),
            said(1, "output_text", "Hi"),
            ended(),
        ],
        [ReasoningDelta("hm"), TextDelta("Hi"), STOP],
    ),
    "a summary of reasoning": (
        [
            added(0, type="reasoning", id="rs", summary=[]),
            said(0, "reasoning_summary_text", "One.", summary_index=0),
            said(0, "reasoning_summary_text", "Two.", summary_index=1),
            ended(),
        ],
        [ReasoningDelta("One."), ReasoningDelta("\n\n", 0), ReasoningDelta("Two."), STOP],
    ),
    "reasoning and its summary say the same": (
        [said(0, "reasoning_text", "hm"), said(0, "reasoning_summary_text", "hm", summary_index=0), ended()],
        [ReasoningDelta("hm"), STOP],
    ),
    "reasoning that is not told": (
        [done(0, type="reasoning", summary=[], encrypted_content="x"), done(1, **message(text("Hi"))), ended()],
        [TextDelta("Hi"), STOP],
    ),
    "a call": (
        [
            created(),
            added(0, **call("a", "x")),
            said(0, "function_call_arguments", '{"q"'),
            said(0, "function_call_arguments", ":1}"),
            done(0, **call("a", "x", '{"q":1}')),
            ended(),
        ],
        [CallStart(0, "a", "x"), CallArguments(0, '{"q"'), CallArguments(0, ":1}"), CallEnd(0), CALLED],
    ),
    "a call in one piece": ([done(0, **call("a", "x", '{"q":1}')), ended()], WHOLE_CALL),
    "a call whose arguments are an object": ([done(0, **call("a", "x", {"q": 1})), ended()], WHOLE_CALL),
    "a call without its beginning": (
        [said(0, "function_call_arguments", '{"q":1}'), done(0, **call("a", "x", '{"q":1}')), ended()],
        WHOLE_CALL,
    ),
    "a call without its end": (
        [added(0, **call("a", "x")), said(0, "function_call_arguments", '{"q":1}'), ended()],
        WHOLE_CALL,
    ),
    "a call in the last event only": ([ended(output=[call("a", "x", '{"q":1}')])], WHOLE_CALL),
    "calls side by side": (
        [
            added(1, **call("a", "x")),
            added(2, **call("b", "y")),
            said(2, "function_call_arguments", "{}"),
            said(1, "function_call_arguments", "{}"),
            done(1, **call("a", "x", "{}")),
            done(2, **call("b", "y", "{}")),
            ended(),
        ],
        [
            CallStart(0, "a", "x"),
            CallStart(1, "b", "y"),
            CallArguments(1, "{}"),
            CallArguments(0, "{}"),
            CallEnd(0),
            CallEnd(1),
            CALLED,
        ],
    ),
    "a call of a custom tool": (
        [
            added(0, **custom()),
            said(0, "custom_tool_call_input", 'say "'),
            said(0, "custom_tool_call_input", 'hi"\n'),
            done(0, **custom('say "hi"\n')),
            ended(),
        ],
        [
            CallStart(0, "edit", "c"),
            CallArguments(0, '{"input":"', 0),
            CallArguments(0, 'say \\"'),
            CallArguments(0, 'hi\\"\\n'),
            CallArguments(0, '"}', 0),
            CallEnd(0),
            CALLED,
        ],
    ),
    "cut off": (
        [said(0, "output_text", "Hi"), ended("incomplete", incomplete_details={"reason": "max_output_tokens"})],
        [TextDelta("Hi"), Finished("length", COUNTED, "named up_1")],
    ),
    "a call that is cut off": (
        [
            added(0, **call("a", "x")),
            said(0, "function_call_arguments", '{"q'),
            done(0, **call("a", "x", '{"q', status="incomplete")),
            ended("incomplete", incomplete_details={"reason": "max_output_tokens"}),
        ],
        # Nobody knows what the upstream remembers of it: the chain does not go on from there.
        [CallStart(0, "a", "x"), CallArguments(0, '{"q'), Finished("length", COUNTED)],
    ),
    "filtered": (
        [ended("incomplete", incomplete_details={"reason": "content_filter"})],
        [Finished("content_filter", COUNTED, "named up_1")],
    ),
    "no usage": ([ended(usage=None)], [Finished("stop", None, "named up_1")]),
    "no id": ([ended(id=None)], [Finished("stop", COUNTED)]),
    "what nobody has ever heard of": (
        [
            {"type": "codex.rate_limits", "response": 5, "item": [1]},
            created(),
            {"type": "keepalive"},
            {"type": "response.hologram.delta", "output_index": 0, "delta": {"x": 1}},
            added(0, type="hologram", content=5),
            done(0, type="hologram", content=5),
            ended(output=[{"type": "hologram", "content": 5}]),
        ],
        [OutputItem({"type": "hologram", "content": 5}), STOP],
    ),
    "a tool that the upstream has run, and citations": (
        [
            said(0, "output_text", "I look."),
            added(1, type="web_search_call", id="ws_up", status="in_progress"),
            {"type": "response.web_search_call.searching", "output_index": 1, "item_id": "ws_up"},
            done(1, **SEARCH),
            said(2, "output_text", "One."),
            said(3, "output_text", "See x."),
            noted(3, type="url_citation", url="https://x", title="X", start_index=4, end_index=5),
            done(3, **message({**text("See x."), "annotations": [{"type": "url_citation"}]})),
            ended(),
        ],
        [
            TextDelta("I look."),
            OutputItem(SEARCH),
            TextDelta("One."),
            TextDelta("\n\n", 0),
            TextDelta("See x."),
            # Behind "One.", a blank line and "See ".
            Annotation({"type": "url_citation", "url": "https://x", "title": "X", "start_index": 10, "end_index": 11}),
            STOP,
        ],
    ),
    "citations at the end": (
        [
            said(0, "output_text", "See x."),
            done(0, **message({**text("See x."), "annotations": [{"type": "file_citation", "index": 2}]})),
            ended(),
        ],
        [TextDelta("See x."), Annotation({"type": "file_citation", "index": 2}), STOP],
    ),
    "a compaction of theirs": ([done(0, type="compaction", encrypted_content="x"), ended()], [STOP]),
}


@pytest.mark.parametrize(("events", "deltas"), STREAMS.values(), ids=STREAMS)
def test_what_is_made_of_a_stream(events: list[Event], deltas: list[Delta]) -> None:
    assert fed(*events) == deltas


def test_the_marker_that_some_servers_end_with_is_no_event() -> None:
    reader = ResponsesReader(str)
    deltas: list[Delta] = []

    reader.feed(msgspec.json.encode(ended()), deltas)
    reader.feed(b"[DONE]", deltas)
    reader.finish(deltas)

    assert deltas == [Finished("stop", COUNTED, "up_1")]


FAULTS: dict[str, tuple[list[Event], str, dict[str, str]]] = {
    "no end": ([created(), said(0, "output_text", "Hi")], "protocol", {}),
    "a call without a name": ([added(0, **call("", "x"))], "protocol", {}),
    "an end that is none": (
        [ended("cancelled"), {"type": "response.completed", "response": {"status": "cancelled"}}],
        "engine",
        {},
    ),
    "cut off for a reason that it keeps to itself": ([ended("incomplete")], "engine", {}),
    "failed": ([created(), ended("failed", error={"code": "server_error", "message": "boom"})], "engine", {}),
    "failed, and says when to try again": (
        [
            created(),
            ended(
                "failed",
                error={"code": "rate_limit_exceeded", "message": "Rate limit reached. Please try again in 1.2s."},
            ),
        ],
        "rate_limited",
        {"retry-after": "2"},
    ),
    "failed for a bad image": (
        [ended("failed", error={"code": "invalid_prompt", "message": "no"})],
        "bad_request",
        {},
    ),
    "an error as HTTP has it": (
        [{"type": "error", "code": "rate_limit_exceeded", "message": "slow", "param": None, "sequence_number": 3}],
        "rate_limited",
        {},
    ),
    "an error in an object": (
        [created(), {"type": "error", "error": {"type": "server_error", "code": None, "message": "boom"}}],
        "engine",
        {},
    ),
    "an error as a socket has it": (
        [
            {
                "type": "error",
                "status": 503,
                "error": {"code": "server_is_overloaded", "message": "m", "headers": {"Retry-After": "7"}},
            }
        ],
        "overloaded",
        {"retry-after": "7"},
    ),
    "headers beside it": (
        [{"type": "error", "status": 429, "error": {"code": "x", "message": "m"}, "headers": {"retry-after": "7"}}],
        "rate_limited",
        {"retry-after": "7"},
    ),
    "too long": (
        [{"type": "error", "status": 400, "error": {"code": "context_length_exceeded", "message": "too long"}}],
        "context_length",
        {},
    ),
    "an error without a type": ([{"error": {"message": "boom", "code": 500}}], "engine", {}),
}


@pytest.mark.parametrize(("events", "kind", "headers"), FAULTS.values(), ids=FAULTS)
def test_what_is_made_of_a_failure(events: list[Event], kind: str, headers: dict[str, str]) -> None:
    with pytest.raises(EngineError) as caught:
        fed(*events)

    assert (caught.value.kind, caught.value.headers) == (kind, headers)


@pytest.mark.parametrize("data", [b"{oops", b"[]", b"\xff"])
def test_what_cannot_be_read_is_a_fault_of_the_protocol(data: bytes) -> None:
    with pytest.raises(EngineError) as caught:
        ResponsesReader(str).feed(data, [])

    assert caught.value.kind == "protocol"


NOT_FOUND = {"code": "previous_response_not_found", "message": "no", "param": "previous_response_id"}
LIMIT = {"code": "websocket_connection_limit_reached", "message": "60 minutes"}


@pytest.mark.parametrize("error", [NOT_FOUND, LIMIT, {"message": "no", "param": "previous_response_id"}])
def test_an_upstream_that_has_forgotten_says_so_before_it_answers(error: Event) -> None:
    frame = {"type": "error", "status": 400, "error": error}

    with pytest.raises(Forgotten):
        fed(frame)
    with pytest.raises(Forgotten):
        fed({"type": "keepalive"}, frame)
    with pytest.raises(EngineError) as caught:
        fed(created(), frame)
    refusal = ResponsesReader(str).refusal(400, msgspec.json.encode({"error": error}), {})

    assert not isinstance(caught.value, Forgotten)
    assert isinstance(refusal, Forgotten)


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"error": "no"}', b'{"error": {"code": "model_not_found"}}'])
def test_other_refusals_are_as_they_are(body: bytes) -> None:
    refusal = ResponsesReader(str).refusal(404, body, {})

    assert type(refusal) is EngineError
    assert refusal.kind == "bad_request"


KINDS = ("message", "reasoning", "function_call", "custom_tool_call", "web_search_call", "")
SAYINGS = (
    "output_text",
    "refusal",
    "reasoning_text",
    "reasoning_summary_text",
    "function_call_arguments",
    "custom_tool_call_input",
    "hologram",
)


@st.composite
def events(draw: st.DrawFn) -> Event:
    """Any event that a server might send, in any order: with items that never began, or end twice."""
    index = draw(st.sampled_from([0, 1, None]))
    words = draw(st.sampled_from(["", "a", '{"x":', "1}", 'q"\\\n']))
    what = draw(st.sampled_from(["added", "done", "delta", "delta", "note", "created", "end"]))
    if what == "delta":
        return said(index, draw(st.sampled_from(SAYINGS)), words, summary_index=draw(st.sampled_from([0, 1])))
    if what == "note":
        return noted(index, type="url_citation", start_index=draw(st.sampled_from([0, None, "x"])))
    if what == "created":
        return created()
    if what == "end":
        return ended(
            draw(st.sampled_from(["completed", "incomplete"])), incomplete_details={"reason": "content_filter"}
        )
    item: Event = {"type": draw(st.sampled_from(KINDS)), "name": draw(st.sampled_from(["a", "b"])), "call_id": "c"}
    item |= {"arguments": words, "input": words, "status": draw(st.sampled_from(["completed", "incomplete"]))}
    item |= {"content": draw(st.sampled_from([None, [text(words)]])), "summary": []}
    return (added if what == "added" else done)(index, **item)


@given(st.lists(events(), max_size=12))
def test_whatever_comes_in_whichever_order_is_an_answer_or_an_error_of_the_engine(given_events: list[Event]) -> None:
    tools = ToolSet([{"type": "custom", "name": "b"}, {"type": "function", "name": "a"}])
    guard, translator = Guard(callable_names=None, schemas={}), CallTranslator(tools)
    numbers = itertools.count()
    turn = Turn(
        msgspec.convert({"model": "m"}, Request),
        response_id="resp_1",
        new_id=lambda prefix: f"{prefix}_{next(numbers)}",
        created_at=0,
        seal=str,
    )
    reader = ResponsesReader(str)
    deltas: list[Delta] = []
    turn.begin()

    with contextlib.suppress(EngineError):
        for event in given_events:
            reader.feed(msgspec.json.encode(event), deltas)
            if reader.is_done:
                break
        reader.finish(deltas)

    for delta in deltas:
        for may in guard.feed(delta):
            for told in translator.feed(may):
                turn.feed(told)
    turn.close(Usage(), completed_at=1, cut_off=None if turn.finished else "steered")
    assert [type(delta) for delta in deltas].count(Finished) == reader.is_done
    ended_calls = [delta.index for delta in deltas if isinstance(delta, CallEnd)]
    assert len(ended_calls) == len(set(ended_calls))
    for position, delta in enumerate(deltas):
        if isinstance(delta, CallArguments):
            before = deltas[:position]
            assert any(isinstance(one, CallStart) and one.index == delta.index for one in before)
            assert not any(isinstance(one, CallEnd) and one.index == delta.index for one in before)
