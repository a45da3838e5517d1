from typing import Any

import pytest

from responses_ws.protocol.compaction import (
    CompactRequest,
    asks_compaction,
    compacted,
    compaction_object,
    decode_compact_request,
    in_place,
    is_worth_folding,
    threshold_of,
)
from responses_ws.protocol.errors import InvalidRequest

TRIGGER = {"type": "compaction_trigger"}
SUMMARY = {"type": "compaction_summary", "text": "In short."}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "ok"}


def user(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text, **more}


def assistant(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": text}


def opened(*items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "compaction", "items": list(items)}


DEVELOPER = {"role": "developer", "content": "Be brief."}
TOOLS = {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "f"}]}
EFFORT = {"type": "configuration_update", "reasoning": {"effort": "low"}}
A, B, C = user("a"), user("b"), user("c")
X, Y = assistant("x"), assistant("y")


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        pytest.param([], [SUMMARY], id="nothing"),
        pytest.param([A, X, B, Y], [A, B, SUMMARY], id="behind what it sums up"),
        pytest.param([A, X, B], [A, SUMMARY, B], id="before what has still to be answered"),
        pytest.param([DEVELOPER, A, CALL, OUTPUT], [DEVELOPER, A, SUMMARY], id="calls are folded"),
        pytest.param([A, {"type": "unheard_of"}], [A, SUMMARY], id="and what we do not know"),
        pytest.param([A, SUMMARY, B, Y], [A, B, SUMMARY], id="and an earlier summary"),
        pytest.param([TOOLS, A, X, EFFORT, Y], [TOOLS, A, EFFORT, SUMMARY], id="settings stay"),
        pytest.param([A, X, TRIGGER], [A, SUMMARY], id="the trigger is no part of it"),
    ],
)
def test_a_summary_stands_for_what_the_assistant_did(items: list[Any], expected: list[Any]) -> None:
    assert compacted(items, "In short.") == expected


def test_without_a_summary_everything_stays() -> None:
    assert compacted([A, CALL, OUTPUT, X, TRIGGER], None) == [A, CALL, OUTPUT, X]


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        pytest.param([A, X], [A, X], id="no compaction"),
        pytest.param([opened(A, SUMMARY), B], [A, SUMMARY, B], id="alone"),
        pytest.param([A, opened(A, X), B], [A, X, B], id="as compact gives it: users first"),
        pytest.param([A, X, CALL, OUTPUT, opened(A, SUMMARY), B], [A, SUMMARY, B], id="everything was sent again"),
        pytest.param(
            [DEVELOPER, A, C, opened(A, SUMMARY)], [DEVELOPER, C, A, SUMMARY], id="what is new before it stays"
        ),
        pytest.param([{**TOOLS, "id": "x"}, A, opened(TOOLS, A, SUMMARY)], [TOOLS, A, SUMMARY], id="settings, once"),
        pytest.param([opened(A, X), B, Y, opened(A, B, SUMMARY), C], [A, B, SUMMARY, C], id="the last one counts"),
        pytest.param(
            [user([{"type": "input_text", "text": "a"}], id="msg_1", status="completed"), opened(A, SUMMARY)],
            [A, SUMMARY],
            id="in another form",
        ),
        pytest.param(
            [{**A, "role": "system"}, opened(A, SUMMARY)], [{**A, "role": "system"}, A, SUMMARY], id="by another"
        ),
    ],
)
def test_a_compaction_takes_the_place_of_what_it_was_made_from(items: list[Any], expected: list[Any]) -> None:
    assert in_place(items) == expected


@pytest.mark.parametrize(
    ("items", "folds"),
    [([], False), ([A, DEVELOPER], False), ([A, SUMMARY, B], False), ([A, X], True), ([A, CALL, OUTPUT], True)],
)
def test_only_what_is_not_yet_folded_is_worth_a_summary(items: list[Any], folds: bool) -> None:
    assert is_worth_folding(items) is folds


@pytest.mark.parametrize(
    ("given", "context_tokens", "threshold"),
    [
        (None, 1000, None),
        ([], 1000, None),
        ([{"type": "compaction"}], None, None),
        ([{"type": "compaction"}], 1000, 800),
        ([{"type": "compaction", "compact_threshold": None}], 1000, 800),
        ([{"type": "compaction", "compact_threshold": 5000}], 1000, 5000),
    ],
)
def test_a_threshold_is_the_client_s_or_comes_from_the_model(
    given: Any, context_tokens: int | None, threshold: float | None
) -> None:
    assert threshold_of(given, context_tokens) == threshold


def test_a_trigger_counts_at_the_end_only() -> None:
    assert asks_compaction([A, TRIGGER])
    assert not asks_compaction([A])
    assert not asks_compaction([])


@pytest.mark.parametrize(
    ("fields", "items"),
    [
        ({"input": "a"}, [user([{"type": "input_text", "text": "a"}]), TRIGGER]),
        ({"input": [A]}, [A, TRIGGER]),
        ({"previous_response_id": "resp_1"}, [TRIGGER]),
    ],
    ids=["a string", "items", "only a response"],
)
def test_a_compact_request_is_a_turn_with_a_trigger(fields: Any, items: list[Any]) -> None:
    turn = CompactRequest(model="m", instructions="i", prompt_cache_key="k", service_tier="flex", **fields).as_turn()

    assert turn.input == items
    assert (turn.store, turn.model, turn.instructions) == (False, "m", "i")
    assert (turn.prompt_cache_key, turn.service_tier) == ("k", "flex")
    assert turn.previous_response_id == fields.get("previous_response_id")


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"{", "invalid_json", None),
        (b'{"model":"m","input":5}', "invalid_type", "input"),
        (b'{"model":5}', "invalid_type", "model"),
    ],
)
def test_a_bad_compact_request_is_refused(body: bytes, code: str, param: str | None) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_compact_request(body)

    assert (caught.value.code, caught.value.param) == (code, param)


@pytest.mark.parametrize("fields", [{}, {"input": ""}, {"input": []}], ids=["absent", "empty text", "no items"])
def test_nothing_cannot_be_compacted(fields: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_compact_request(b'{"model":"m","unknown":null}').as_turn()

    assert (caught.value.code, caught.value.param) == ("missing_required_parameter", "input")


def test_the_answer_has_the_user_s_messages_in_full_form_and_one_compaction() -> None:
    item = {"id": "cmp_1", "type": "compaction", "encrypted_content": "x"}

    answer = compaction_object(
        compaction_id="resp_1",
        created_at=5,
        context=[DEVELOPER, user("a", id="msg_1"), X, SUMMARY],
        item=item,
        usage=None,
    )

    full = {
        "id": "msg_1",
        "type": "message",
        "role": "user",
        "status": "completed",
        "content": [{"type": "input_text", "text": "a"}],
    }
    assert answer["output"] == [full, item]
    assert (answer["id"], answer["object"], answer["created_at"]) == ("resp_1", "response.compaction", 5)
    assert answer["usage"]["total_tokens"] == 0
