"""Calls of hosted tools, as the model knows them: calls of functions, and what these gave."""

from collections.abc import Sequence
from typing import Any

import msgspec

from responses_ws.protocol.items import HOSTED_CALLS, MODEL_OUTPUT, Item

_CALLS = frozenset({"function_call", "custom_tool_call"})
_MCP_CALLS = frozenset({"mcp_call", "mcp_approval_request"})

_encode = msgspec.json.Encoder().encode


class HostedFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call and that is run here."""

    tool: dict[str, Any]
    """The request's tool that it comes from: that very object."""
    name: str
    namespace: str | None = None
    description: str | None = None
    parameters: dict[str, Any]
    """JSON Schema of its arguments."""
    item: dict[str, Any]
    """How the item of a call begins: its ``type``, and what is known before its arguments are."""


def parted(items: Sequence[Item], *, only_ours: bool = False) -> tuple[list[Item], list[Item]]:
    """What a model has said in one sampling step, and what its hosted calls gave: in items of functions.

    ``only_ours``: an upstream that runs hosted tools itself knows such items, but for those that only we can complete.
    """
    said: list[Item] = []
    gave: list[Item] = []
    for item in items:
        call, output = _as_function(item, only_ours=only_ours)
        said += call
        gave += output
    return said, gave


def unfolded(items: Sequence[Item], *, only_ours: bool = False) -> list[Item]:
    """Items with every hosted call as a function's, and its result behind it and the calls that it stands among.

    ``only_ours``: as of `parted`. One step of two calls and two steps of one call each look the same in items; both are
    told as the former.
    """
    told: list[Item] = []
    waiting: list[Item] = []
    for item in items:
        call, output = _as_function(item, only_ours=only_ours)
        if waiting and not any(one.get("type") in _CALLS for one in call):
            told += waiting
            waiting = []
        told += call
        waiting += output
    return told + waiting


def _as_function(item: Item, *, only_ours: bool) -> tuple[list[Item], list[Item]]:
    """The call and the output that an item stands for; any other item as it is."""
    kind = item.get("type")
    if only_ours and MODEL_OUTPUT not in item:
        return [item], []
    if kind == "mcp_approval_response":
        if item["approve"]:
            # The call follows.
            return [], []
        reason = f" The reason given: {item['reason']}" if isinstance(item.get("reason"), str) else ""
        return [], [_output(item["approval_request_id"], f"The user has not allowed this call.{reason}")]
    if kind not in HOSTED_CALLS and kind != "mcp_approval_request":
        return [item], []
    call_id = item.get("approval_request_id") or item["id"]
    call: Item = {"type": "function_call", "call_id": call_id}
    if kind in _MCP_CALLS:
        call |= {"namespace": item["server_label"], "name": item["name"], "arguments": item["arguments"]}
    else:
        call |= {"name": kind.removesuffix("_call"), "arguments": _encode({"query": _query_of(item)}).decode()}
    if kind == "mcp_approval_request":
        return [call], []
    is_cut_off = item.get("status") == "incomplete"
    if item.get("approval_request_id"):
        # The call itself was told when it was asked for.
        return [], [_output(call_id, "The call was interrupted." if is_cut_off else output_of(item))]
    if is_cut_off:
        return [{**call, "status": "incomplete"}], []
    return [call], [_output(call_id, output_of(item))]


def output_of(item: Item) -> str:
    """What the model is told that a hosted call gave."""
    kept = item.get(MODEL_OUTPUT)
    if isinstance(kept, str):
        return kept
    if item["type"] == "mcp_call":
        output = item.get("output")
        return output if isinstance(output, str) else _error_text(item.get("error"))
    # As clients send it back: with what they were told of it.
    action = item.get("action")
    found = item.get("results") or (action.get("sources") if isinstance(action, dict) else None)
    return _encode(found).decode() if found else "What this search found is not in the context any more."


def _error_text(error: Any) -> str:
    if isinstance(error, str) and error:
        return f"Error: {error}"
    if not isinstance(error, dict):
        return ""
    message = error.get("message")
    if isinstance(message, str):
        return f"Error: {message}"
    parts = error.get("content")
    texts = [str(part.get("text", "")) for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return "Error: " + "\n".join(texts)


def _query_of(item: Item) -> str:
    action, queries = item.get("action"), item.get("queries")
    if isinstance(action, dict):
        return str(action.get("query") or action.get("url") or "")
    return str(queries[0]) if isinstance(queries, list) and queries else ""


def _output(call_id: str, text: str) -> Item:
    return {"type": "function_call_output", "call_id": call_id, "output": text}
