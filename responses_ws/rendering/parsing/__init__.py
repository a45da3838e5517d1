"""Output parsing: sampled ids → deltas."""

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from responses_ws.rendering.base import OutputParser

from .families import FAMILIES, CallForm, Family
from .parser import FamilyParser

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["FAMILIES", "CallForm", "Family", "build_parser", "schemas_of"]


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


@lru_cache(maxsize=64)
def schemas_of(tools: bytes | None) -> Mapping[str, Mapping[str, Any]]:
    """JSON schemas of parameters by name, of an encoded array of chat-completions tools. Decoded once along a chain."""
    functions = [tool["function"] for tool in msgspec.json.decode(tools or b"[]")]
    return {function["name"]: function.get("parameters") or {} for function in functions}
