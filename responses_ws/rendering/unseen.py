"""Texts that a template may write but not look at: what it makes of them, it makes of any others."""

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NoReturn

import msgspec
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame

from .chat_template import ChatTemplate, Sandbox
from .tokenizer import marks_of

_STRIPS = ("strip", "lstrip", "rstrip")
_HARMLESS_FILTERS = frozenset({"trim", "string", "default", "d", "tojson"})
_HARMLESS_TESTS = frozenset({"defined", "undefined", "none", "string", "mapping", "number", "boolean", "true", "false"})


class Looked(BaseException):
    """A template looks at a text that it was only to write. No ``Exception``: templates swallow these."""


class Slot(msgspec.Struct, frozen=True):
    """A text in a template's output: the ``number``-th, None: one that must not be there; and what is done to it."""

    number: int | None
    steps: tuple[tuple[str, Any], ...] = ()
    """(name of a method that strips, what) or ("json", whether it is ASCII): the inside of a string."""

    def of(self, text: str) -> str:
        for name, given in self.steps:
            text = json.dumps(text, ensure_ascii=given)[1:-1] if name == "json" else getattr(text, name)(given)
        return text


def _look(*_args: Any) -> NoReturn:
    raise Looked


class Unseen(str):
    """Stands for any text that is not blank. It may be written, joined to others, stripped, and asked whether it is
    there; all else is to look at it. Made by `Book`."""

    book: "Book"
    slot: Slot | None
    """None: it is part of a longer one."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return Unseen
        if name in _STRIPS:
            return functools.partial(_stripped, self, name)
        raise Looked

    def __str__(self) -> str:
        return self

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        if other is self or not isinstance(other, str):
            return other is self
        # Only of the empty one is known that it is another.
        return _look() if type(other) is Unseen or other else False

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __add__(self, other: str) -> str:
        return _book(self).joined((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> str:
        return _book(self).joined((other, self)) if isinstance(other, str) else NotImplemented

    __hash__ = _look
    __len__ = __iter__ = __getitem__ = __contains__ = __format__ = __repr__ = _look
    __lt__ = __le__ = __gt__ = __ge__ = __mod__ = __rmod__ = __mul__ = __rmul__ = _look


def _book(text: Unseen) -> "Book":
    book: Book = object.__getattribute__(text, "book")
    return book


def _stripped(text: Unseen, name: str, given: str | None = None) -> str:
    slot = object.__getattribute__(text, "slot")
    # Of other characters nothing might be left.
    if slot is None or type(given) is Unseen or not (given is None or given.isspace()):
        raise Looked
    return _book(text).unseen(slot.number, (*slot.steps, (name, given)))


class Book:
    """The unseen texts of one rendering; `clear` it for the next."""

    def __init__(self, nonce: str) -> None:
        self._nonce = nonce
        self._marks = marks_of(nonce)
        self._slots: list[Slot] = []

    def clear(self) -> None:
        self._slots = []

    def unseen(self, number: int | None, steps: tuple[tuple[str, Any], ...] = ()) -> Unseen:
        slot = Slot(number, steps)
        self._slots.append(slot)
        return self._made(f"{self._nonce}t{len(self._slots) - 1}z", slot)

    def joined(self, pieces: Iterable[str]) -> str:
        """``"".join``, unseen where one of them is."""
        return self.seen_as("".join(pieces))

    def seen_as(self, text: str) -> str:
        """A text in which unseen ones stand is unseen."""
        return self._made(text, None) if self._marks.search(text) else text

    def in_json(self, text: str, *, is_ascii: bool) -> str:
        """JSON with unseen texts in its strings."""

        def put(match: re.Match[str]) -> str:
            slot = self._slots[int(match[2])]
            return str.__str__(self.unseen(slot.number, (*slot.steps, ("json", is_ascii))))

        return self.seen_as(self._marks.sub(put, text))

    def read(self, text: str) -> tuple[list[str], list[Slot]]:
        """What is written between unseen texts, and these."""
        pieces = self._marks.split(text)
        return pieces[::3], [self._slots[int(number)] for number in pieces[2::3]]

    def _made(self, text: str, slot: Slot | None) -> Unseen:
        made = Unseen(text)
        object.__setattr__(made, "book", self)
        object.__setattr__(made, "slot", slot)
        return made


class WatchedTemplate(ChatTemplate):
    """A template that is told unseen texts. `render` raises `Looked` where it looks at one.

    Slower than the plain one, and for one thread at a time.
    """

    def __init__(self, source: str, *, nonce: str) -> None:
        self.book = Book(nonce)
        watched = _Watched(self)

        def clock() -> datetime:
            raise AssertionError("its words are unseen")

        super().__init__(source, nonce=nonce, now=clock, environment=watched)
        watched.globals["strftime_now"] = lambda _form: self.book.unseen(None)
        watched.filters["tojson"] = self._tojson

    def _written(self, values: dict[str, Any]) -> Iterator[str]:
        return map(str.__str__, super()._written(values))

    def _tojson(self, value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
        text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)
        return self.book.in_json(text, is_ascii=ensure_ascii)


class _Code(CodeGenerator):
    """Where compiled templates would hand texts to C, which asks no questions, they ask."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat(map(str, (")
        for one in node.nodes:
            self.visit(one, frame)
            self.write(", ")
        self.write(")))")

    def visit_Operand(self, node: nodes.Operand, frame: Frame) -> None:
        if node.op not in ("in", "notin"):
            super().visit_Operand(node, frame)
            return
        self.write(" in " if node.op == "in" else " not in ")
        self.write("environment.searched(")
        self.visit(node.expr, frame)
        self.write(")")


class _Searched:
    def __init__(self, text: str) -> None:
        self._text = text

    def __contains__(self, other: Any) -> bool:
        _refuse((other,))
        return other in self._text


class _Watched(Sandbox):
    code_generator_class = _Code

    def __init__(self, template: WatchedTemplate) -> None:
        super().__init__()
        self._told = template
        self.concat = template.book.joined  # type: ignore[method-assign]
        self.filters: dict[str, Any] = {
            name: ask if name in _HARMLESS_FILTERS else self._watched(ask) for name, ask in self.filters.items()
        }
        self.filters["random"] = _look
        self.tests: dict[str, Any] = {
            name: ask if name in _HARMLESS_TESTS else self._watched(ask) for name, ask in self.tests.items()
        }
        for name in ("iterable", "sequence"):
            self.tests[name] = functools.partial(_unless_unseen, self.tests[name])

    @staticmethod
    def searched(among: Any) -> Any:
        return _Searched(among) if type(among) is str else among

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        _refuse((left, *(right if isinstance(right, tuple) else (right,))))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __called: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(getattr(__called, "__self__", None), str):
            for value in (*args, *kwargs.values()):
                _refuse(value if isinstance(value, list | tuple) else (value,))
        return super().call(__context, __called, *args, **kwargs)

    def _watched(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(ask)
        def watched(*args: Any, **kwargs: Any) -> Any:
            _refuse((*args, *kwargs.values()))
            made = ask(*args, **kwargs)
            return self._told.book.seen_as(made) if type(made) is str else made

        return watched


def _refuse(values: Sequence[Any]) -> None:
    if any(type(value) is Unseen for value in values):
        raise Looked


def _unless_unseen(ask: Callable[[Any], bool], value: Any) -> bool:
    return type(value) is Unseen or ask(value)
