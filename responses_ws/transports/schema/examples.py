"""Examples of what clients say, by the names of the shapes."""

from typing import Any

_WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
_OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "sunny, 21 degrees"}

EXAMPLES: dict[str, dict[str, Any]] = {
    "Request": {"model": "my-model", "input": "What is the weather in Oslo?", "tools": [_WEATHER], "stream": True},
    "ResponseCreate": {
        "type": "response.create",
        "stream_id": "main",
        "model": "my-model",
        "previous_response_id": "resp_1",
        "input": [_OUTPUT],
        "tools": [_WEATHER],
        "store": False,
    },
    "ResponseSteer": {"type": "response.steer", "previous_response_id": "resp_1", "input": "In Bergen, please."},
    "ResponseAppend": {"type": "response.append", "response_id": "resp_1", "input": [_OUTPUT]},
}
