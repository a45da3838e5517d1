"""Every family of ours keeps the contract of renderers."""

from collections.abc import Sequence

from responses_ws.rendering.template import TemplateRenderer
from responses_ws.testing import RendererContract
from responses_ws.testing.rendering import Message

from . import families


class _Family(RendererContract):
    name: str

    def renderer(self) -> TemplateRenderer:
        return families.renderer(self.name)

    def said(self, message: Message) -> Sequence[int]:
        renderer = self.renderer()
        return renderer.tokenizer.raw.encode(families.said(renderer, message), add_special_tokens=False).ids


_Family.__test__ = False


class TestChatML(_Family):
    name = "chatml"


class TestChatMLThatThinks(_Family):
    name = "chatml"
    reasoning = "Let me think."


class TestXml(_Family):
    name = "xml"


class TestXmlThatThinks(_Family):
    name = "xml"
    reasoning = "Let me think."


class TestHeaders(_Family):
    name = "headers"


class TestBrackets(_Family):
    name = "brackets"


class TestTurns(_Family):
    name = "turns"
    takes_tools = False


class TestBars(_Family):
    name = "bars"
    takes_tools = False
    reasoning = "Let me think."


class TestWords(_Family):
    name = "words"
    takes_tools = False
