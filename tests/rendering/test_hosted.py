"""Calls of hosted tools are, to a model, calls of functions."""

from typing import Any

import pytest

from responses_ws.rendering.chat import messages_from
from responses_ws.rendering.hosted import output_of, parted, unfolded
from responses_ws.rendering.items import upstream_items

Item = dict[str, Any]


def mcp_call(name: str, **fields: Any) -> Item:
    given = {"type": "mcp_call", "id": f"mcp_{name}", "server_label": "s", "name": name, "arguments": "{}"}
    return {**given, "output": f"of {name}", "status": "completed", **fields}


def function_call(name: str) -> Item:
    return {"type": "function_call", "id": f"fc_{name}", "call_id": f"call_{name}", "name": name, "arguments": "{}"}


def output(name: str) -> Item:
    return {"type": "function_call_output", "call_id": f"call_{name}", "output": f"of {name}"}


def message(text: str, role: str = "assistant") -> Item:
    return {"type": "message", "role": role, "content": text}


REQUEST = {"type": "mcp_approval_request", "id": "mcpr_a", "server_label": "s", "name": "a", "arguments": "{}"}


def answer(approve: bool, **fields: Any) -> Item:
    return {"type": "mcp_approval_response", "approval_request_id": "mcpr_a", "approve": approve, **fields}


def told(items: list[Item]) -> list[str]:
    """The messages in short: who calls what, and what comes back."""
    short = []
    for one in messages_from(items):
        if one.get("tool_calls"):
            names = [call["function"]["name"] for call in one["tool_calls"]]
            short.append(f"{one['content'] or ''}[{' '.join(names)}]")
        else:
            short.append(f"{one['role']}: {one['content']}")
    return short


RENDERED = {
    "one call": ([mcp_call("a"), message("So.")], ["[s__a]", "tool: of a", "assistant: So."]),
    "calls side by side": ([mcp_call("a"), mcp_call("b")], ["[s__a s__b]", "tool: of a", "tool: of b"]),
    "beside a call of the client's": (
        [function_call("c"), mcp_call("a"), output("c")],
        ["[c s__a]", "tool: of a", "tool: of c"],
    ),
    "before a call of the client's": (
        [mcp_call("a"), function_call("c"), output("c")],
        ["[s__a c]", "tool: of a", "tool: of c"],
    ),
    "what was said before it": ([message("Wait."), mcp_call("a")], ["Wait.[s__a]", "tool: of a"]),
    "a listing": ([{"type": "mcp_list_tools", "id": "mcpl_a", "server_label": "s", "tools": []}], []),
    "an allowed call": (
        [REQUEST, answer(True), mcp_call("a", approval_request_id="mcpr_a")],
        ["[s__a]", "tool: of a"],
    ),
    "a call that is not allowed": ([REQUEST, answer(False)], ["[s__a]", "tool: The user has not allowed this call."]),
    "and why": (
        [REQUEST, answer(False, reason="No.")],
        ["[s__a]", "tool: The user has not allowed this call. The reason given: No."],
    ),
    "a call that was cut off": ([mcp_call("a", status="incomplete"), message("So.")], ["assistant: So."]),
    "an allowed call that was cut off": (
        [REQUEST, answer(True), mcp_call("a", approval_request_id="mcpr_a", status="incomplete")],
        ["[s__a]", "tool: The call was interrupted."],
    ),
    "a search": (
        [{"type": "web_search_call", "id": "ws_a", "action": {"query": "q"}, "model_output": "Found."}],
        ["[web_search]", "tool: Found."],
    ),
    "a kind that is not run here": ([{"type": "image_generation_call", "id": "ig_a", "result": "x"}], []),
}


@pytest.mark.parametrize(("items", "short"), RENDERED.values(), ids=RENDERED)
def test_items_become_these_messages(items: list[Item], short: list[str]) -> None:
    assert told(items) == short


def test_an_upstream_is_told_of_functions_too() -> None:
    items = upstream_items([mcp_call("a")], frozenset({"items"}))

    assert items == [
        {"type": "function_call", "call_id": "mcp_a", "name": "s__a", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "mcp_a", "output": "of a"},
    ]


def test_a_step_is_parted_into_what_was_said_and_what_came_of_it() -> None:
    said, gave = parted([mcp_call("a"), message("After it."), function_call("c")])

    assert [item["type"] for item in said] == ["function_call", "message", "function_call"]
    assert [item["output"] for item in gave] == ["of a"]


def test_items_without_hosted_calls_stay_as_they_are() -> None:
    items = [message("Hi.", "user"), function_call("c"), output("c"), {"type": "unheard_of"}]

    assert unfolded(items) == items


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (mcp_call("a", output=None, error={"type": "http_error", "code": 401, "message": "No."}), "Error: No."),
        (mcp_call("a", output=None, error={"content": [{"type": "text", "text": "Oh."}]}), "Error: Oh."),
        (mcp_call("a", output=None, error="Old form."), "Error: Old form."),
        (mcp_call("a", output=None, error={"content": None}), "Error: "),
        (mcp_call("a", output=None), ""),
        ({"type": "file_search_call", "queries": ["q"], "results": [{"text": "t"}]}, '[{"text":"t"}]'),
        ({"type": "web_search_call", "action": {"sources": [{"url": "u"}]}}, '[{"url":"u"}]'),
        ({"type": "web_search_call"}, "What this search found is not in the context any more."),
    ],
)
def test_whatever_a_client_sends_back_can_be_told(item: Item, text: str) -> None:
    assert output_of(item) == text
