"""Our renderer against vLLM's own rendering of the same conversations, id for id."""

import msgspec
import pytest

from responses_ws.engines.embedded import bundled_model
from responses_ws.rendering.chat import ChatPrompt
from responses_ws.runtime import renderers
from tests.fakes.transcripts import load
from tests.rendering.referees import CONVERSATIONS, QUESTION, TOOLS, WEATHER, ids_of

from .asking import post, rendered
from .server import MODEL


@pytest.fixture(scope="module")
def renderer():
    return renderers.load({"TOKENIZER": str(bundled_model()), "TEMPLATE": "hermes", "PARSER": "hermes"})


@pytest.mark.vllm
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_conversation_is_rendered_as_vllm_does(renderer, name, tools):
    items = CONVERSATIONS[name]
    messages = msgspec.json.decode(b"[" + ChatPrompt().extended(items).json() + b"]")

    theirs = rendered(messages=messages, **({"tools": msgspec.json.decode(tools)} if tools else {}))

    assert ids_of(renderer, items, tools) == theirs


@pytest.mark.vllm
def test_items_are_rendered_as_vllm_does(renderer):
    tools = [{"type": "function", **WEATHER["function"]}]

    theirs = post("/v1/responses/render", {"model": MODEL, "input": QUESTION, "tools": tools})["token_ids"]

    assert ids_of(renderer, [{"role": "user", "content": QUESTION}], TOOLS) == theirs


@pytest.mark.skipif(bundled_model() is None, reason="needs the embedded model's tokenizer")
@pytest.mark.parametrize(
    ("name", "words", "tools"),
    [("render_chat", QUESTION, None), ("render_tools", "Is it warm in Paris?", TOOLS)],
)
def test_what_vllm_was_recorded_to_render_we_render_too(renderer, name, words, tools):
    theirs = msgspec.json.decode(load("vllm", name).body)["token_ids"]

    assert ids_of(renderer, [{"role": "user", "content": words}], tools) == theirs
