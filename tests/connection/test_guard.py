from collections.abc import Sequence
from typing import Any

import pytest

from responses_ws.connection.guard import Guard
from responses_ws.protocol.errors import EngineFault
from responses_ws.protocol.sampling import (
    CallArguments,
    CallEnd,
    CallStart,
    Delta,
    Finished,
    ReasoningDelta,
    Started,
    TextDelta,
)

TEXT = TextDelta("a")
A, B = CallStart(0, "a", "1"), CallStart(1, "b", "2")
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}


def guard(**fields: Any) -> Guard:
    return Guard(**{"callable_names": frozenset("ab"), "schemas": {}, **fields})


def said(guard: Guard, deltas: Sequence[Delta]) -> list[Delta]:
    return [out for delta in deltas for out in guard.feed(delta)]


def test_what_was_asked_for_passes_unchanged() -> None:
    deltas = [
        Started(3),
        ReasoningDelta("r"),
        TEXT,
        A,
        CallArguments(0, "{}"),
        B,
        CallArguments(1, "{}"),
        CallEnd(0),
        CallEnd(1),
        Finished("tool_calls"),
    ]
    it = guard(max_tokens=4)

    assert said(it, deltas) == deltas
    assert not it.has_cut


LIMITS: dict[str, tuple[int, list[Delta], list[Delta], bool]] = {
    "at the limit": (2, [TEXT, TEXT, Finished("stop")], [TEXT, TEXT, Finished("stop")], False),
    "one more": (2, [TEXT, TEXT, TEXT, Finished("stop")], [TEXT, TEXT, Finished("length")], True),
    "reasoning counts": (2, [ReasoningDelta("r"), TEXT, TEXT], [ReasoningDelta("r"), TEXT, Finished("length")], True),
    "arguments count": (
        1,
        [A, CallArguments(0, "{"), CallArguments(0, "}"), CallEnd(0)],
        [A, CallArguments(0, "{"), Finished("length")],
        True,
    ),
    "pieces of several tokens": (
        4,
        [TextDelta("a", 3), TextDelta("b", 3)],
        [TextDelta("a", 3), Finished("length")],
        True,
    ),
}


@pytest.mark.parametrize(("limit", "deltas", "out", "has_cut"), LIMITS.values(), ids=LIMITS)
def test_an_engine_that_ignores_the_token_limit_is_cut_off(
    limit: int, deltas: list[Delta], out: list[Delta], has_cut: bool
) -> None:
    it = guard(max_tokens=limit)

    assert said(it, deltas) == out
    assert it.has_cut == has_cut


CALLED = Finished("tool_calls")
WHOLE, HALF = CallArguments(0, "{}"), CallArguments(0, '{"x')
ONE_CALL: dict[str, tuple[list[Delta], list[Delta], bool]] = {
    "one": ([A, WHOLE, CallEnd(0), CALLED], [A, WHOLE, CallEnd(0), CALLED], False),
    "a second": (
        [A, WHOLE, CallEnd(0), B, CallArguments(1, "{}")],
        [A, WHOLE, CallEnd(0), CALLED],
        True,
    ),
    "a second before the first is said to have ended": (
        [A, WHOLE, B, CallArguments(1, "{}"), CallEnd(0), CallEnd(1)],
        [A, WHOLE, CallEnd(0), CALLED],
        True,
    ),
    "side by side": (
        [A, HALF, B, CallArguments(1, "{}"), CallArguments(0, '": 1}'), CallEnd(0), CallEnd(1), CALLED],
        [A, HALF, CallArguments(0, '": 1}'), CallEnd(0), CALLED],
        False,
    ),
    "text behind the call": (
        [A, WHOLE, CallEnd(0), TEXT, Finished("stop")],
        [A, WHOLE, CallEnd(0), TEXT, Finished("stop")],
        False,
    ),
}


@pytest.mark.parametrize(("deltas", "out", "has_cut"), ONE_CALL.values(), ids=ONE_CALL)
def test_of_calls_side_by_side_that_nobody_wants_the_first_comes_out(
    deltas: list[Delta], out: list[Delta], has_cut: bool
) -> None:
    it = guard(one_call=True)

    assert said(it, deltas) == out
    assert it.has_cut == has_cut


def test_a_call_of_a_tool_that_may_not_be_called_is_a_fault() -> None:
    it = guard(callable_names=frozenset({"a"}))

    with pytest.raises(EngineFault, match="'b', which is not a tool that it may call"):
        said(it, [A, WHOLE, CallEnd(0), B])


@pytest.mark.parametrize("arguments", ["{}", "", '{"x": "1"}', '{"x": 1'], ids=str)
def test_arguments_that_break_a_promise_are_a_fault(arguments: str) -> None:
    it = guard(schemas={"a": SCHEMA})
    pieces = [CallArguments(0, character) for character in arguments]

    with pytest.raises(EngineFault, match="do not fit its schema"):
        said(it, [A, *pieces, CallEnd(0)])


def test_arguments_that_fit_pass_and_those_of_other_tools_are_not_read() -> None:
    deltas = [A, CallArguments(0, '{"x": 1}'), CallEnd(0), B, CallArguments(1, "{"), CallEnd(1)]

    assert said(guard(schemas={"a": SCHEMA}), deltas) == deltas


def test_an_answer_of_which_a_call_was_dropped_is_not_the_one_that_its_engine_remembers() -> None:
    finished = Finished("tool_calls", continuation="upstream_1")
    side_by_side = [A, HALF, B, CallArguments(1, "{}"), CallArguments(0, '": 1}'), CallEnd(0), CallEnd(1)]

    assert said(guard(one_call=True), [*side_by_side, finished])[-1] == Finished("tool_calls")
    assert said(guard(one_call=True), [A, WHOLE, CallEnd(0), finished])[-1] == finished
    assert said(guard(), [*side_by_side, finished])[-1] == finished
