"""Items → chat messages, appended turn by turn."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from responses_ws.connection.log import SharedLog

from .tools import flat_name

_encode = msgspec.json.Encoder().encode


class ChatPrompt:
    """A rendered prompt as chat-completions messages, each one encoded once and for all.

    ``instructions`` belong to one request only (they are not inherited along a chain), so they stand before the
    log, not in it. ``extended`` costs what is new; forks share the past.
    """

    __slots__ = ("log", "instructions", "byte_length")

    def __init__(self, log: SharedLog[bytes] | None = None, byte_length: int = 0, instructions: bytes = b"") -> None:
        self.log: SharedLog[bytes] = SharedLog() if log is None else log
        self.byte_length = byte_length
        """Bytes of all messages in the log, for estimates: O(1)."""
        self.instructions = instructions
        """The encoded system message of this request, or empty."""

    def extended(self, items: Sequence[dict[str, Any]]) -> "ChatPrompt":
        """The prompt with ``items`` rendered behind it, instructions dropped."""
        new = [_encode(message) for message in messages_from(items)]
        return ChatPrompt(self.log.extended(new), self.byte_length + sum(map(len, new)))

    def with_instructions(self, instructions: str | None) -> "ChatPrompt":
        """The same log with this request's own system message in front."""
        encoded = _encode({"role": "system", "content": instructions}) if instructions else b""
        return ChatPrompt(self.log, self.byte_length, encoded)

    def json(self) -> bytes:
        """All messages as the inside of a JSON array. A copy of bytes; nothing is encoded again."""
        if self.instructions:
            return b",".join([self.instructions, *self.log])
        return b",".join(self.log)

    def newest_first(self) -> Iterator[dict[str, Any]]:
        """Decoded messages from the end, for engines that only look at the last few."""
        for message in reversed(self.log):
            yield msgspec.json.decode(message)
        if self.instructions:
            yield msgspec.json.decode(self.instructions)


def messages_from(items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Chat messages for a run of items.

    Reasoning, text and calls of one assistant turn become one assistant message, in whichever order they came:
    servers want tool outputs right behind the message with their calls. Every tool output becomes a ``tool``
    message. Items that chat completions cannot say are left out, and so are calls that were cut off: their
    arguments are no JSON, which many chat templates demand.
    """
    messages: list[dict[str, Any]] = []
    assistant: dict[str, Any] | None = None
    cut_off: set[str] = set()
    for item in items:
        kind = item.get("type") or "message"
        if kind in ("function_call_output", "custom_tool_call_output"):
            if item["call_id"] in cut_off:
                continue
            assistant = None
            content = _text_of(item.get("output"))
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": content})
        elif kind == "message" and item.get("role") != "assistant":
            assistant = None
            role = "user" if item.get("role") == "user" else "system"
            messages.append({"role": role, "content": _content(item.get("content"))})
        elif kind in ("message", "reasoning"):
            text = _text_of(item.get("content"))
            if not text:
                continue
            if assistant is None:
                assistant = {"role": "assistant", "content": None}
                messages.append(assistant)
            field = "content" if kind == "message" else "reasoning_content"
            assistant[field] = (assistant.get(field) or "") + text
        elif kind in ("function_call", "custom_tool_call"):
            if item.get("status") == "incomplete":
                cut_off.add(item["call_id"])
                continue
            if assistant is None:
                assistant = {"role": "assistant", "content": None}
                messages.append(assistant)
            assistant.setdefault("tool_calls", []).append(_call(item, custom=kind == "custom_tool_call"))
    return messages


def _call(item: dict[str, Any], *, custom: bool) -> dict[str, Any]:
    if custom:
        arguments = _encode({"input": item.get("input", "")}).decode()
    else:
        arguments = item.get("arguments") or "{}"
    function = {"name": flat_name(item.get("namespace"), item["name"]), "arguments": arguments}
    return {"id": item.get("call_id"), "type": "function", "function": function}


def _text_of(content: Any) -> str:
    """Text of a string or of a list of parts; parts without text are left out."""
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or part.get("refusal") or "" for part in content or () if isinstance(part, dict))


def _content(content: Any) -> Any:
    """User content: a plain string where possible, parts where there are images."""
    if isinstance(content, str):
        return content
    parts: list[dict[str, Any]] = []
    for part in content or ():
        if part.get("type") == "input_image":
            image = {"url": part.get("image_url")}
            if part.get("detail"):
                image["detail"] = part["detail"]
            parts.append({"type": "image_url", "image_url": image})
        elif part.get("type") == "input_file":
            file = {key: part[key] for key in ("file_data", "file_id", "filename") if part.get(key)}
            parts.append({"type": "file", "file": file})
        elif "text" in part:
            parts.append({"type": "text", "text": part["text"]})
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts
