"""Token ids of rendered prompts beside the items of a stored chain, a segment for each turn: what it has added."""

import sys
from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import get_args

import msgspec

from responses_ws.conf import app_settings
from responses_ws.connection.log import SharedLog
from responses_ws.rendering.chat import ChatPrompt
from responses_ws.rendering.tokens import Span, SpanKind, TokenLog

_KINDS: tuple[SpanKind, ...] = get_args(SpanKind)
_DIGEST_BYTES = 8


class _SavedSpan(msgspec.Struct, array_like=True, gc=False):
    end: int
    kind: int
    messages: int
    has_reasoning: bool
    digest: bytes
    """Of the messages that it holds: ids are told by the messages that they stand for."""


class Segment(msgspec.Struct, array_like=True):
    """What a turn has made of the log before it."""

    base: int
    """Position of the item whose segment this one follows; 0: none, it holds the log whole."""
    kept: int
    """How many of its spans are kept."""
    fingerprint: bytes
    spans: list[_SavedSpan]
    ids: bytes
    """Of these spans, four bytes each, the low one first."""


class SavedIds:
    """The segments of a context, in order, as they were read: (position of the item, segment)."""

    def __init__(self, segments: Iterable[tuple[int, bytes]]) -> None:
        self._segments = list(segments)

    @property
    def end(self) -> int:
        """Position of the last item that has one."""
        return self._segments[-1][0] if self._segments else 0

    def log(self, messages: SharedLog[bytes]) -> TokenLog | None:
        """The log that they make, as far as it stands for these messages; None where it does not. Costs its length."""
        try:
            return self._log(messages)
        except (msgspec.DecodeError, ValueError, IndexError):
            return None

    def _log(self, messages: SharedLog[bytes]) -> TokenLog | None:
        spans: list[_SavedSpan] = []
        ids, fingerprint, position = array("I"), b"", 0
        for at, raw in self._segments:
            segment = msgspec.msgpack.decode(raw, type=Segment)
            follows = segment.base == position and segment.fingerprint == fingerprint and segment.kept <= len(spans)
            if segment.kept and not follows:
                # One in between was lost, or never written. A later one may be whole.
                spans, ids = [], array("I")
                continue
            del spans[segment.kept :]
            del ids[spans[-1].end if spans else 0 :]
            spans += segment.spans
            ids += _unpacked(segment.ids)
            fingerprint, position = segment.fingerprint, at
        count = next(
            (number for number, digest in enumerate(_digests(spans, messages)) if digest != spans[number].digest),
            len(spans),
        )
        if not count or len(ids) != spans[-1].end:
            return None
        log, start = TokenLog(fingerprint), 0
        for span in spans[:count]:
            new, start = ids[start : span.end], span.end
            log = log.extended(new, _KINDS[span.kind], messages=span.messages, has_reasoning=span.has_reasoning)
        return log


def worth_saving(prompt: ChatPrompt) -> TokenLog | None:
    """The prompt's log, if it pays to have it where the prompt is needed next."""
    log, least = prompt.tokens, app_settings.limits.redis_ids_from
    # Without a fingerprint nobody could tell whether it fits.
    is_usable = log is not None and log.fingerprint != b"" and prompt.is_whole
    return log if log is not None and is_usable and least and len(log) >= least else None


def segment_of(log: TokenLog, messages: SharedLog[bytes], *, base: int, before: TokenLog | None) -> bytes:
    """What is new in a log of these messages behind ``before``, which was saved with the item at ``base``."""
    kept = 0 if before is None or before.fingerprint != log.fingerprint else log.shared_spans(before)
    new = log.spans.since(kept)
    start = log.spans[kept - 1] if kept else None
    digests = _digests(new, messages, held=start.messages if start else 0)
    spans = [
        _SavedSpan(span.end, _KINDS.index(span.kind), span.messages, span.has_reasoning, digest)
        for span, digest in zip(new, digests, strict=True)
    ]
    ids = _packed(log.since(start.end if start else 0))
    return msgspec.msgpack.encode(Segment(base if kept else 0, kept, log.fingerprint, spans, ids))


def _digests(spans: Sequence[Span | _SavedSpan], messages: SharedLog[bytes], *, held: int = 0) -> Iterable[bytes]:
    """For each span a digest of the messages that it adds to those that are ``held`` before it."""
    for span in spans:
        if span.messages > len(messages):
            # Of others there is none.
            yield b""
            return
        digest = blake2b(digest_size=_DIGEST_BYTES)
        for index in range(held, span.messages):
            digest.update(messages[index] + b"\n")
        yield digest.digest()
        held = span.messages


def _packed(ids: "array[int]") -> bytes:
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tobytes()


def _unpacked(raw: bytes) -> "array[int]":
    ids = array("I")
    ids.frombytes(raw)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids
