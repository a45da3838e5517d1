"""What is to be known of a chat template, found out by having it render conversations made for the purpose."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from .chat_template import TemplateFault
from .conversation import Manners, Message

Render = Callable[..., str]
"""``render(messages, tools=None, opens_answer=False)`` → text; raises TemplateFault."""

# Words that no template writes by itself.
_SYSTEM, _USER, _ANSWER, _THOUGHT, _NAME, _KEY, _VALUE, _RESULT, _LAST, _TOOL = (
    f"Zq{word}xv" for word in ("sys", "usr", "ans", "tho", "nam", "key", "val", "res", "las", "too")
)
CALL_ID = "call00001"
_AS_TEXT = f'{{"{_KEY}": "{_VALUE}"}}'


class Facts(msgspec.Struct, frozen=True):
    """What a template does with messages, as far as it matters for appending to what it has rendered."""

    manners: Manners
    forgets_at_user: bool
    """Reasoning before a user message is not rendered any more."""
    forgets_at_once: bool
    """Reasoning is not rendered in any message that is not the last, or never."""
    has_late_head: bool
    """Tools or system messages are rendered further down than where the conversation begins."""
    shows_tools: bool
    """It tells of the tools that there are."""
    closing: str
    """What it writes behind an assistant's text, with nothing behind it."""
    scaffolds: tuple[str, ...]
    """What it writes before each of the texts that it is given."""


def system(text: str = _SYSTEM) -> Message:
    return {"role": "system", "content": text}


def user(text: str = _USER) -> Message:
    return {"role": "user", "content": text}


def answer(text: str = _ANSWER, **fields: Any) -> Message:
    return {"role": "assistant", "content": text, **fields}


def call(call_id: str = CALL_ID, *, name: str = _NAME, arguments: Any = None) -> dict[str, Any]:
    arguments = {_KEY: _VALUE} if arguments is None else arguments
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(call_id: str = CALL_ID, text: str = _RESULT) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "name": _NAME, "content": text}


TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": _TOOL,
        "parameters": {"type": "object", "properties": {_KEY: {"type": "string"}}, "required": [_KEY]},
    },
}


def probe(render: Render) -> Facts:
    """Raises ValueError: the template does not even take a question and its answer."""

    def shows(word: str, messages: Sequence[Mapping[str, Any]], **options: Any) -> bool:
        """Whether it takes these messages and writes that word."""
        try:
            return word in render(messages, **options)
        except TemplateFault:
            return False

    try:
        plain = render([user(), answer()])
    except TemplateFault as exc:
        raise ValueError(f"the chat template cannot render a question and its answer: {exc}") from exc
    if _ANSWER not in plain:
        raise ValueError("the chat template leaves the assistant's answers out")
    if shows(_SYSTEM, [user(), answer(), system(), user()]) and shows(_SYSTEM, [system(), user()]):
        where = "anywhere"
    else:
        where = "first" if shows(_SYSTEM, [system(), user()]) else "never"
    calls = _ways_of_calls(shows)
    field = next(
        (
            name
            for name in ("reasoning_content", "reasoning", "thinking")
            if shows(_THOUGHT, [user(), answer(**{name: _THOUGHT})])
            or shows(_THOUGHT, [user(), answer(**{name: _THOUGHT}, tool_calls=[call()]), result()], tools=[TOOL])
        ),
        "reasoning_content",
    )
    said = None if calls.get("takes_objects", True) else _AS_TEXT
    calling: Message = answer("", tool_calls=[call(arguments=said)])
    if not calls.get("takes_text_and_calls", True):
        calling["content"] = None
    several = {**calling, "tool_calls": [call(arguments=said), call("call00002", arguments=said)]}
    alternates = not shows(_LAST, [user(), user(_LAST)]) or not shows(_LAST, [user(), answer(), answer(_LAST)])
    manners = Manners(
        system=where,  # type: ignore[arg-type]
        alternates=alternates,
        answers_results=alternates and not shows(_LAST, [user(), calling, result(), user(_LAST)], tools=[TOOL]),
        takes_several_calls=not shows(_RESULT, [user(), calling, result()], tools=[TOOL])
        or shows(_LAST, [user(), several, result(), result("call00002", _LAST)], tools=[TOOL]),
        reasoning_field=field,
        **calls,
    )
    thinking = answer(**{field: _THOUGHT})
    return Facts(
        manners=manners,
        forgets_at_user=not shows(_THOUGHT, [user(), thinking, user()], opens_answer=True),
        forgets_at_once=not shows(_THOUGHT, [user(), {**calling, field: _THOUGHT}, result()], tools=[TOOL])
        and not shows(_THOUGHT, [user(), thinking, answer()]),
        has_late_head=_has_late_head(render, manners, calling),
        shows_tools=shows(_TOOL, [user()], tools=[TOOL]) or shows(_TOOL, [system(), user()], tools=[TOOL]),
        closing=plain.partition(_ANSWER)[2],
        scaffolds=_scaffolds(render, manners, calling),
    )


def _ways_of_calls(shows: Callable[..., bool]) -> dict[str, bool]:
    """How calls are to be written, for `Manners`."""

    def takes(content: str | None, call_id: str, arguments: Any) -> bool:
        calling = {**answer(tool_calls=[call(call_id, arguments=arguments)]), "content": content}
        messages = [user(), calling, result(call_id)]
        # A template that writes Python's form of the object has not been made for objects, nor for text one that
        # quotes it once more.
        return shows(_VALUE, messages, tools=[TOOL]) and not any(
            shows(wrong, messages, tools=[TOOL]) for wrong in (f"'{_VALUE}'", f'\\"{_VALUE}')
        )

    for content in ("", None):
        for call_id in ("call_0123456789abcdef", CALL_ID):
            takes_objects, takes_text = takes(content, call_id, None), takes(content, call_id, _AS_TEXT)
            if takes_objects or takes_text:
                return {
                    "takes_text_and_calls": content is not None,
                    "wants_short_ids": call_id == CALL_ID,
                    "takes_objects": takes_objects,
                    "takes_text_arguments": takes_text,
                }
    # It has no calls.
    return {}


def _has_late_head(render: Render, manners: Manners, calling: Message) -> bool:
    front = [] if manners.system == "never" else [system()]
    for new in ([user(_LAST)], [result()]):
        last, word = (answer(), _ANSWER) if new[0]["role"] == "user" else (calling, _VALUE)
        try:
            before = render([*front, user()], tools=[TOOL])
            whole = render([*front, user(), last, *new], tools=[TOOL], opens_answer=True)
        except TemplateFault:
            continue
        tail = whole.partition(word)[2]
        if not whole.startswith(before) or _TOOL in tail or _SYSTEM in tail:
            return True
    return False


def _scaffolds(render: Render, manners: Manners, calling: Message) -> tuple[str, ...]:
    front = [] if manners.system == "never" else [system()]
    found: set[str] = set()
    for messages in (
        [*front, user(), answer(**{manners.reasoning_field: _THOUGHT})],
        [*front, user(), {**calling, manners.reasoning_field: _THOUGHT}, result()],
    ):
        try:
            text = render(messages, tools=[TOOL])
        except TemplateFault:
            continue
        for word in (_SYSTEM, _USER, _ANSWER, _THOUGHT, _NAME, _KEY, _VALUE, _RESULT, _TOOL, CALL_ID):
            pieces = text.split(word)[:-1]
            found.update(piece[-40:] for piece in pieces)
    return tuple(sorted(found))
