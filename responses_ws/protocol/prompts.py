"""Prompt templates: text with variables, and what becomes of it when values are put in."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from .depth import check_depth
from .errors import InvalidRequest
from .items import Item, check_part
from .request import JsonObject, check_optional

_VARIABLE = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]{0,63})\s*\}\}")
_HEADING = re.compile(r"^\[(system|developer|user|assistant)\][ \t]*$", re.MULTILINE)


class Template(msgspec.Struct, frozen=True):
    """A parsed template: instructions, then messages.

    A line that is just ``[system]``, ``[developer]``, ``[user]`` or ``[assistant]`` begins a message of that role;
    what stands before the first such line are the instructions. ``{{name}}`` stands for a variable. There is no more
    to it: values are put in after parsing, so nothing in them is a heading or a variable.
    """

    instructions: str
    messages: tuple[tuple[str, str], ...]
    """(role, text), in order."""

    @property
    def variables(self) -> list[str]:
        """Names of the variables, each once, in order."""
        texts = [self.instructions, *(text for _, text in self.messages)]
        return list(dict.fromkeys(name for text in texts for name in _VARIABLE.findall(text)))

    def filled(self, values: Mapping[str, Any]) -> tuple[str, list[Item]]:
        """Instructions and messages with the values in their places.

        A value is a string or an ``input_text``, ``input_image`` or ``input_file`` part.

        Raises:
            InvalidRequest: a variable without a value, a value without a variable, or one of a wrong kind.
        """
        known = self.variables
        for name in values:
            if name not in known:
                raise _invalid(f"The prompt has no variable {name[:64]!r}.")
        for name in known:
            if values.get(name) is None:
                raise _invalid(f"The prompt's variable {name!r} has no value.", code="missing_required_parameter")
        parts = {name: _part(name, value) for name, value in values.items()}
        instructions = _filled_text(self.instructions, parts)
        return instructions, [_message(role, text, parts) for role, text in self.messages]


def parse_template(text: str) -> Template:
    """Read a template. Any text is one."""
    # Split at headings: text, role, text, role, text.
    first, *rest = _HEADING.split(text.replace("\r\n", "\n"))
    messages = tuple((role, said.strip("\n")) for role, said in zip(rest[::2], rest[1::2], strict=True))
    return Template(first.strip("\n"), messages)


def check_prompt(prompt: JsonObject) -> None:
    """The shape of a request's ``prompt``: ``{id, version?, variables?}``. Raises InvalidRequest."""
    check_depth(prompt, "prompt", within=2)
    for field, expected in (("id", str), ("version", str), ("variables", dict)):
        check_optional(prompt, field, "prompt", expected)
    if not prompt.get("id"):
        raise InvalidRequest(
            "Missing required parameter: 'prompt.id'.", code="missing_required_parameter", param="prompt.id"
        )


def _part(name: str, value: Any) -> JsonObject:
    if isinstance(value, str):
        return {"type": "input_text", "text": value}
    if not isinstance(value, dict) or value.get("type") not in ("input_text", "input_image", "input_file"):
        raise _invalid(f"The value of variable {name!r} is neither a string nor an input part.", code="invalid_type")
    check_part(value, f"prompt.variables.{name}")
    return dict(value)


def _filled_text(text: str, parts: Mapping[str, JsonObject]) -> str:
    def value(found: re.Match[str]) -> str:
        part = parts[found[1]]
        if part["type"] != "input_text":
            raise _invalid(f"The prompt's variable {found[1]!r} takes text only.", code="invalid_type")
        return str(part["text"])

    return _VARIABLE.sub(value, text)


def _message(role: str, text: str, parts: Mapping[str, JsonObject]) -> Item:
    if role != "user":
        kind = "output_text" if role == "assistant" else "input_text"
        content: list[JsonObject] = [{"type": kind, "text": _filled_text(text, parts)}]
        return {"type": "message", "role": role, "content": content}
    # Split at variables: text, name, text, name, text. Neighbouring texts become one part.
    content = []
    for index, piece in enumerate(_VARIABLE.split(text)):
        part = {"type": "input_text", "text": piece} if index % 2 == 0 else parts[piece]
        if part["type"] == "input_text" and content and content[-1]["type"] == "input_text":
            content[-1] = {"type": "input_text", "text": content[-1]["text"] + part["text"]}
        elif part.get("text") != "":
            content.append(part)
    return {"type": "message", "role": role, "content": content}


def _invalid(message: str, *, code: str | None = None) -> InvalidRequest:
    return InvalidRequest(message, code=code, param="prompt.variables")
