"""Chains whose model answers as its family writes."""

from collections.abc import Sequence
from typing import Any

from responses_ws.rendering.template import TemplateRenderer
from responses_ws.rendering.tokens import TokenLog
from responses_ws.testing.rendering import TOOLS, RenderedChain, assistant, called, prompt_of, tool, user

from . import families

__all__ = ["TOOLS", "Talk", "assistant", "called", "prompt_of", "tool", "user"]


class Talk(RenderedChain):
    renderer: TemplateRenderer

    def sample(self, message: dict[str, Any], ids: Sequence[int] | None = None, *, cut: int = 0) -> TokenLog:
        """The model says this; ``cut``: it is stopped so many ids before its end."""
        if ids is None:
            said = families.said(self.renderer, message)
            ids = self.renderer.tokenizer.raw.encode(said, add_special_tokens=False).ids
        return super().sample(message, ids[: len(ids) - cut])

    def full(self) -> list[int]:
        """What the template and the tokenizer alone make of all messages."""
        front = [{"role": "system", "content": self.instructions}] if self.instructions else []
        hidden = self.renderer.hidden()
        text = self.renderer.render([*front, *self.messages], self.ask, hidden, size=1 << 20)
        return list(self.renderer.tokenizer.raw.encode(text, add_special_tokens=False).ids)

    def decoded(self) -> str:
        return self.text_of(list(self.log or ()))

    def text_of(self, ids: list[int]) -> str:
        return self.renderer.tokenizer.raw.decode(ids, skip_special_tokens=False)

    def controls(self, ids: Sequence[int] | None = None) -> list[str]:
        """The control tokens among these ids, or in the log."""
        names = map(self.renderer.tokenizer.name_of, list(self.log or ()) if ids is None else ids)
        return [name for name in names if name is not None]
