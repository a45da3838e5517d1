"""Ids → text, as they come."""

from typing import TYPE_CHECKING

from tokenizers.decoders import DecodeStream

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_MOST_PENDING = 8  # ids: a character has at most four bytes, and a token at least one


class Detokeniser:
    """Text of one answer's ids, control tokens too. Only a character that is not whole yet is held back."""

    __slots__ = ("tokenizer", "_stream", "pending")

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self.tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=False)
        self.pending: list[int] = []
        """Ids that have not been told: of a character that is not whole."""

    def feed(self, token_id: int) -> str:
        """What has become readable."""
        pending = self.pending
        pending.append(token_id)
        try:
            text = self._stream.step(self.tokenizer, token_id)
        except Exception:
            # The stream refuses ids whose text changes with what follows, as in tokenizers that are not byte-level, by
            # an exception without a class of its own. The answer must go on.
            return self._restart(len(pending))
        if text:
            pending.clear()
            return str(text)
        if len(pending) >= _MOST_PENDING:
            # Bytes that are no text, or U+FFFD itself, which the stream takes for half a character: it would wait for
            # ever, and decode them all at every step.
            return self._restart(self._last_boundary())
        return ""

    def rest(self) -> str:
        """What is left, now that no more comes."""
        text = self._decode(self.pending)
        self.pending = []
        return text

    def _last_boundary(self) -> int:
        """The last place between pending ids, before the last, that is not within a character."""
        pending, decode = self.pending, self._decode
        text = decode(pending)
        places = range(len(pending) - 1, 0, -1)
        return next((place for place in places if decode(pending[:place]) + decode(pending[place:]) == text), 1)

    def _restart(self, told: int) -> str:
        """Tell the first so many pending ids as they are, and begin a new stream with the others."""
        said, left = self._decode(self.pending[:told]), self.pending[told:]
        self._stream = DecodeStream(skip_special_tokens=False)
        self.pending = []
        return said + "".join(map(self.feed, left))

    def _decode(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=False)) if ids else ""
