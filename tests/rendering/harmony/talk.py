"""A conversation in harmony, and what openai-harmony itself makes of it."""

from collections.abc import Sequence
from typing import Any

import msgspec
from openai_harmony import (
    Author,
    Conversation,
    DeveloperContent,
    Message,
    RenderConversationConfig,
    Role,
    SystemContent,
    ToolDescription,
)

from responses_ws.rendering.base import Ask
from responses_ws.rendering.harmony.renderer import HarmonyRenderer
from responses_ws.testing.rendering import TOOLS, RenderedChain

ASK = Ask(tools=TOOLS)


class Talk(RenderedChain):
    renderer: HarmonyRenderer

    def __init__(self, renderer: HarmonyRenderer, *, ask: Ask = ASK, instructions: str | None = "Be brief.") -> None:
        super().__init__(renderer, ask=ask, instructions=instructions)
        self.encoding = renderer._encoding

    def prompted(self, *messages: dict[str, Any]) -> list[int]:
        """The ids of the prompt behind these messages."""
        return list(self.tell(*messages))

    def ids(self, text: str) -> list[int]:
        return list(self.encoding.encode(text, allowed_special="all"))

    def say(self, text: str, message: dict[str, Any]) -> None:
        """The model says ``text``, which is ``message``."""
        self.sample(message, self.ids(text))

    def full(self) -> list[int]:
        """By openai-harmony, from zero."""
        system = SystemContent.new().with_conversation_start_date("2026-11-29")
        developer = DeveloperContent.new()
        if self.instructions:
            developer = developer.with_instructions(self.instructions)
        if self.ask.tools:
            functions = [tool["function"] for tool in msgspec.json.decode(self.ask.tools)]
            developer = developer.with_function_tools(
                [ToolDescription.new(one["name"], one["description"], one["parameters"]) for one in functions]
            )
        messages = [Message.from_role_and_content(Role.SYSTEM, system)]
        if self.instructions or self.ask.tools:
            messages.append(Message.from_role_and_content(Role.DEVELOPER, developer))
        names: dict[str, str] = {}
        answered = max((index for index, message in enumerate(self.messages) if _is_final(message)), default=-1)
        for index, message in enumerate(self.messages):
            # As in the models' own chat template. The package drops what stands before the first answer, if the last
            # message of the model's is one.
            messages += _told({**message, "reasoning_content": ""} if index <= answered else message, names)
        conversation, config = Conversation.from_messages(messages), RenderConversationConfig(auto_drop_analysis=False)
        return list(self.encoding.render_conversation_for_completion(conversation, Role.ASSISTANT, config))


def _is_final(message: dict[str, Any]) -> bool:
    return message["role"] == "assistant" and bool(message["content"]) and not message.get("tool_calls")


def _told(message: dict[str, Any], names: dict[str, str]) -> Sequence[Message]:
    role, content = message["role"], message["content"]
    if role == "user":
        return [Message.from_role_and_content(Role.USER, content)]
    if role == "tool":
        author = Author.new(Role.TOOL, f"functions.{names[message['tool_call_id']]}")
        told = Message.from_author_and_content(author, content).with_channel("commentary")
        return [told.with_recipient("assistant")]
    if role == "system":
        return [Message.from_role_and_content(Role.DEVELOPER, DeveloperContent.new().with_instructions(content))]
    made = []
    calls = message.get("tool_calls") or ()
    for text, channel in (
        (message.get("reasoning_content"), "analysis"),
        (content, "commentary" if calls else "final"),
    ):
        if text:
            made.append(Message.from_role_and_content(Role.ASSISTANT, text).with_channel(channel))
    for call in calls:
        function = call["function"]
        names[call["id"]] = function["name"]
        told = Message.from_role_and_content(Role.ASSISTANT, function["arguments"]).with_channel("commentary")
        made.append(told.with_recipient(f"functions.{function['name']}").with_content_type("<|constrain|>json"))
    return made
