"""The token log of a chain: what the model has been told and has said, as token ids, only ever appended to."""

from array import array
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from responses_ws.connection.log import SharedLog

SpanKind = Literal["rendered", "opening", "sampled"]


class Span(msgspec.Struct, gc=False):
    """A run of ids that came in one go. Spans are the places to which a log can be cut back."""

    end: int
    """Position behind its last id; it starts where the span before it ends."""
    kind: SpanKind
    """``rendered`` from messages; ``opening`` of the assistant's turn; ``sampled`` by the model, never re-encoded."""
    messages: int
    """How many of the prompt's messages the log holds up to here."""
    has_reasoning: bool = False
    """The model's reasoning is in it, which many templates forget later."""
    json: bytes | None = None
    """Its ids as the inside of a JSON array, once an engine was sent them so."""


class TokenLog:
    """An immutable view of the first ``len(log)`` ids of a growing array.

    Shared as `SharedLog` is: extending the newest view writes behind it, cost O(new); extending an older one, a fork or
    a log that was cut back, copies the past once. Their JSON is kept with the spans, so that a call joins bytes and
    encodes what is new. Not thread-safe: extend on the event loop only.
    """

    __slots__ = ("_ids", "spans", "fingerprint")

    def __init__(self, fingerprint: bytes = b"") -> None:
        self._ids = array("I")
        self.spans: SharedLog[Span] = SharedLog()
        self.fingerprint = fingerprint
        """Digest of all that the ids depend on beside the messages: renderer, its options, tools, instructions."""

    def extended(self, ids: Sequence[int], kind: SpanKind, *, messages: int, has_reasoning: bool = False) -> "TokenLog":
        """This log with one more span of ``ids``, after which it holds the first ``messages`` messages."""
        end = len(self)
        view = TokenLog(self.fingerprint)
        view._ids = self._ids if len(self._ids) == end else self._ids[:end]
        view._ids.extend(ids)
        span = Span(end + len(ids), kind, messages, has_reasoning)
        view.spans = self.spans.extended([span])
        return view

    @classmethod
    def of(cls, fingerprint: bytes, ids: "array[int]", spans: Sequence[Span]) -> "TokenLog":
        """The log that was told apart into these. Costs its length."""
        log = cls(fingerprint)
        log._ids = ids
        log.spans = SharedLog(spans)
        return log

    def shared_spans(self, other: "TokenLog") -> int:
        """How many spans at its beginning are the other's, too. Costs what is behind them."""
        count = min(len(self.spans), len(other.spans))
        # What follows on a span is never the same object in two logs that have gone separate ways before it.
        while count and self.spans[count - 1] is not other.spans[count - 1]:
            count -= 1
        return count

    def until(self, spans: int) -> "TokenLog":
        """The log as it was after its first ``spans`` spans."""
        view = TokenLog(self.fingerprint)
        view._ids = self._ids
        view.spans = self.spans.until(spans)
        return view

    def unopened(self) -> "TokenLog":
        """The log without the opening of an answer at its end."""
        kept = len(self.spans)
        while kept and self.spans[kept - 1].kind == "opening":
            kept -= 1
        return self.until(kept)

    def openings(self) -> tuple["array[int]", "array[int]"]:
        """Ids of that opening: what the template writes, and behind it what is said in the model's stead."""
        rest = self.unopened()
        opened = self.spans.since(len(rest.spans))
        length = opened[0].end - len(rest) if opened else 0
        ids = self.since(len(rest))
        return ids[:length], ids[length:]

    def __len__(self) -> int:
        return self.spans.last.end if len(self.spans) else 0

    def __iter__(self) -> Iterator[int]:
        return iter(self.since(0))

    def since(self, start: int) -> "array[int]":
        """Ids from position ``start`` on, as an array of their own."""
        return self._ids[start : len(self)]

    @property
    def messages(self) -> int:
        """How many of the prompt's messages it holds."""
        return self.spans.last.messages if len(self.spans) else 0

    def json(self) -> bytes:
        """The ids as the inside of a JSON array. A copy of bytes; each span is encoded once."""
        start, pieces = 0, []
        for span in self.spans:
            if span.json is None:
                # Sliced: what msgspec gives holds more memory than it shows.
                span.json = msgspec.json.encode(self._ids[start : span.end].tolist())[1:-1]
            if span.json:
                pieces.append(span.json)
            start = span.end
        return b",".join(pieces)
