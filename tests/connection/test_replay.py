from typing import Any

import pytest

from responses_ws.connection.replay import replay
from responses_ws.connection.turn import Turn
from responses_ws.protocol.errors import ServerError
from responses_ws.protocol.request import Request
from responses_ws.protocol.sampling import (
    CallArguments,
    CallEnd,
    CallStart,
    Delta,
    Finished,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)
from responses_ws.protocol.usage import Usage
from tests.protocol import grammar


def new_turn(**fields: Any) -> Turn:
    numbers = iter(range(100))
    return Turn(
        Request(model="m", input="hi", **fields),
        response_id="resp_1",
        new_id=lambda prefix: f"{prefix}_{next(numbers)}",
        seal=lambda text: f"sealed:{text}",
        created_at=1000,
    )


def finished(*deltas: Delta, reason: Any = "stop", **fields: Any) -> dict[str, Any]:
    """The Response that a turn of these deltas ends with."""
    turn = new_turn(**fields)
    turn.begin()
    for delta in deltas:
        turn.feed(delta)
    turn.feed(Finished(reason))
    turn.close(Usage(input_tokens=3, output_tokens=2), completed_at=1001)
    return turn.response


LOGPROBS = [{"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": []}]
WITH_LOGPROBS = {"include": ["message.output_text.logprobs"]}
CALL = (CallStart(0, "f", "call_1"), CallArguments(0, '{"a":'), CallArguments(0, "1}"), CallEnd(0))


@pytest.mark.parametrize(
    "response",
    [
        pytest.param(finished(TextDelta("Hel"), TextDelta("lo")), id="text"),
        pytest.param(finished(TextDelta("Hi", logprobs=LOGPROBS), **WITH_LOGPROBS), id="logprobs"),
        pytest.param(finished(), id="nothing"),
        pytest.param(finished(ReasoningDelta("Well"), TextDelta("Hi"), RefusalDelta("No")), id="parts"),
        pytest.param(finished(ReasoningDelta("Well"), TextDelta("Hi"), reasoning={"summary": "auto"}), id="summary"),
        pytest.param(finished(TextDelta("Look"), *CALL), id="call"),
        pytest.param(finished(CallStart(0, "f", "call_1", custom=True), CallEnd(0)), id="custom call without input"),
        pytest.param(finished(TextDelta("Hel"), reason="length"), id="incomplete"),
    ],
)
def test_a_replayed_stream_is_legal_and_ends_the_same(response: dict[str, Any]) -> None:
    events = grammar.read(replay(response))

    assert events[-1]["response"] == response


def test_every_text_is_one_delta() -> None:
    events = grammar.read(replay(finished(TextDelta("Hel"), TextDelta("lo"), *CALL)))

    assert [event["delta"] for event in events if "delta" in event] == ["Hello", '{"a":1}']


def test_a_failed_response_fails_again() -> None:
    turn = new_turn()
    turn.begin()
    turn.fail(ServerError("broken"))

    events = grammar.read(replay(turn.response))

    assert events[-1]["type"] == "response.failed" and events[-1]["response"] == turn.response


def test_an_item_of_an_unknown_type_is_told_whole() -> None:
    item = {"id": "x_1", "type": "openresponses:thing", "status": "completed", "data": [1]}

    frames = replay({**finished(), "output": [item]})

    assert sum('"item":{"id":"x_1"' in frame for frame in frames) == 2
