"""The exact shape of what we send: the union of what the strictest known clients demand.

A shape is a dict of keys; all must be there, and no others but those named as optional, with a trailing ``?``.
"""

from typing import Any

NULL = type(None)

RESPONSE: dict[str, Any] = {
    "id": str,
    "object": str,
    "created_at": int,
    "completed_at": (int, NULL),
    "status": str,
    "background": bool,
    "error": (dict, NULL),
    "incomplete_details": (dict, NULL),
    "instructions": (str, NULL),
    "max_output_tokens": (int, NULL),
    "max_tool_calls": (int, NULL),
    "model": str,
    "output": list,
    "parallel_tool_calls": bool,
    "previous_response_id": (str, NULL),
    "prompt_cache_key": (str, NULL),
    "presence_penalty": (float, int),
    "frequency_penalty": (float, int),
    "reasoning": dict,
    "safety_identifier": (str, NULL),
    "service_tier": str,
    "store": bool,
    "temperature": (float, int),
    "text": dict,
    "tool_choice": (str, dict),
    "tools": list,
    "top_logprobs": int,
    "top_p": (float, int),
    "truncation": str,
    "usage": (dict, NULL),
    "user": (str, NULL),
    "metadata": dict,
}
REASONING = {"effort": (str, NULL), "summary": (str, NULL)}
TEXT = {"format": dict, "verbosity": str}
ERROR = {"code": str, "message": str}
INCOMPLETE_DETAILS = {"reason": str}
FUNCTION_TOOL = {"type": str, "name": str, "description": (str, NULL), "parameters": (dict, NULL), "strict": bool}
USAGE = {
    "input_tokens": int,
    "input_tokens_details": dict,
    "output_tokens": int,
    "output_tokens_details": dict,
    "total_tokens": int,
}
ITEMS: dict[str, dict[str, Any]] = {
    # Left out rather than null: phase, encrypted_content, and content of a reasoning item without any.
    "message": {"id": str, "type": str, "status": str, "role": str, "content": list},
    "reasoning": {
        "id": str,
        "type": str,
        "summary": list,
        "content?": list,
        "encrypted_content?": str,
        "status?": str,
    },
    "compaction": {"id": str, "type": str, "encrypted_content": str},
    "function_call": {
        "id": str,
        "type": str,
        "status": str,
        "call_id": str,
        "name": str,
        "arguments": str,
        "namespace?": str,
    },
    "custom_tool_call": {
        "id": str,
        "type": str,
        "status": str,
        "call_id": str,
        "name": str,
        "input": str,
        "namespace?": str,
    },
    "mcp_list_tools": {"id": str, "type": str, "server_label": str, "tools": list, "error?": str},
    "mcp_approval_request": {"id": str, "type": str, "server_label": str, "name": str, "arguments": str},
    "mcp_call": {
        "id": str,
        "type": str,
        "status": str,
        "server_label": str,
        "name": str,
        "arguments": str,
        "approval_request_id?": str,
        "output?": str,
        "error?": dict,
    },
    "web_search_call": {"id": str, "type": str, "status": str, "action": dict},
    "file_search_call": {"id": str, "type": str, "status": str, "queries": list, "results?": list},
}
PARTS: dict[str, dict[str, Any]] = {
    "output_text": {"type": str, "text": str, "annotations": list, "logprobs": list},
    "refusal": {"type": str, "refusal": str},
    "reasoning_text": {"type": str, "text": str},
    "summary_text": {"type": str, "text": str},
}
_IN_ITEM: dict[str, Any] = {"item_id": str, "output_index": int}
_IN_PART: dict[str, Any] = {**_IN_ITEM, "content_index": int}
_IN_SUMMARY: dict[str, Any] = {**_IN_ITEM, "summary_index": int}
EVENTS: dict[str, dict[str, Any]] = {
    **{f"response.{name}": {"response": dict} for name in ("created", "queued", "in_progress")},
    **{f"response.{name}": {"response": dict} for name in ("completed", "incomplete", "failed")},
    "response.output_item.added": {"output_index": int, "item": dict},
    "response.output_item.done": {"output_index": int, "item": dict},
    "response.content_part.added": {**_IN_PART, "part": dict},
    "response.content_part.done": {**_IN_PART, "part": dict},
    "response.output_text.delta": {**_IN_PART, "delta": str, "logprobs": list},
    "response.output_text.done": {**_IN_PART, "text": str, "logprobs": list},
    "response.output_text.annotation.added": {**_IN_PART, "annotation_index": int, "annotation": dict},
    "response.refusal.delta": {**_IN_PART, "delta": str},
    "response.refusal.done": {**_IN_PART, "refusal": str},
    "response.reasoning_text.delta": {**_IN_PART, "delta": str},
    "response.reasoning_text.done": {**_IN_PART, "text": str},
    "response.reasoning_summary_part.added": {**_IN_SUMMARY, "part": dict},
    "response.reasoning_summary_part.done": {**_IN_SUMMARY, "part": dict, "status?": str},
    "response.reasoning_summary_text.delta": {**_IN_SUMMARY, "delta": str},
    "response.reasoning_summary_text.done": {**_IN_SUMMARY, "text": str},
    "response.compaction.compacting": _IN_ITEM,
    "response.function_call_arguments.delta": {**_IN_ITEM, "delta": str},
    "response.function_call_arguments.done": {**_IN_ITEM, "arguments": str},
    "response.custom_tool_call_input.delta": {**_IN_ITEM, "delta": str},
    "response.custom_tool_call_input.done": {**_IN_ITEM, "input": str},
    "response.mcp_call_arguments.delta": {**_IN_ITEM, "delta": str},
    "response.mcp_call_arguments.done": {**_IN_ITEM, "arguments": str},
    **{f"response.{kind}.in_progress": _IN_ITEM for kind in ("mcp_call", "mcp_list_tools")},
    **{f"response.{kind}.completed": _IN_ITEM for kind in ("mcp_call", "mcp_list_tools")},
    **{f"response.{kind}.failed": _IN_ITEM for kind in ("mcp_call", "mcp_list_tools")},
    **{f"response.web_search_call.{word}": _IN_ITEM for word in ("in_progress", "searching", "completed")},
    **{f"response.file_search_call.{word}": _IN_ITEM for word in ("in_progress", "searching", "completed")},
}


def check_shape(value: dict[str, Any], shape: dict[str, Any], where: str) -> None:
    """Raises AssertionError where ``value`` has not exactly the keys and types of ``shape``."""
    optional = {key.removesuffix("?") for key in shape if key.endswith("?")}
    required = shape.keys() - {f"{key}?" for key in optional}
    assert value.keys() >= required, f"{where} lacks {sorted(required - value.keys())}"
    assert value.keys() <= required | optional, f"{where} has {sorted(value.keys() - required - optional)}"
    for key, given in value.items():
        expected = shape[key if key in required else f"{key}?"]
        # To Python a bool is an int.
        fits = isinstance(given, expected) and (type(given) is not bool or expected is bool)
        assert fits, f"{where}.{key} is {given!r}"


def check_response(response: dict[str, Any]) -> None:
    check_shape(response, RESPONSE, "response")
    assert response["object"] == "response"
    check_shape(response["reasoning"], REASONING, "reasoning")
    check_shape(response["text"], TEXT, "text")
    for key, shape in (("error", ERROR), ("incomplete_details", INCOMPLETE_DETAILS), ("usage", USAGE)):
        if response[key] is not None:
            check_shape(response[key], shape, key)
    if response["usage"] is not None:
        check_usage(response["usage"])
    for tool in response["tools"]:
        if tool["type"] == "function":
            assert tool.keys() >= FUNCTION_TOOL.keys()
    for item in response["output"]:
        check_item(item)


def check_usage(usage: dict[str, Any]) -> None:
    """Parts never exceed their whole, and the total is the sum."""
    details = usage["input_tokens_details"]
    check_shape(details, {"cached_tokens": int, "cache_write_tokens": int}, "input_tokens_details")
    check_shape(usage["output_tokens_details"], {"reasoning_tokens": int}, "output_tokens_details")
    assert min(details.values()) >= 0
    assert details["cached_tokens"] + details["cache_write_tokens"] <= usage["input_tokens"]
    assert 0 <= usage["output_tokens_details"]["reasoning_tokens"] <= usage["output_tokens"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def check_item(item: dict[str, Any]) -> None:
    check_shape(item, ITEMS[item["type"]], item["type"])
    for part in [*item.get("content", ()), *item.get("summary", ())]:
        check_shape(part, PARTS[part["type"]], part["type"])


def check_event(event: dict[str, Any]) -> None:
    shape = {"type": str, "sequence_number": int, "stream_id?": str, **EVENTS[event["type"]]}
    check_shape(event, shape, event["type"])
    if "response" in event:
        check_response(event["response"])
    if "item" in event:
        check_item(event["item"])
    if "part" in event:
        check_shape(event["part"], PARTS[event["part"]["type"]], event["part"]["type"])
