import json
from typing import Any

import pytest
from hypothesis import given

from responses_ws.protocol.compaction import INTRODUCTION
from responses_ws.rendering.chat import ChatPrompt
from responses_ws.rendering.items import upstream_items

from .test_chat import FILE, IMAGE, PNG, assistant, call, output, reasoning, turns, user

PLAIN = frozenset({"items"})
ALL = frozenset({"items", "images", "files", "custom_tools", "reasoning"})
PATCH = {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "a\n"}
PATCHED = {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"}
SEARCH = {
    "type": "image_generation_call",
    "id": "ws_1",
    "status": "completed",
    "action": {"type": "search", "query": "x"},
}


def shot(url: str) -> dict[str, Any]:
    return {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot", "image_url": url}}


# name: (items, what an upstream is told that takes nothing special, what one that takes everything)
TOLD: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]] | None]] = {
    "nothing": ([], [], None),
    "a message": ([{"id": "msg_1", "status": "completed", **user("hi")}], [user("hi")], None),
    "an answer": (
        [{"id": "msg_1", **assistant("A"), "phase": "final_answer"}],
        [
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "A", "annotations": []}],
                "phase": "final_answer",
            }
        ],
        None,
    ),
    "a refusal": (
        [{"role": "assistant", "content": [{"type": "refusal", "refusal": "No"}]}],
        [{"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No"}]}],
        None,
    ),
    "reasoning": ([{"id": "rs_1", **reasoning("hm")}], [], [{"id": "rs_1", **reasoning("hm")}]),
    "reasoning that nobody can read": ([{"type": "reasoning", "id": "rs_1", "encrypted_content": "x"}], [], None),
    "a call": (
        [{"id": "fc_1", **call("c", namespace="crm")}, {"id": "fco_1", **output("c")}],
        [call("c", name="crm__f"), output("c")],
        None,
    ),
    "a call that was cut off": ([call("c", arguments="{", status="incomplete"), output("c")], [], None),
    "a custom tool": (
        [PATCH, PATCHED],
        [call("c", name="patch", arguments='{"input":"a\\n"}'), output("c")],
        [PATCH, PATCHED],
    ),
    "media": (
        [user([IMAGE, FILE]), call("c"), output("c", [IMAGE])],
        [
            user(
                [
                    {"type": "input_text", "text": "[An image was left out: this model takes none.]"},
                    {"type": "input_text", "text": "[The file 'a.pdf' was left out: this model takes none.]"},
                ]
            ),
            call("c"),
            output("c", [{"type": "input_text", "text": "[An image was left out: this model takes none.]"}]),
        ],
        [user([IMAGE, FILE]), call("c"), output("c", [IMAGE])],
    ),
    "a summary": (
        [{"type": "compaction_summary", "text": "In short."}],
        [user(f"{INTRODUCTION}\n\nIn short.")],
        None,
    ),
    "what we have acted upon": (
        [{"type": "configuration_update", "reasoning": {}}, {"type": "compaction_trigger"}],
        [],
        None,
    ),
    "kinds that we do not know": ([SEARCH, shot(PNG)], [SEARCH, shot(PNG)], None),
    "kinds that we do not know, with a foreign URL": (
        [shot("http://10.0.0.1/x.png"), {"type": "hologram", "parts": [{"image_url": {"url": "https://x"}}]}],
        [],
        None,
    ),
}


@pytest.mark.parametrize(("items", "plain", "everything"), TOLD.values(), ids=TOLD)
def test_what_an_upstream_is_told(
    items: list[dict[str, Any]], plain: list[dict[str, Any]], everything: list[dict[str, Any]] | None
) -> None:
    assert upstream_items(items, PLAIN) == plain
    assert upstream_items(items, ALL) == (plain if everything is None else everything)


@given(turns())
def test_a_prompt_of_items_that_grew_is_the_prompt_made_at_once(runs: list[list[dict[str, Any]]]) -> None:
    grown = ChatPrompt(takes=ALL)
    for run in runs:
        grown = grown.extended(run)

    assert list(grown.log) == list(ChatPrompt(takes=ALL).extended([item for run in runs for item in run]).log)


def test_instructions_are_a_string_or_items() -> None:
    prompt = ChatPrompt(takes=PLAIN).extended([user("hi")])

    assert prompt.with_instructions("Be brief.").instructions == b'"Be brief."'
    assert json.loads(prompt.with_instructions([user("x"), user("y")]).instructions.join((b"[", b"]"))) == [
        user("x"),
        user("y"),
    ]
    assert prompt.with_instructions("x").extended([]).instructions == b""


def test_a_continuation_covers_the_answer_and_all_before_it_and_lasts_until_the_next() -> None:
    asked = ChatPrompt(takes=PLAIN).extended([user("one")])

    answered = asked.extended([assistant("A")]).named("up_1")
    longer = answered.extended([user("two")]).with_instructions("x").with_tokens(None)
    cut_off = longer.extended([assistant("B")]).named(None)
    fork = answered.extended([user("three")])

    assert (asked.continuation, asked.continued) == (None, 0)
    for prompt in (answered, longer, cut_off, fork):
        assert (prompt.continuation, prompt.continued) == ("up_1", 2)


def test_images_in_items_weigh_the_same_whatever_their_size() -> None:
    large = {"type": "input_image", "image_url": PNG + "A" * 1_000_000}

    prompt = ChatPrompt(takes=ALL).extended([user([large]), call("c"), output("c", [large])])

    assert prompt.byte_length > 2_000_000
    assert 2000 <= prompt.estimated_tokens <= 2200
