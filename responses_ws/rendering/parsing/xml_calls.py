"""Calls whose arguments are written as XML of a sort, each between tags of its own."""

import re
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from .bodies import WHITESPACE, CallBody, NotACall
from .markers import FUNCTION, partial_at_end
from .said import Said

_PARAMETER, _PARAMETER_END, _FUNCTION_END = "<parameter=", "</parameter>", "</function>"
_BEHIND_VALUE = (_PARAMETER_END, _PARAMETER, _FUNCTION_END)
_END = re.compile("|".join(_BEHIND_VALUE))
_PERHAPS_END = re.compile(rf"\n?{partial_at_end(_BEHIND_VALUE)}|\n\Z")
_MOST_NAME = 400  # characters

_STRING = frozenset({"string"})
_TYPES: dict[type, str] = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    dict: "object",
    list: "array",
}
_WORDS = {"null": ("null", "none"), "boolean": ("true", "false")}


class XmlBody(CallBody):
    """``<function=NAME>``, ``<parameter=KEY>`` value ``</parameter>`` …, ``</function>``; said as a JSON object.

    Values have no type of their own: the tool's schema decides. Text is handed on as it is written; a value that may
    be something else is read whole first. One line feed behind its opening tag and one before its closing tag belong to
    the tags. A closing tag left out is made up for by what follows, as the models' own parser does.

    Source: the chat template and tool parser that Qwen3-Coder is published with.
    """

    def __init__(
        self, said: Said, raw: str, declared: Collection[str] | None, schemas: Mapping[str, Mapping[str, Any]]
    ) -> None:
        super().__init__(said, raw, declared)
        self._schemas = schemas
        self._schema: Mapping[str, Any] = {}
        self._unread = ""
        self._types: frozenset[str] | None = None
        """Of the value that is being read; None: between values."""
        self._is_first_piece = False
        self._kept: list[str] = []
        """Of a value that may be something else than text."""
        self._parameters = 0

    @property
    def is_within_value(self) -> bool:
        return self._types is not None

    def _read(self, text: str) -> str | None:
        self._unread += text
        while True:
            if not self.has_started:
                go_on = self._read_name()
            elif self._types is not None:
                go_on = self._read_value()
            elif self._unread.startswith(_FUNCTION_END):
                self._end()
                return self._unread[len(_FUNCTION_END) :]
            else:
                go_on = self._read_between()
            if not go_on:
                return None

    def close(self) -> None:
        if self._types is not None:
            self.is_malformed = True
            self._say_value(self._unread)
            self._end_value()
        self._end()

    def cut_off(self) -> None:
        # Of text only what may be the beginning of a tag was kept back.
        self._said.arguments("".join(self._kept))

    def _end(self) -> None:
        self._said.arguments("}" if self._parameters else "{}")
        self._said.end()

    def _read_name(self) -> bool:
        head = self._unread.lstrip(WHITESPACE)
        if not head.startswith(FUNCTION):
            if not FUNCTION.startswith(head):
                raise NotACall
            return False
        name, bracket, self._unread = head.removeprefix(FUNCTION).partition(">")
        if not bracket:
            if len(name) > _MOST_NAME:
                raise NotACall
            self._unread = head
            return False
        self._start(name.strip())
        self._schema = self._schemas.get(name.strip(), {})
        return True

    def _read_between(self) -> bool:
        """Up to the next value; False: more has to come first."""
        self._unread = self._unread.lstrip(WHITESPACE)
        if not self._unread:
            return False
        if self._unread.startswith(_PARAMETER):
            key, bracket, rest = self._unread.removeprefix(_PARAMETER).partition(">")
            if bracket:
                self._unread = rest
                self._begin_value(key.strip())
                return True
            if len(key) <= _MOST_NAME:
                return False
            self.is_malformed = True
            self._unread = rest
            return False
        if any(tag.startswith(self._unread) for tag in (_PARAMETER, _FUNCTION_END)):
            # Whole, or the beginning of one.
            return self._unread == _FUNCTION_END
        if not self._unread.startswith(_FUNCTION_END):
            self.is_malformed = True
            self._unread = self._unread[1:]
        return True

    def _begin_value(self, key: str) -> None:
        self._said.arguments(f"{', ' if self._parameters else '{'}{_quoted(key)}: ")
        self._parameters += 1
        properties = self._schema.get("properties")
        schema = properties.get(key) if isinstance(properties, dict) else None
        self._types = _types(schema, self._schema) or _STRING
        self._is_first_piece = True
        if self._types == _STRING:
            self._said.arguments('"')

    def _read_value(self) -> bool:
        if self._is_first_piece:
            if not self._unread:
                return False
            self._is_first_piece = False
            self._unread = self._unread.removeprefix("\n")
        end = _END.search(self._unread)
        if end is not None:
            self._say_value(self._unread[: end.start()].removesuffix("\n"))
            self._end_value()
            self._unread = self._unread[end.start() :].removeprefix(_PARAMETER_END)
            return True
        perhaps = _PERHAPS_END.search(self._unread)
        certain = perhaps.start() if perhaps else len(self._unread)
        self._say_value(self._unread[:certain])
        self._unread = self._unread[certain:]
        return False

    def _say_value(self, text: str) -> None:
        if self._types == _STRING:
            self._said.arguments(_quoted(text)[1:-1])
        else:
            self._kept.append(text)

    def _end_value(self) -> None:
        assert self._types is not None, "a value ends after it has begun"
        self._said.arguments('"' if self._types == _STRING else _json_of("".join(self._kept), self._types))
        self._types = None
        self._kept = []


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()


def _json_of(text: str, types: frozenset[str]) -> str:
    """``text`` as JSON of one of these types where it is that, in its own characters; else as a string."""
    bare = text.strip()
    for kind, words in _WORDS.items():
        if kind in types and bare.lower() in words:
            return "null" if kind == "null" else bare.lower()
    try:
        value = msgspec.json.decode(bare)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return _quoted(text)
    fits = _TYPES[type(value)] in types or (type(value) is int and "number" in types)
    return bare if fits and not isinstance(value, str) else _quoted(text)


def _types(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """The JSON types that a schema allows, as far as it says so. It is the client's, and may be any JSON."""
    types: set[str] = set()
    unread, read = [schema], set()
    while unread:
        one = unread.pop()
        # References may go in circles.
        if not isinstance(one, dict) or id(one) in read:
            continue
        read.add(id(one))
        named = [one.get("type"), *_list_in(one, "type")]
        types.update(kind for kind in named if isinstance(kind, str))
        values = [*_list_in(one, "enum"), *([one["const"]] if "const" in one else ())]
        types.update(_TYPES[type(value)] for value in values)
        for key in ("anyOf", "oneOf", "allOf"):
            unread += _list_in(one, key)
        reference = one.get("$ref")
        if isinstance(reference, str) and reference.startswith("#/"):
            target: Any = root
            for step in reference[2:].split("/"):
                target = target.get(step) if isinstance(target, Mapping) else None
            unread.append(target)
    return frozenset(types)


def _list_in(schema: Mapping[str, Any], key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []
