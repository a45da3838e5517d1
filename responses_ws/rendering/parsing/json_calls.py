"""Calls whose arguments are written as JSON."""

import re
from collections.abc import Callable, Collection

import msgspec

from .bodies import WHITESPACE, CallBody, NotACall
from .said import Said


class JsonValue:
    """Finds the end of a JSON value that comes in pieces. It matches brackets and quotes, and does not validate."""

    __slots__ = ("is_within_string", "_is_escaped", "_depth", "_is_word")

    _IN_STRING = re.compile(r'["\\]')
    _OUTSIDE = re.compile(r'["{}\[\]]')
    _BEHIND_WORD = re.compile(r"[,\]}\s]")

    def __init__(self, first: str) -> None:
        self.is_within_string = False
        self._is_escaped = False
        self._depth = 0
        self._is_word = first not in '"{['
        """A number, or true, false, null: it ends before what cannot be part of it."""

    def feed(self, text: str, start: int) -> int:
        """Where in ``text``, from ``start`` on, it ends; -1: not in this piece."""
        if self._is_word:
            found = self._BEHIND_WORD.search(text, start)
            return found.start() if found else -1
        while start < len(text):
            if self._is_escaped:
                self._is_escaped = False
                start += 1
                continue
            found = (self._IN_STRING if self.is_within_string else self._OUTSIDE).search(text, start)
            if found is None:
                return -1
            start, character = found.end(), found[0]
            if character == "\\":
                self._is_escaped = True
                continue
            if character == '"':
                self.is_within_string = not self.is_within_string
            else:
                self._depth += 1 if character in "{[" else -1
            if self._depth <= 0 and not self.is_within_string:
                return start
        return -1


class JsonBody(CallBody):
    """``{"name": …, "arguments": …}``, in any order and spacing. Arguments are handed on as they are written."""

    def __init__(self, said: Said, raw: str, declared: Collection[str] | None, argument_keys: tuple[str, ...]) -> None:
        super().__init__(said, raw, declared)
        self._argument_keys = argument_keys
        self._phase: Callable[[str, int], int] = self._before_object
        """Reads ``text`` from a position on; gives the position behind what it has read."""
        self._is_over = False
        self._key = ""
        self._value = JsonValue('"')
        """Of the key or value that is being read."""
        self._kept: list[str] = []
        """Its pieces so far, unless they are said at once."""
        self._arguments: str | None = None
        """Read before the name."""
        self._has_arguments = False

    @property
    def is_within_value(self) -> bool:
        return self._value.is_within_string

    def _read(self, text: str) -> str | None:
        at = 0
        while at < len(text):
            at = self._phase(text, at)
            if self._is_over:
                return text[at:]
        return None

    def close(self) -> None:
        # Small models forget the last brace.
        self.is_malformed |= self._phase != self._between_pairs
        self.cut_off()
        self._said.end()

    def cut_off(self) -> None:
        if self._phase == self._in_value and self._key in self._argument_keys and not self._has_arguments:
            self._said.arguments("".join(self._kept))
            self._has_arguments = True

    def _before_object(self, text: str, at: int) -> int:
        if text[at] == "{":
            self._phase = self._between_pairs
        elif text[at] not in WHITESPACE:
            raise NotACall
        return at + 1

    def _between_pairs(self, text: str, at: int) -> int:
        character = text[at]
        if character == '"':
            self._value, self._phase = JsonValue(character), self._in_key
            return at
        if character == "}":
            if not self.has_started:
                raise NotACall
            self._said.end()
            self._is_over = True
        elif character not in WHITESPACE and character != ",":
            if not self.has_started:
                raise NotACall
            self.is_malformed = True
        return at + 1

    def _in_key(self, text: str, at: int) -> int:
        end = self._keep(text, at)
        if end < 0:
            return len(text)
        self._key, self._phase = self._kept_string(), self._before_value
        is_known = self._key in ("name", "type", "id", *self._argument_keys)
        if self._declared is not None and not self.has_started and not is_known:
            # An answer in JSON, of which nothing should wait for its end.
            raise NotACall
        return end

    def _before_value(self, text: str, at: int) -> int:
        character = text[at]
        if character == ":" or character in WHITESPACE:
            return at + 1
        self._value = JsonValue(character)
        is_arguments = self._key in self._argument_keys and not self._has_arguments
        if is_arguments and self.has_started and character == "{":
            self._has_arguments = True
            self._phase = self._in_arguments
        else:
            self._phase = self._in_value
        return at

    def _in_arguments(self, text: str, at: int) -> int:
        end = self._value.feed(text, at)
        if end < 0:
            end = len(text)
        else:
            self._phase = self._between_pairs
        self._said.arguments(text[at:end])
        return end

    def _in_value(self, text: str, at: int) -> int:
        end = self._keep(text, at)
        if end < 0:
            return len(text)
        self._phase = self._between_pairs
        if self._key == "name" and not self.has_started:
            self._start(self._kept_string())
            if self._arguments is not None:
                self._said.arguments(self._arguments)
        elif self._key in self._argument_keys and not self._has_arguments:
            self._has_arguments = True
            # Some models write them as chat completions have them: JSON in a string.
            arguments = self._kept_string() if self._kept[0].startswith('"') else "".join(self._kept)
            if arguments == "null":
                arguments = ""
            if self.has_started:
                self._said.arguments(arguments)
            else:
                self._arguments = arguments
        self._kept = []
        return end

    def _keep(self, text: str, at: int) -> int:
        end = self._value.feed(text, at)
        self._kept.append(text[at:] if end < 0 else text[at:end])
        return end

    def _kept_string(self) -> str:
        literal, self._kept = "".join(self._kept), []
        try:
            return msgspec.json.decode(literal, type=str)
        except (msgspec.MsgspecError, UnicodeError):
            if not self.has_started:
                raise NotACall from None
            return literal


class NamedBody(CallBody):
    """``NAME[ARGS]{…}``, with ``[CALL_ID]…`` in between or ``[ARGS]`` left out. Ends with its arguments.

    Source: the instruct tokenizers of mistral-common, version 11 and later.
    """

    _HEAD = re.compile(r"([^\[\]{}\s]+)\s*(?:\[CALL_ID\]([^\[{}\s]*)\s*)?(?:\[ARGS\])?\s*")
    _MOST_HEAD = 400  # characters: names have 64, and ours with a namespace twice that

    def __init__(self, said: Said, raw: str, declared: Collection[str] | None) -> None:
        super().__init__(said, raw, declared)
        self._head = ""
        self._value = JsonValue("{")

    @property
    def is_within_value(self) -> bool:
        return self._value.is_within_string

    def _read(self, text: str) -> str | None:
        if not self.has_started:
            self._head += text
            head, brace, rest = self._head.partition("{")
            if not brace:
                if len(head) > self._MOST_HEAD:
                    raise NotACall
                return None
            found = self._HEAD.fullmatch(head)
            if found is None:
                raise NotACall
            self._start(found[1], found[2] or None)
            text = brace + rest
        end = self._value.feed(text, 0)
        if end < 0:
            self._said.arguments(text)
            return None
        self._said.arguments(text[:end])
        self._said.end()
        return text[end:]

    def close(self) -> None:
        self.is_malformed = True
        self._said.end()
