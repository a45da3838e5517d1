"""Items → the input of another server that speaks the Responses API, appended turn by turn."""

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from responses_ws.protocol.compaction import COMPACTION, INTRODUCTION, SUMMARY, TRIGGER

from .hosted import unfolded
from .tools import flat_name

Item = dict[str, Any]

_CALLS = frozenset({"function_call", "custom_tool_call"})
_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})
_OURS = frozenset({"configuration_update", "additional_tools", "item_reference", COMPACTION, TRIGGER})
"""What we have acted upon already, and an upstream would not understand as it was meant."""


def upstream_items(items: Sequence[Item], takes: Collection[str]) -> list[Item]:
    """The items for an upstream that ``takes`` these kinds (`rendering.chat.Medium`).

    Ids stay here: the upstream has never heard of ours. Tools have the one name they are offered under; without
    ``custom_tools`` they are all functions. Reasoning goes along as text, where that is taken, and is left out where
    not. Calls of hosted tools, which are run here, are functions to one that has no ``hosted_tools`` of its own. Calls
    that were cut off are left out: their arguments are no JSON. Kinds that we do not know pass as they are, unless they
    name an image or a file by a foreign URL: whoever fetched it would do so from inside its network.
    """
    told: list[Item] = []
    cut_off: set[str] = set()
    for item in unfolded(items, only_ours="hosted_tools" in takes):
        kind = item.get("type") or "message"
        if kind == "message":
            told.append(_message(item, takes))
        elif kind == "reasoning":
            parts = [part for part in item.get("content") or () if part.get("type") == "reasoning_text"]
            if parts and "reasoning" in takes:
                told.append({"type": kind, "id": item.get("id"), "summary": [], "content": parts})
        elif kind in _CALLS:
            if item.get("status") == "incomplete":
                cut_off.add(item["call_id"])
            else:
                told.append(_call(item, kind, takes))
        elif kind in _OUTPUTS:
            if item["call_id"] not in cut_off:
                name = kind if "custom_tools" in takes else "function_call_output"
                output = _content(item["output"], takes)
                told.append({"type": name, "call_id": item["call_id"], "output": output})
        elif kind == SUMMARY:
            # Content like any other, whatever it says: never with the authority of a system message.
            told.append({"type": "message", "role": "user", "content": f"{INTRODUCTION}\n\n{item['text']}"})
        elif kind == "mcp_list_tools" and "hosted_tools" not in takes:
            # To it, these are functions among others.
            pass
        elif kind not in _OURS and not _points_outside(item):
            told.append(item)
    return told


def _message(item: Item, takes: Collection[str]) -> Item:
    told = {"type": "message", "role": item["role"], "content": item["content"]}
    if item["role"] != "assistant":
        told["content"] = _content(item["content"], takes)
    elif not isinstance(item["content"], str):
        told["content"] = [_said(part) for part in item["content"]]
    if item.get("phase"):
        told["phase"] = item["phase"]
    return told


def _said(part: Item) -> Item:
    """A part that the model has said, without what was only for the client."""
    if part.get("type") == "output_text":
        return {"type": "output_text", "text": part["text"], "annotations": []}
    return part


def _call(item: Item, kind: str, takes: Collection[str]) -> Item:
    name = flat_name(item.get("namespace"), item["name"])
    if kind == "function_call":
        content = {"arguments": item.get("arguments") or "{}"}
    elif "custom_tools" in takes:
        content = {"input": item.get("input", "")}
    else:
        kind, content = "function_call", {"arguments": msgspec.json.encode({"input": item.get("input", "")}).decode()}
    return {"type": kind, "call_id": item["call_id"], "name": name, **content}


def _content(content: Any, takes: Collection[str]) -> Any:
    """What a user or a tool says; a note stands where there was an image or a file that is not taken."""
    if isinstance(content, str):
        return content
    return [_part(part, takes) for part in content]


def _part(part: Item, takes: Collection[str]) -> Item:
    kind = part.get("type")
    if kind == "input_image" and "images" not in takes:
        return {"type": "input_text", "text": "[An image was left out: this model takes none.]"}
    if kind == "input_file" and "files" not in takes:
        name = f" {part['filename']!r}" if part.get("filename") else ""
        return {"type": "input_text", "text": f"[The file{name} was left out: this model takes none.]"}
    return part


def _points_outside(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_points_outside, value))
    if not isinstance(value, dict):
        return False
    for field in ("image_url", "file_url"):
        url = value.get(field)
        url = url.get("url") if isinstance(url, dict) else url
        if isinstance(url, str) and not url.startswith("data:"):
            return True
    return any(map(_points_outside, value.values()))
