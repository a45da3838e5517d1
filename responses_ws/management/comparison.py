"""Small conversations, rendered by us and by an engine itself."""

from typing import Any

import msgspec

from responses_ws.engines.base import ChatRequest
from responses_ws.engines.registry import Route
from responses_ws.rendering.base import Ask
from responses_ws.rendering.chat import ChatPrompt

_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_QUESTION = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Is it cold in Zürich?"}]
_CALL = {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": '{"city": "Zürich"}'}
_OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "-3"}
CONVERSATIONS: list[tuple[str, list[dict[str, Any]], bytes | None]] = [
    ("a question", _QUESTION, None),
    ("a tool's output", [*_QUESTION, _CALL, _OUTPUT], msgspec.json.encode([_TOOL])),
]


async def differs(route: Route) -> str | None:
    """How the ids of our renderer differ from those of the engine; None if they do not, or it does not tell its own.

    Raises EngineError, InvalidRequest.
    """
    assert route.renderer is not None, "only a model with a renderer is asked in token ids"
    for what, items, tools in CONVERSATIONS:
        prompt = ChatPrompt().extended(items)
        draft = route.renderer.draft(prompt, Ask(tools=tools))
        draft.make()
        ours = list(draft.log())
        theirs = await route.engine.rendered(
            ChatRequest(request_id="doctor", model=route.upstream, prompt=prompt, tools=tools)
        )
        if theirs is None:
            return None
        if ours != list(theirs):
            pairs = zip(ours, theirs, strict=False)
            same = next(
                (index for index, (own, other) in enumerate(pairs) if own != other), min(len(ours), len(theirs))
            )
            return (
                f"{what} is {len(ours)} tokens to us and {len(theirs)} to the engine {route.engine.name}, "
                f"which differ from position {same} on"
            )
    return None
