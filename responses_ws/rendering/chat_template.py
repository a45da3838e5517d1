"""Chat templates as models bring them along: Jinja, in a sandbox."""

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .tokenizer import marks_of

MOST_TURNS_OF_LOOPS = 1_000_000
"""Over all ranges that a template counts through in one rendering."""
MOST_WRITTEN = 1_000_000
"""Characters or entries that one repetition or padding may make."""


class TemplateFault(Exception):
    """The template refuses these messages, or cannot cope with them.

    ``said``: its own words, where it has refused in words.
    """

    def __init__(self, message: str, *, said: str | None = None) -> None:
        super().__init__(message)
        self.said = said


class ChatTemplate:
    """One template, compiled.

    Source: the environment of ``apply_chat_template`` in Hugging Face's transformers: ``trim_blocks`` and
    ``lstrip_blocks``, loop controls, ``tojson``, ``raise_exception``, ``strftime_now``, ``{% generation %}``.

    A template is the operator's, not the client's. It cannot reach Python through what it is given, change that, or
    write more than ``most_characters``; ranges, repetitions and paddings are bounded, so that the usual endless loops
    end. Loops within loops over messages are not bounded, nor is a text that is joined to itself again and again.

    Args:
        source: raises ValueError where it is no template.
        nonce: of the marks that stand for hidden texts (`Hidden`).
        now: what ``strftime_now`` tells.
        environment: of its own, where it is to be watched.
    """

    def __init__(
        self, source: str, *, nonce: str, now: Callable[[], datetime], environment: "Sandbox | None" = None
    ) -> None:
        environment = environment or Sandbox()
        marks = marks_of(nonce)

        def tojson(
            value: Any,
            ensure_ascii: bool = False,
            indent: int | None = None,
            separators: tuple[str, str] | None = None,
            sort_keys: bool = False,
        ) -> str:
            text = json.dumps(
                value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
            )
            # The texts behind the marks are now inside JSON strings.
            return marks.sub(lambda match: f"{nonce}{'a' if ensure_ascii else 'j'}{match[2]}z", text)

        environment.filters["tojson"] = tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as exc:
            raise ValueError(f"not a chat template: {exc}") from exc

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        opens_answer: bool,
        most_characters: int,
        values: Mapping[str, Any],
    ) -> str:
        """The text of these messages, and where the model is to go on, the opening of its answer.

        Raises:
            TemplateFault: there is none.
        """
        pieces, length = [], 0
        try:
            for piece in self._written(
                {
                    **values,
                    "messages": messages,
                    "tools": tools or None,
                    "documents": None,
                    "add_generation_prompt": opens_answer,
                    "range": _Ranges().range,
                }
            ):
                length += len(piece)
                if length > most_characters:
                    raise TemplateFault(f"it writes more than {most_characters} characters")
                pieces.append(piece)
        except TemplateFault:
            raise
        except _Refusal as exc:
            raise TemplateFault(f"it refuses: {exc}", said=str(exc)) from exc
        except Exception as exc:
            # Whatever it does with messages that it was not made for: add None to a string, index what is empty.
            raise TemplateFault(f"it fails: {type(exc).__name__}: {exc}") from exc
        return "".join(pieces)

    def _written(self, values: dict[str, Any]) -> Iterator[str]:
        return self._template.generate(values)


def values_for(effort: str | None) -> dict[str, Any]:
    """A request's ``reasoning.effort`` by the names under which templates look for it."""
    if effort is None:
        return {}
    return {"reasoning_effort": effort, "enable_thinking": effort != "none", "thinking": effort != "none"}


class _Refusal(jinja2.TemplateError):
    """``raise_exception`` of a template."""


def _raise(message: object = "") -> None:
    raise _Refusal(str(message))


class Sandbox(ImmutableSandboxedEnvironment):
    """What chat templates run in."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], keep_trailing_newline=False
        )
        del self.globals["lipsum"]
        for name, has_form in (("center", False), ("indent", False), ("format", True)):
            self.filters[name] = _bounded(self.filters[name], has_form=has_form)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            raise jinja2.TemplateRuntimeError("powers are not for chat templates")
        if operator == "%" and isinstance(left, str):
            _check_form(left, right if isinstance(right, tuple) else (right,))
        if operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(one, str | list | tuple) and isinstance(other, int) and len(one) * other > MOST_WRITTEN:
                    raise jinja2.TemplateRuntimeError("a repetition is too long")
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __called: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(getattr(__called, "__self__", None), str):
            _check_form("", (*args, *kwargs.values()))
        return super().call(__context, __called, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        write = super().wrap_str_format(value)
        if write is None:
            return None

        def bounded(*args: Any, **kwargs: Any) -> str:
            _check_form(value.__self__, (*args, *kwargs.values()))
            return write(*args, **kwargs)

        return bounded


_TOO_WIDE = re.compile(r"[0-9]{7}")


def _check_form(form: str, values: Iterable[Any]) -> None:
    """Raises where these values might be written over millions of characters."""
    if _TOO_WIDE.search(form) or any(isinstance(value, int) and value > MOST_WRITTEN for value in values):
        raise jinja2.TemplateRuntimeError("a text is padded too far")


def _bounded(write: Callable[..., Any], *, has_form: bool) -> Callable[..., Any]:
    """A filter that pads texts."""

    @functools.wraps(write)
    def bounded(text: Any, *args: Any, **kwargs: Any) -> Any:
        _check_form(str(text) if has_form else "", (*args, *kwargs.values()))
        return write(text, *args, **kwargs)

    return bounded


class _Ranges:
    """``range`` for one rendering."""

    def __init__(self) -> None:
        self._left = MOST_TURNS_OF_LOOPS

    def range(self, *bounds: int) -> range:
        made = range(*bounds)
        self._left -= len(made) + 1
        if self._left < 0:
            raise jinja2.TemplateRuntimeError("its loops are too long")
        return made


class _Generation(Extension):
    """``{% generation %}…{% endgeneration %}`` marks what a model has said, for training. It is its inside."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))
