"""Output parsing: sampled ids → deltas."""

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from responses_ws.rendering.base import OutputParser
from responses_ws.rendering.tokens import TokenLog

from .families import FAMILIES, CallForm, Family
from .parser import FamilyParser

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["FAMILIES", "CallForm", "Family", "Parsers", "build_parser", "schemas_of"]

_MOST_REMEMBERED = 64


def build_parser(
    family: str,
    *,
    tokenizer: "Tokenizer",
    tail: Sequence[int] = (),
    opening: Sequence[int] = (),
    tools: Mapping[str, Mapping[str, Any]] | None = None,
    stop_ids: Collection[int] = (),
) -> OutputParser:
    """A parser for one answer of a model of this family.

    Args:
        tail: the ids between the last message and the answer, which open the assistant's turn: they decide in which
            state it begins. Nothing that a user has written belongs there.
        opening: what is said in the model's stead (`rendering.base.Opening`). Of a call that begins there the first
            deltas tell; text in it is not told.
        tools: what was offered, see `schemas_of`. Without any, markers of calls are text like any other.
        stop_ids: ids that are never text.

    Raises:
        KeyError: there is no such family.
    """
    return FamilyParser(FAMILIES[family], tokenizer, tail=tail, opening=opening, tools=tools, stop_ids=stop_ids)


class Parsers:
    """Those of one model. Answers that begin alike have a parser that has read their beginning once."""

    def __init__(self, family: str, tokenizer: "Tokenizer", stop_ids: Collection[int]) -> None:
        self._family = FAMILIES[family]
        self._tokenizer = tokenizer
        self._stop_ids = frozenset(stop_ids)
        self._begun: dict[tuple[bytes, bytes | None], FamilyParser] = {}

    def parser(self, log: TokenLog, tools: bytes | None) -> OutputParser:
        """For the answer to a log, with these ``tools``, an encoded array of chat-completions tools."""
        tail, opening = log.openings()
        key = (tail.tobytes(), tools)
        begun = None if opening else self._begun.get(key)
        if begun is None:
            begun = FamilyParser(
                self._family,
                self._tokenizer,
                tail=tail,
                opening=opening,
                tools=schemas_of(tools),
                stop_ids=self._stop_ids,
            )
            if opening or not begun.can_be_copied:
                return begun
            if len(self._begun) >= _MOST_REMEMBERED:
                self._begun.clear()
            self._begun[key] = begun
        return begun.copied()


@lru_cache(maxsize=64)
def schemas_of(tools: bytes | None) -> Mapping[str, Mapping[str, Any]]:
    """JSON schemas of parameters by name, of an encoded array of chat-completions tools. Decoded once along a chain."""
    functions = [tool["function"] for tool in msgspec.json.decode(tools or b"[]")]
    return {function["name"]: function.get("parameters") or {} for function in functions}
