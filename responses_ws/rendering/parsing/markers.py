"""The markers of a family, as one tokenizer writes them."""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from tokenizers import decoders

from .families import Family

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Kind = Literal["think", "think_end", "call", "call_end", "function"]
FUNCTION = "<function="
"""Begins the call itself where calls are written as XML; models leave out the opener before it."""
_MOST_WORDS = 16_384  # some 200 bytes each; the ids that are met first are the common ones


class Markers:
    """Control tokens by id; markers for which the tokenizer has none, and only those, by their text."""

    __slots__ = ("by_id", "by_text", "stop_ids", "whole", "partial", "words", "is_bytewise")

    def __init__(
        self, family: Family, tokenizer: "Tokenizer", *, with_calls: bool, stop_ids: frozenset[int] = frozenset()
    ) -> None:
        kinds: dict[str, Kind] = {}
        if family.think is not None:
            kinds[family.think[0]], kinds[family.think[1]] = "think", "think_end"
        call = family.call if with_calls else None
        if call is not None:
            if call.closer:
                kinds[call.closer] = "call_end"
            if call.opener:
                kinds[call.opener] = "call"
            if call.body == "xml":
                kinds[FUNCTION] = "function"
        added = {token.content: token_id for token_id, token in tokenizer.get_added_tokens_decoder().items()}
        self.by_id: dict[int, tuple[Kind, str]] = {
            added[text]: (kind, text) for text, kind in kinds.items() if text in added
        }
        self.by_text = {text: kind for text, kind in kinds.items() if text not in added}
        self.stop_ids = stop_ids
        """Never text."""
        self.is_bytewise = isinstance(tokenizer.decoder, decoders.ByteLevel)
        """An id stands for the same bytes wherever it comes."""
        self.words: dict[int, str] = {}
        """Texts of ids that are whole characters, with no marker in them nor the beginning of one; as they come."""
        self.whole: re.Pattern[str] | None = None
        """Finds a marker in text; None where there is none to find."""
        self.partial: re.Pattern[str] | None = None
        """Finds the beginning of one at the end of text."""
        if self.by_text:
            self.whole = re.compile("|".join(map(re.escape, self.by_text)))
            self.partial = re.compile(partial_at_end(self.by_text))

    def learn(self, token_id: int, text: str) -> None:
        """``text`` is what an id behind a whole character was read as."""
        if not self.is_bytewise or len(self.words) >= _MOST_WORDS:
            return
        whole, partial = self.whole, self.partial
        if whole is None or partial is None or not (whole.search(text) or partial.search(text)):
            self.words[token_id] = text


def partial_at_end(texts: Iterable[str]) -> str:
    """A pattern for the longest beginning, though not the whole, of one of ``texts`` at the end of a string."""
    alternatives = []
    for text in texts:
        pattern = ""
        for character in reversed(text[:-1]):
            pattern = re.escape(character) + (f"(?:{pattern})?" if pattern else "")
        alternatives.append(pattern)
    return rf"(?:{'|'.join(alternatives)})\Z"


@lru_cache(maxsize=64)
def markers_of(family: Family, tokenizer: "Tokenizer", *, with_calls: bool, stop_ids: frozenset[int]) -> Markers:
    """The same object for the same family and tokenizer: reading a tokenizer's added tokens takes a while."""
    return Markers(family, tokenizer, with_calls=with_calls, stop_ids=stop_ids)
