"""Our renderer against vLLM's own rendering of the same conversations, id for id."""

from typing import Any

import msgspec
import pytest

from responses_ws.engines.embedded import bundled_model
from responses_ws.rendering.base import Ask
from responses_ws.rendering.chat import ChatPrompt
from responses_ws.runtime import renderers
from tests.fakes.transcripts import load

from .asking import post, rendered
from .record import QUESTION, WEATHER
from .server import MODEL

CALL = {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": '{ "city": "Zürich" }'}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": '{"celsius": -3.5}\n'}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "question": [{"role": "user", "content": QUESTION}],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    "turns": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello! How can I help?"},
        {"role": "user", "content": "Count to 12345."},
    ],
    "unicode": [{"role": "user", "content": "Grüße 👩‍👩‍👧 ​ ﷽ 東京 १२३\t\r\n  ½ Ⅷ  "}],
    "loop": [{"role": "user", "content": "Is it warm in Zürich?"}, CALL, OUTPUT],
    "two outputs": [
        {"role": "user", "content": "Twice."},
        CALL,
        {**CALL, "call_id": "call_2", "arguments": "{}"},
        OUTPUT,
        {**OUTPUT, "call_id": "call_2"},
        {"role": "assistant", "content": "Cold."},
        {"role": "user", "content": " And now? "},
    ],
}
TOOLS = msgspec.json.encode([WEATHER])


@pytest.fixture(scope="module")
def renderer():
    return renderers.load({"TOKENIZER": str(bundled_model()), "TEMPLATE": "hermes", "PARSER": "hermes"})


def ids_of(renderer, items, tools=None):
    draft = renderer.draft(ChatPrompt().extended(items), Ask(tools=tools))
    draft.make()
    return list(draft.log())


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
