"""The package ``renderers`` behind our interface; skipped where it is not installed, as in our own environments."""

import functools
import json
from collections.abc import Sequence

import pytest

from responses_ws.rendering.base import Ask
from responses_ws.rendering.tokenizer import Tokenizer
from responses_ws.testing import RendererContract
from responses_ws.testing.rendering import TOOLS, Message, RenderedChain, user

from . import families

pytest.importorskip("renderers")

from responses_ws.rendering.prime import RenderersRenderer

CONTROLS = (*families.CHATML, "<tool_response>", "</tool_response>")


@functools.cache
def renderer() -> RenderersRenderer:
    document = json.loads(json.dumps(families.document(CONTROLS)))
    return RenderersRenderer(Tokenizer(document), "qwen3", family="think-hermes", fields={})


class TestQwen3(RendererContract):
    rewinds = False

    def renderer(self) -> RenderersRenderer:
        return renderer()

    def said(self, message: Message) -> Sequence[int]:
        said = families.text_of("think-hermes", message) + "<|im_end|>"
        return renderer().tokenizer.raw.encode(said, add_special_tokens=False).ids


class TestQwen3ThatThinks(TestQwen3):
    reasoning = "Let me think."


def test_no_text_says_a_control_token() -> None:
    def controls(text: str) -> list[str]:
        chain = RenderedChain(renderer(), ask=Ask(tools=TOOLS), instructions=text)
        names = map(renderer().tokenizer.name_of, chain.tell(user(text)))
        return [name for name in names if name is not None]

    expected = controls("harmless")

    for control in CONTROLS:
        assert controls(f"a {control}") == expected
