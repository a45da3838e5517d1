"""Texts read out of items, and put back."""

from typing import Any

import pytest

from responses_ws.safety.passages import blanked, merged, passages_of, redacted, rewritten

ITEMS: list[dict[str, Any]] = [
    {"type": "message", "id": "msg_1", "role": "user", "content": "one"},
    {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "two"},
            {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
            {"type": "input_text", "text": "three"},
        ],
    },
    {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": '{"a": "four"}'},
    {"type": "function_call_output", "call_id": "call_1", "output": "five"},
    {"type": "custom_tool_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "six"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "seven"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "eight"}]},
    {"type": "compaction", "encrypted_content": "sealed"},
]


def test_every_text_is_read_with_whose_it_is() -> None:
    _places, passages = passages_of(ITEMS)

    assert [(passage.source, passage.text) for passage in passages] == [
        ("user", "one"),
        ("user", "two"),
        ("user", "three"),
        ("tool", '{"a": "four"}'),
        ("tool", "five"),
        ("tool", "six"),
        ("reasoning", "seven"),
        ("assistant", "eight"),
    ]


def test_a_text_is_put_back_where_it_was_and_nothing_else_changes() -> None:
    places, passages = passages_of(ITEMS)
    for index in range(len(places)):
        changed = rewritten(ITEMS, {places[index]: "new"})

        texts = [passage.text for passage in passages_of(changed)[1]]
        expected = [passage.text for passage in passages]
        # Arguments have to stay JSON.
        expected[index] = "{}" if index == 3 else "new"
        assert texts == expected
        assert sum(old is not new for old, new in zip(ITEMS, changed, strict=True)) == 1


def test_what_is_blanked_has_its_ids_and_calls_and_nothing_that_was_said() -> None:
    blank = blanked(ITEMS)

    assert [(item.get("id"), item.get("call_id"), item.get("type")) for item in blank] == [
        (item.get("id"), item.get("call_id"), item.get("type")) for item in ITEMS
    ]
    said = str(blank)
    assert not any(word in said for word in ("one", "two", "three", "four", "five", "six", "seven", "eight", "AAAA"))
    assert blank[2]["arguments"] == "{}"


@pytest.mark.parametrize(
    ("spans", "whole", "text"),
    [
        ([], [], "abcdefgh"),
        ([(0, 3)], [(0, 3)], "[redacted]defgh"),
        ([(5, 8), (0, 1)], [(0, 1), (5, 8)], "[redacted]bcde[redacted]"),
        ([(1, 3), (2, 5)], [(1, 5)], "a[redacted]fgh"),
        ([(1, 3), (3, 5)], [(1, 5)], "a[redacted]fgh"),
        ([(1, 7), (2, 3)], [(1, 7)], "a[redacted]h"),
    ],
)
def test_spans_that_touch_become_one_mark(spans: Any, whole: Any, text: str) -> None:
    assert merged(spans) == whole
    assert redacted("abcdefgh", spans) == text
