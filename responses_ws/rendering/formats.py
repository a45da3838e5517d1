"""The form of an answer: as engines are asked for it, and whether it has come."""

from collections.abc import Collection
from typing import Any

import msgspec

from responses_ws.protocol.errors import EngineFault
from responses_ws.protocol.json_schema import misfit

_ONLY_JSON = "and nothing else: no Markdown, no text before or after it."


def response_format(wanted: dict[str, Any]) -> dict[str, Any] | None:
    """Chat-completions form of a request's ``text.format``; None for plain text."""
    kind = wanted.get("type")
    if kind == "json_object":
        return {"type": "json_object"}
    if kind == "json_schema":
        schema = {
            key: wanted[key] for key in ("name", "schema", "strict", "description") if wanted.get(key) is not None
        }
        return {"type": "json_schema", "json_schema": schema}
    return None


def schema_of(format: dict[str, Any] | None) -> dict[str, Any] | None:
    """What an answer in this chat-completions ``response_format`` has to fit; None for plain text."""
    if format is None:
        return None
    if format["type"] == "json_object":
        return {"type": "object"}
    schema: dict[str, Any] = format["json_schema"]["schema"]
    return schema


def in_words(wanted: dict[str, Any], constrained: Collection[str]) -> str | None:
    """The same as a line for the instructions, for an engine that cannot be held to it; None if nothing need be said.

    ``constrained``: the formats that the engine is held to.
    """
    kind = wanted.get("type")
    if kind in constrained or kind not in ("json_object", "json_schema"):
        return None
    if kind == "json_object":
        return f"Answer with one JSON object {_ONLY_JSON}"
    told = f" It is: {wanted['description']}" if wanted.get("description") else ""
    schema = msgspec.json.encode(wanted["schema"]).decode()
    return f"Answer with one JSON value that fits the JSON schema below, {_ONLY_JSON}{told}\n{schema}"


def check_answer(wanted: dict[str, Any], output: list[dict[str, Any]]) -> None:
    """Refuse a finished answer that a ``strict`` schema does not fit.

    The last message is the answer. An output without one (calls only), or that declines, is none.

    Raises:
        EngineFault: what is wrong with it.
    """
    if wanted.get("type") != "json_schema" or not wanted.get("strict") or not output:
        return
    last = output[-1]
    if last["type"] != "message" or any(part["type"] == "refusal" for part in last["content"]):
        return
    fault = misfit(wanted["schema"], "".join(part["text"] for part in last["content"]))
    if fault is not None:
        raise EngineFault(f"The model's answer does not fit the schema {wanted['name']!r}: {fault}.")
