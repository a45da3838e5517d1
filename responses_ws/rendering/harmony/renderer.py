"""The renderer for gpt-oss models."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import lru_cache
from typing import Any

import msgspec
from openai_harmony import (
    Author,
    DeveloperContent,
    HarmonyEncoding,
    HarmonyError,
    Message,
    ReasoningEffort,
    RenderOptions,
    Role,
    SystemContent,
    ToolDescription,
)

from responses_ws.protocol.errors import InvalidRequest
from responses_ws.protocol.sampling import Constraint
from responses_ws.rendering.base import Ask, Draft, Opening, OutputParser, Renderer
from responses_ws.rendering.chat import ChatPrompt
from responses_ws.rendering.parsing import schemas_of
from responses_ws.rendering.tokens import TokenLog

from .controls import ANALYSIS, COMMENTARY, FINAL, Controls
from .draft import HarmonyDraft
from .parser import FUNCTIONS, HarmonyParser

_EFFORTS = {
    "none": ReasoningEffort.LOW,
    "minimal": ReasoningEffort.LOW,
    "low": ReasoningEffort.LOW,
    "high": ReasoningEffort.HIGH,
    "xhigh": ReasoningEffort.HIGH,
    "max": ReasoningEffort.HIGH,
}
"""What a request may say → the nearest of the three that the models know."""
_JSON = "<|constrain|>json"
_CALL_HEADER = f"<|channel|>{COMMENTARY} to={FUNCTIONS}"
_encode_json = msgspec.json.encode


class HarmonyRenderer(Renderer):
    """Renders message by message, so that a conversation that goes on costs what is new.

    Analysis is forgotten once the user has been answered: the log is then cut back, and what remains of it goes on as
    it was sampled. What is said in messages, names, tools and instructions is ordinary text, whatever it says.

    Args:
        encoding: ``HarmonyGptOss`` of openai-harmony.
        today: the date that a conversation's first prompt tells.

    Source: OpenAI, harmony response format.
    """

    def __init__(self, encoding: HarmonyEncoding, *, today: Callable[[], date]) -> None:
        self.controls = Controls(encoding)
        self.stop_ids = self.controls.stops
        self._encoding = encoding
        self._today = today

    def draft(self, prompt: ChatPrompt, ask: Ask) -> Draft:
        return HarmonyDraft(self, prompt, ask)

    def opening(self, ask: Ask) -> Opening:
        schemas = schemas_of(ask.tools)
        forced = ask.tool_choice["function"]["name"] if isinstance(ask.tool_choice, Mapping) else None
        if ask.tool_choice == "required" and len(schemas) == 1:
            (forced,) = schemas
        holds = "json_schema" in ask.constraints
        if forced is not None and forced in schemas:
            ids = self._ids(f"{_CALL_HEADER}\0 {_JSON}<|message|>", forced)
            if not holds:
                return Opening(ids)
            return Opening(ids, Constraint("json_schema", dict(schemas[forced])), (self.controls.call,))
        if ask.tool_choice == "required" and schemas:
            return Opening(self._ids(_CALL_HEADER))
        if ask.schema is not None and holds and (not schemas or ask.tool_choice == "none"):
            # An answer that may be a call cannot be held to the schema of a text.
            ids = self._ids(f"<|channel|>{FINAL} {_JSON}<|message|>")
            return Opening(ids, Constraint("json_schema", ask.schema))
        return Opening()

    def parser(self, log: TokenLog, ask: Ask) -> OutputParser:
        spans = log.spans
        kept = len(spans)
        while kept and spans[kept - 1].kind == "opening":
            kept -= 1
        return HarmonyParser(self.controls, tail=log.since(spans[kept - 1].end if kept else 0))

    def fingerprint(self, prompt: ChatPrompt, ask: Ask) -> bytes:
        digest = hashlib.blake2b(b"harmony", digest_size=16)
        schema = _encode_json(ask.schema) if ask.schema is not None else b""
        for part in (ask.tools or b"", prompt.instructions, _effort(ask).value.encode(), schema):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
        return digest.digest()

    def head(self, instructions: Sequence[str], ask: Ask) -> list[int]:
        """The ids before the conversation: what the model is, and what it is told for this request."""
        system = (
            SystemContent.new()
            .with_reasoning_effort(_effort(ask))
            .with_conversation_start_date(self._today().isoformat())
        )
        ids = self._render(Message.from_role_and_content(Role.SYSTEM, system), has_tools=ask.tools is not None)
        told = list(instructions)
        if ask.schema is not None:
            told.append(f"# Response Formats\n\n## answer\n\n{_encode_json(ask.schema).decode()}")
        if told or ask.tools is not None:
            developer = DeveloperContent.new()
            if told:
                developer = developer.with_instructions("\n\n".join(told))
            if ask.tools is not None:
                developer = developer.with_function_tools(_described(ask.tools))
            ids += self._render(Message.from_role_and_content(Role.DEVELOPER, developer))
        return ids

    def message(self, message: Mapping[str, Any], *, keeps_analysis: bool) -> list[int]:
        """The ids of one chat message, whose content is text; a tool's has the ``name`` of its tool."""
        role, content = message["role"], message.get("content") or ""
        if role == "system":
            told = Message.from_role_and_content(Role.DEVELOPER, DeveloperContent.new().with_instructions(content))
            return self._render(told)
        if role == "user":
            return self._render(Message.from_role_and_content(Role.USER, content))
        if role == "tool":
            author = Author.new(Role.TOOL, FUNCTIONS + message["name"])
            told = Message.from_author_and_content(author, content).with_channel(COMMENTARY)
            return self._render(told.with_recipient("assistant"))
        ids: list[int] = []
        calls = message.get("tool_calls") or ()
        if keeps_analysis and message.get("reasoning_content"):
            ids += self._said(message["reasoning_content"], ANALYSIS)
        if content:
            ids += self._said(content, COMMENTARY if calls else FINAL)
        for call in calls:
            function = call["function"]
            told = Message.from_role_and_content(Role.ASSISTANT, function["arguments"]).with_channel(COMMENTARY)
            ids += self._render(told.with_recipient(FUNCTIONS + function["name"]).with_content_type(_JSON))
        return ids

    def _said(self, text: str, channel: str) -> list[int]:
        return self._render(Message.from_role_and_content(Role.ASSISTANT, text).with_channel(channel))

    def _render(self, message: Message, *, has_tools: bool = False) -> list[int]:
        try:
            ids: list[int] = self._encoding.render(message, RenderOptions(conversation_has_function_tools=has_tools))
        except HarmonyError as exc:
            raise InvalidRequest(f"This model's prompt cannot be made: {exc}", param="input") from exc
        return ids

    def _ids(self, text: str, name: str = "") -> tuple[int, ...]:
        """Ids of our own words, in which ``name``, the client's, takes the place of a null character."""
        before, _null, behind = text.partition("\0")
        encode = self._encoding.encode
        words = encode(name, disallowed_special=())
        return (*encode(before, allowed_special="all"), *words, *encode(behind, allowed_special="all"))


def _effort(ask: Ask) -> ReasoningEffort:
    return _EFFORTS.get(ask.reasoning_effort or "", ReasoningEffort.MEDIUM)


@lru_cache(maxsize=32)
def _described(tools: bytes) -> tuple[ToolDescription, ...]:
    described = []
    for tool in msgspec.json.decode(tools):
        function = tool["function"]
        parameters = function.get("parameters")
        # Without any, the model is told of a function that takes none.
        parameters = parameters if parameters and parameters.get("properties") else None
        described.append(ToolDescription.new(function["name"], function.get("description") or "", parameters))
    return tuple(described)
