"""The token log of a chain: what the model has been told and has said, as token ids, only ever appended to."""

from array import array
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from responses_ws.connection.log import SharedLog

SpanKind = Literal["rendered", "opening", "sampled"]

_encode, _decode = msgspec.json.Encoder().encode, msgspec.json.Decoder(list[int]).decode


class Span(msgspec.Struct, gc=False):
    """A run of ids that came in one go. Spans are the places to which a log can be cut back."""

    end: int
    """Position behind its last id; it starts where the span before it ends."""
    size: int
    """The same in the log's bytes."""
    kind: SpanKind
    """``rendered`` from messages; ``opening`` of the assistant's turn; ``sampled`` by the model, never re-encoded."""
    messages: int
    """How many of the prompt's messages the log holds up to here."""
    has_reasoning: bool = False
    """The model's reasoning is in it, which many templates forget later."""


class TokenLog:
    """An immutable view of the first ``len(log)`` ids of a growing log.

    Ids are kept as engines are sent them, in JSON, each with a comma behind it: a call sends them as they lie there.
    Looking at ids costs their decoding: look at the last ones only. Shared as `SharedLog` is: extending the newest view
    writes behind it, cost O(new); extending an older one, a fork or a log that was cut back, copies the past once. Not
    thread-safe: extend on the event loop only.
    """

    __slots__ = ("_written", "spans", "fingerprint")

    def __init__(self, fingerprint: bytes = b"") -> None:
        self._written = bytearray()
        self.spans: SharedLog[Span] = SharedLog()
        self.fingerprint = fingerprint
        """Digest of all that the ids depend on beside the messages: renderer, its options, tools, instructions."""

    def extended(self, ids: Sequence[int], kind: SpanKind, *, messages: int, has_reasoning: bool = False) -> "TokenLog":
        """This log with one more span of ``ids``, after which it holds the first ``messages`` messages."""
        end, size = self._ends
        written = self._written if len(self._written) == size else self._written[:size]
        if len(ids):
            new = memoryview(_encode(ids if isinstance(ids, list) else list(ids)))[1:-1]
            try:
                written += new
            except BufferError:
                # Somebody is still looking at what `json` has shown.
                written = written + new
            written += b","
            end, size = end + len(ids), len(written)
        view = TokenLog.__new__(TokenLog)
        view.fingerprint = self.fingerprint
        view._written = written
        view.spans = self.spans.extended([Span(end, size, kind, messages, has_reasoning)])
        return view

    def shared_spans(self, other: "TokenLog") -> int:
        """How many spans at its beginning are the other's, too. Costs what is behind them."""
        count = min(len(self.spans), len(other.spans))
        # What follows on a span is never the same object in two logs that have gone separate ways before it.
        while count and self.spans[count - 1] is not other.spans[count - 1]:
            count -= 1
        return count

    def begins_with(self, other: "TokenLog", more: Sequence[int] = ()) -> bool:
        """Whether its first ids are those of ``other``, and ``more`` behind them. Costs what is not shared."""
        spans = self.shared_spans(other)
        start = self.spans[spans - 1].end if spans else 0
        known = other.since(start)
        known.extend(more)
        return self.since(start)[: len(known)] == known

    def until(self, spans: int) -> "TokenLog":
        """The log as it was after its first ``spans`` spans."""
        view = TokenLog.__new__(TokenLog)
        view.fingerprint = self.fingerprint
        view._written = self._written
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
        size = self._ends[1]
        count = len(self.spans)
        while count and self.spans[count - 1].end > start:
            count -= 1
        first, at = (self.spans[count - 1].end, self.spans[count - 1].size) if count else (0, 0)
        if at == size:
            return array("I")
        return array("I", _decode(b"".join((b"[", self._written[at : size - 1], b"]")))[start - first :])

    @property
    def last_id(self) -> int | None:
        """None of an empty log."""
        size = self._ends[1]
        start = self._written.rfind(b",", 0, max(size - 1, 0)) + 1
        return int(self._written[start : size - 1]) if size else None

    @property
    def messages(self) -> int:
        """How many of the prompt's messages it holds."""
        return self.spans.last.messages if len(self.spans) else 0

    def json(self) -> memoryview:
        """The ids as the inside of a JSON array: a view, to be sent and let go of. A log that is extended while
        somebody holds one is copied."""
        return memoryview(self._written)[: max(self._ends[1] - 1, 0)]

    @property
    def _ends(self) -> tuple[int, int]:
        """How many ids there are, and bytes."""
        if not len(self.spans):
            return 0, 0
        last = self.spans.last
        return last.end, last.size
