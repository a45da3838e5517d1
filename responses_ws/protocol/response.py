"""The Response object."""

import re
from typing import Any

from .request import JsonObject, Request


def response_object(request: Request, *, response_id: str, created_at: int) -> JsonObject:
    """A Response in progress: every key of the public shape, defaults filled in. The caller owns the dict.

    Source: the shape that OpenAI's types, the stricter Open Responses schema and Codex accept at once: no null
    where that schema forbids it, ``created_at`` an integer, the keys of function tools all present.
    """
    text = request.text or {}
    reasoning = request.reasoning or {}
    tier = request.service_tier
    response = {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "completed_at": None,
        "status": "in_progress",
        "background": request.background is True,
        "error": None,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "model": request.model,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "presence_penalty": request.presence_penalty or 0.0,
        "frequency_penalty": request.frequency_penalty or 0.0,
        "reasoning": {"effort": reasoning.get("effort"), "summary": request.reasoning_summary},
        "safety_identifier": request.safety_identifier,
        "service_tier": "priority" if tier in ("fast", "priority") else "default",
        "store": request.is_stored,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "text": {"format": text.get("format") or {"type": "text"}, "verbosity": text.get("verbosity") or "medium"},
        "tool_choice": "auto" if request.tool_choice is None else request.tool_choice,
        "tools": [_echoed(tool) for tool in request.tools or ()],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "truncation": request.truncation or "disabled",
        "usage": None,
        "user": request.user,
        "metadata": request.metadata or {},
    }
    if request.conversation_id is not None:
        response["conversation"] = {"id": request.conversation_id}
    if request.prompt is not None:
        response["prompt"] = request.prompt
    if request.moderation is not None:
        response["moderation"] = None
    return response


def _echoed(tool: JsonObject) -> JsonObject:
    if tool.get("type") == "mcp":
        return _without_secrets(tool)
    if tool.get("type") == "namespace" and tool.get("tools"):
        return {**tool, "tools": [_without_secrets(one) if one["type"] == "mcp" else one for one in tool["tools"]]}
    if tool.get("type") != "function":
        return tool
    strict: Any = tool.get("strict")
    return {
        **tool,
        "description": tool.get("description"),
        "parameters": tool.get("parameters"),
        "strict": True if strict is None else strict,
    }


def _without_secrets(tool: JsonObject) -> JsonObject:
    """What may be shown and stored of an MCP server. Of its URL the path may be a secret, too.

    Source: OpenAI's guide to remote MCP: none of these values are stored or visible in the Response object.
    """
    shown = {key: value for key, value in tool.items() if key not in ("authorization", "headers")}
    if isinstance(shown.get("server_url"), str):
        scheme, slashes, rest = shown["server_url"].partition("://")
        authority = re.split(r"[/?#\\]", rest, maxsplit=1)[0].rpartition("@")[2]
        shown["server_url"] = f"{scheme}://{authority}/<redacted>" if slashes else "<redacted>"
    return shown
