"""Chat messages as a certain template can take them."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from responses_ws.protocol.errors import InvalidRequest

Message = dict[str, Any]

_SHORT_ID = 9
_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Manners(msgspec.Struct, frozen=True):
    """What a template wants of its messages, beyond the common form."""

    system: Literal["anywhere", "first", "never"] = "anywhere"
    """Where it takes system messages."""
    alternates: bool = False
    """It takes no two user messages, or assistant messages, in a row."""
    answers_results: bool = False
    """It takes no user message right behind a tool's result: an empty answer goes between."""
    takes_several_calls: bool = True
    """An assistant message may hold more than one."""
    takes_text_and_calls: bool = True
    """An assistant message with calls may say something, too. Without it its content is to be null."""
    takes_objects: bool = True
    """Arguments of calls are to be objects. Without it they stay JSON text."""
    takes_text_arguments: bool = True
    """Arguments that are no object may be given as text."""
    wants_short_ids: bool = False
    """Ids of calls are to be nine letters and digits."""
    reasoning_field: str = "reasoning_content"
    """Where it looks for the reasoning of an assistant message."""


def adapted(messages: Sequence[Message], manners: Manners) -> list[Message]:
    """The same conversation, said so that the template takes it and leaves nothing out.

    A system message where there must be none becomes a user message, or goes in front of the one that follows.
    Messages with images are refused: token ids are text.

    Raises:
        InvalidRequest: a message holds an image or a file.
    """
    names: dict[str, str] = {}
    made: list[Message] = []
    for message in messages if manners.takes_several_calls else _one_call_each(messages):
        role = message["role"]
        content = _text(message.get("content"))
        if role == "system" and not _may_be_system(made, manners):
            role = "user"
        adapted_message: Message = {"role": role, "content": content}
        if role == "assistant":
            if message.get("reasoning_content"):
                adapted_message[manners.reasoning_field] = message["reasoning_content"]
            calls = message.get("tool_calls")
            if calls and not manners.takes_text_and_calls:
                if content or message.get("reasoning_content"):
                    made.append(adapted_message)
                adapted_message = {"role": role, "content": None}
            if calls:
                adapted_message["tool_calls"] = [_call(call, manners) for call in calls]
                names.update((call["id"], call["function"]["name"]) for call in calls)
        elif role == "tool":
            call_id = message["tool_call_id"]
            adapted_message["tool_call_id"] = call_id_of(call_id, manners)
            if call_id in names:
                adapted_message["name"] = names[call_id]
        if manners.answers_results and role == "user" and made and made[-1]["role"] == "tool":
            made.append({"role": "assistant", "content": ""})
        if manners.alternates and made and _can_merge(made[-1], adapted_message):
            made[-1] = _merged(made[-1], adapted_message)
        else:
            made.append(adapted_message)
    return made


def _one_call_each(messages: Sequence[Message]) -> list[Message]:
    """Messages with several calls as several messages, each with its result behind it."""
    made: list[Message] = []
    waiting: dict[str, Message] = {}
    for message in messages:
        if message["role"] != "tool":
            made += waiting.values()
            waiting = {}
        calls = message.get("tool_calls") or ()
        if len(calls) > 1:
            waiting = {call["id"]: {"role": "assistant", "content": "", "tool_calls": [call]} for call in calls[1:]}
            message = {**message, "tool_calls": calls[:1]}
        elif message["role"] == "tool" and message["tool_call_id"] in waiting:
            made.append(waiting.pop(message["tool_call_id"]))
        made.append(message)
    return [*made, *waiting.values()]


def _may_be_system(before: Sequence[Message], manners: Manners) -> bool:
    return manners.system == "anywhere" or (manners.system == "first" and not before)


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if any(part["type"] != "text" for part in content):
        raise InvalidRequest("This model takes no images or files.", param="input")
    return "".join(part["text"] for part in content)


def _call(call: dict[str, Any], manners: Manners) -> dict[str, Any]:
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    if manners.takes_objects:
        try:
            parsed = json.loads(arguments)
        except ValueError:
            parsed = None
        if isinstance(parsed, dict):
            arguments = parsed
        elif not manners.takes_text_arguments:
            # Nothing that was said is lost.
            arguments = {"arguments": arguments}
    return {
        "id": call_id_of(call["id"], manners),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def call_id_of(call_id: str, manners: Manners) -> str:
    """A call's id as the template takes it."""
    return short_id(call_id) if manners.wants_short_ids else call_id


def short_id(call_id: str) -> str:
    """Nine letters and digits for an id, always the same ones."""
    if len(call_id) == _SHORT_ID and call_id.isalnum() and call_id.isascii():
        return call_id
    digest = hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).digest()
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest[:_SHORT_ID])


def _can_merge(one: Message, other: Message) -> bool:
    return one["role"] == other["role"] and one["role"] in ("user", "assistant", "system") and not one.get("tool_calls")


def _merged(one: Message, other: Message) -> Message:
    merged = {**one, **other}
    for field, value in one.items():
        if isinstance(value, str) and value and other.get(field) and field != "role":
            merged[field] = f"{value}\n\n{other[field]}"
        elif value and not other.get(field):
            merged[field] = value
    return merged
