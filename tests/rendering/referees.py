"""Conversations for those who can judge a rendering: servers that render themselves."""

from collections.abc import Sequence
from typing import Any

import msgspec

from responses_ws.rendering.base import Ask, Renderer
from responses_ws.rendering.chat import ChatPrompt

QUESTION = "What is the capital of France?"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TOOLS = msgspec.json.encode([WEATHER])
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


def ids_of(renderer: Renderer, items: Sequence[dict[str, Any]], tools: bytes | None = None) -> list[int]:
    """A conversation as we render it."""
    draft = renderer.draft(ChatPrompt().extended(items), Ask(tools=tools))
    draft.make()
    return list(draft.log())
