"""A conversation with a model that answers just as its template would write it."""

from collections.abc import Sequence
from typing import Any

import msgspec

from responses_ws.connection.log import SharedLog
from responses_ws.rendering.base import Ask, Path
from responses_ws.rendering.chat import ChatPrompt
from responses_ws.rendering.template import TemplateRenderer
from responses_ws.rendering.tokens import TokenLog

from . import families

TOOLS = msgspec.json.encode(
    [
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "description": "Weather of a city.",
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
            },
        }
    ]
)


def called(call_id: str, arguments: str = '{"city": "Oslo"}', name: str = "get_weather") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def assistant(content: str | None, *, calls: Sequence[dict[str, Any]] = (), reasoning: str = "") -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = list(calls)
    if reasoning:
        message["reasoning_content"] = reasoning
    return message


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def tool(call_id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def prompt_of(
    messages: Sequence[dict[str, Any]], *, instructions: str | None = None, tokens: TokenLog | None = None
) -> ChatPrompt:
    encoded = [msgspec.json.encode(message) for message in messages]
    prompt = ChatPrompt(SharedLog(encoded), sum(map(len, encoded)))
    return prompt.with_instructions(instructions).with_tokens(tokens)


class Talk:
    """One chain: messages, the log of their ids, and how each prompt was made."""

    def __init__(self, renderer: TemplateRenderer, *, ask: Ask | None = None, instructions: str | None = None) -> None:
        self.renderer = renderer
        self.ask = ask or Ask()
        self.instructions = instructions
        self.messages: list[dict[str, Any]] = []
        self.log: TokenLog | None = None
        self.paths: list[Path] = []

    def fork(self) -> "Talk":
        other = Talk(self.renderer, ask=self.ask, instructions=self.instructions)
        other.messages, other.log, other.paths = list(self.messages), self.log, list(self.paths)
        return other

    def tell(self, *messages: dict[str, Any]) -> TokenLog:
        """Make the prompt for the model's next answer."""
        self.messages += messages
        prompt = prompt_of(self.messages, instructions=self.instructions, tokens=self.log)
        draft = self.renderer.draft(prompt, self.ask)
        draft.make()
        self.paths.append(draft.path)
        self.log = draft.log()
        return self.log

    def sample(self, message: dict[str, Any], *, cut: int = 0, ids: Sequence[int] | None = None) -> TokenLog:
        """The model says this message; ``cut``: it is stopped so many ids before its end."""
        assert self.log is not None
        sampled = list(ids) if ids is not None else self.canonical(message)
        if cut:
            sampled = sampled[:-cut]
        self.messages.append(message)
        self.log = self.log.extended(
            sampled,
            "sampled",
            messages=len(self.messages),
            has_reasoning=bool(message.get("reasoning_content")),
        )
        return self.log

    def canonical(self, message: dict[str, Any]) -> list[int]:
        """The ids of this answer as the model's family writes it, the one that ends it included."""
        said = families.said(self.renderer, message)
        return list(self.renderer.tokenizer.raw.encode(said, add_special_tokens=False).ids)

    def full(self, messages: Sequence[dict[str, Any]] | None = None, *, opened: bool = True) -> list[int]:
        """What rendering everything at once comes to, by the template and the tokenizer alone."""
        renderer = self.renderer
        front = [{"role": "system", "content": self.instructions}] if self.instructions else []
        text = renderer.render(
            [*front, *(self.messages if messages is None else messages)],
            self.ask,
            renderer.hidden(),
            opens_answer=opened,
        )
        return list(renderer.tokenizer.raw.encode(text, add_special_tokens=False).ids)

    def decoded(self) -> str:
        assert self.log is not None
        return self.renderer.tokenizer.raw.decode(list(self.log), skip_special_tokens=False)
