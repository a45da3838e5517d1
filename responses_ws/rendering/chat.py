"""Items → chat messages, appended turn by turn."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal

import msgspec

from responses_ws.connection.log import SharedLog
from responses_ws.protocol.compaction import INTRODUCTION, SUMMARY

from .hosted import unfolded
from .items import upstream_items
from .tokens import TokenLog
from .tools import flat_name

_encode = msgspec.json.Encoder().encode


Medium = Literal["images", "files", "items", "custom_tools", "reasoning", "hosted_tools"]
"""What a prompt may hold beside text. With ``items`` it is made of items, not of messages, and for the rest see
`rendering.items`."""
MEDIA: frozenset[Medium] = frozenset({"images", "files"})

TOKENS_PER_MEDIUM = 1000
"""What an image or a file is taken for in estimates, whatever its size: a guess of the right order."""


class ChatPrompt:
    """A rendered prompt as chat-completions messages, or as items, each one encoded once and for all.

    ``instructions`` belong to one request only (they are not inherited along a chain), so they stand before the
    log, not in it. ``extended`` costs what is new; forks share the past.
    """

    __slots__ = (
        "log",
        "instructions",
        "byte_length",
        "media_bytes",
        "takes",
        "is_whole",
        "tokens",
        "continuation",
        "continued",
    )

    def __init__(
        self,
        log: SharedLog[bytes] | None = None,
        byte_length: int = 0,
        *,
        takes: frozenset[Medium] = MEDIA,
        is_whole: bool = True,
    ) -> None:
        self.log: SharedLog[bytes] = SharedLog() if log is None else log
        self.byte_length = byte_length
        """Bytes of all messages in the log: O(1)."""
        self.media_bytes = 0
        """Part of ``byte_length`` that says nothing about tokens: the data of images and files."""
        self.takes = takes
        """The media that its engine takes. For others a note stands where one was."""
        self.is_whole = is_whole
        """False where the oldest turns of its conversation have been left out."""
        self.instructions = b""
        """What this request only puts in front, encoded: messages, comma-separated, or nothing. In a prompt of items
        a JSON string, or items."""
        self.tokens: TokenLog | None = None
        """The beginning of these messages as token ids, for a model that takes them; perhaps all of them, or none."""
        self.continuation: Any = None
        """What an engine has called an answer of its own (`Finished.continuation`), the newest that it did so."""
        self.continued = 0
        """How many entries of the log are what that answer continued, and the answer itself."""

    def _copy(self) -> "ChatPrompt":
        copy = ChatPrompt(self.log, self.byte_length, takes=self.takes, is_whole=self.is_whole)
        copy.media_bytes = self.media_bytes
        copy.instructions = self.instructions
        copy.tokens = self.tokens
        copy.continuation, copy.continued = self.continuation, self.continued
        return copy

    def extended(self, items: Sequence[dict[str, Any]]) -> "ChatPrompt":
        """The prompt with ``items`` rendered behind it, instructions dropped."""
        messages = upstream_items(items, self.takes) if "items" in self.takes else messages_from(items, self.takes)
        # Copied: what msgspec gives holds up to half as much memory again as it shows.
        new = [bytes(memoryview(_encode(message))) for message in messages]
        prompt = self._copy()
        prompt.log = self.log.extended(new)
        prompt.byte_length += sum(map(len, new))
        prompt.media_bytes += sum(map(_media_bytes, messages))
        prompt.instructions = b""
        return prompt

    def with_instructions(self, instructions: str | Sequence[dict[str, Any]] | None) -> "ChatPrompt":
        """The same log with this request's own system message, or messages, in front."""
        prompt = self._copy()
        if not instructions:
            prompt.instructions = b""
        elif isinstance(instructions, str):
            is_items = "items" in self.takes
            prompt.instructions = _encode(instructions if is_items else {"role": "system", "content": instructions})
        else:
            front = upstream_items if "items" in self.takes else messages_from
            prompt.instructions = b",".join(map(_encode, front(instructions, self.takes)))
        return prompt

    def named(self, continuation: Any) -> "ChatPrompt":
        """The same messages, which end with an answer that its engine calls so; None: it has no name for it."""
        if continuation is None:
            return self
        prompt = self._copy()
        prompt.continuation, prompt.continued = continuation, len(self.log)
        return prompt

    def with_tokens(self, tokens: TokenLog | None) -> "ChatPrompt":
        """The same messages, of which ``tokens`` is the beginning."""
        prompt = self._copy()
        prompt.tokens = tokens
        return prompt

    @property
    def estimated_tokens(self) -> int:
        """Of the log, at four bytes a token."""
        return -(-(self.byte_length - self.media_bytes) // 4)

    @property
    def memory_bytes(self) -> int:
        """What the context takes in memory, roughly: these messages, the items that they say, and the token ids."""
        # An id is up to seven bytes of JSON.
        return 3 * self.byte_length + 7 * (len(self.tokens) if self.tokens is not None else 0)

    def json(self) -> bytes:
        """All messages as the inside of a JSON array. A copy of bytes; nothing is encoded again."""
        if self.instructions:
            return b",".join([self.instructions, *self.log])
        return b",".join(self.log)

    def newest_first(self) -> Iterator[dict[str, Any]]:
        """Decoded messages from the end, for engines that only look at the last few."""
        for message in reversed(self.log):
            yield msgspec.json.decode(message)
        yield from reversed(msgspec.json.decode(b"[" + self.instructions + b"]"))


def messages_from(items: Sequence[dict[str, Any]], takes: Collection[Medium] = MEDIA) -> list[dict[str, Any]]:
    """Chat messages for a run of items, for an engine that ``takes`` these media.

    Reasoning, text and calls of one assistant turn become one assistant message, in whichever order they came:
    servers want tool outputs right behind the message with their calls. Every tool output becomes a ``tool``
    message; images and files in it, which chat completions do not allow there, follow in a user message behind all
    outputs. Calls of hosted tools are calls like others, and their results outputs. Items that chat completions
    cannot say are left out, and so are calls that were cut off: their arguments are no JSON, which many chat templates
    demand.
    """
    messages: list[dict[str, Any]] = []
    assistant: dict[str, Any] | None = None
    cut_off: set[str] = set()
    media: list[dict[str, Any]] = []
    for item in unfolded(items):
        kind = item.get("type") or "message"
        if kind in ("function_call_output", "custom_tool_call_output"):
            if item["call_id"] in cut_off:
                continue
            assistant = None
            content = _content(item.get("output"), takes)
            if not isinstance(content, str):
                media += [{"type": "text", "text": f"Output of the tool call {item['call_id']}:"}]
                media += [part for part in content if part["type"] != "text"]
                content = _text_of(content) or "The output is in the next message."
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": content})
            continue
        if media:
            messages.append({"role": "user", "content": media})
            media = []
        if kind == "message" and item.get("role") != "assistant":
            assistant = None
            role = "user" if item.get("role") == "user" else "system"
            messages.append({"role": role, "content": _content(item.get("content"), takes)})
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
        elif kind == SUMMARY:
            # Content like any other, whatever it says: never with the authority of a system message.
            assistant = None
            messages.append({"role": "user", "content": f"{INTRODUCTION}\n\n{item['text']}"})
    if media:
        messages.append({"role": "user", "content": media})
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


def _content(content: Any, takes: Collection[Medium]) -> Any:
    """User content: a plain string where possible, parts where there are images or files."""
    if isinstance(content, str):
        return content
    parts = [part for given in content or () if isinstance(given, dict) for part in _chat_parts(given, takes)]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _chat_parts(part: dict[str, Any], takes: Collection[Medium]) -> list[dict[str, Any]]:
    """A part as chat completions say it: one, or none where they cannot."""
    kind = part.get("type")
    if kind == "input_image":
        if "images" not in takes:
            return [{"type": "text", "text": "[An image was left out: this model takes none.]"}]
        image = {"url": part.get("image_url")}
        if part.get("detail") in ("low", "high", "auto"):
            image["detail"] = part["detail"]
        return [{"type": "image_url", "image_url": image}]
    if kind == "input_file":
        if "files" not in takes:
            name = f" {part['filename']!r}" if part.get("filename") else ""
            return [{"type": "text", "text": f"[The file{name} was left out: this model takes none.]"}]
        file = {"file_data": part.get("file_data") or part.get("file_url"), "filename": part.get("filename")}
        return [{"type": "file", "file": {key: value for key, value in file.items() if value}}]
    text = part.get("text") or part.get("refusal")
    return [{"type": "text", "text": text}] if text else []


def _media_bytes(message: dict[str, Any]) -> int:
    """How many more bytes than an estimate should count there are in the images and files of a message or item."""
    content = message.get("content") or message.get("output")
    if not isinstance(content, list):
        return 0
    return sum(max(len(_data_of(part)) - 4 * TOKENS_PER_MEDIUM, 0) for part in content if isinstance(part, dict))


def _data_of(part: dict[str, Any]) -> str:
    image = part.get("image_url")
    return (
        (image.get("url") if isinstance(image, dict) else image)
        or (part.get("file") or part).get("file_data")
        or part.get("file_url")
        or ""
    )
