"""Server-sent events, split from bytes as they come, and who makes sense of them. No IO."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Generic, TypeVar

from .base import EngineError
from .chat_errors import refusal

MAX_EVENT_BYTES = 1024 * 1024  # no chunk of a chat stream comes near; a server that sends one is not sending chunks

_BOM = b"\xef\xbb\xbf"

D = TypeVar("D")


class EventSplitter:
    """Bytes in, the ``data`` of whole events out.

    Fields other than ``data`` and comments are skipped: chat streams say everything in their data.

    Source: HTML Living Standard, 9.2.6 "Interpreting an event stream".
    """

    __slots__ = ("_max_event_bytes", "_parts", "_size", "_data", "_data_size", "_skip_newline", "_at_start")

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._parts: list[bytes] = []
        """Pieces of the line that has not ended yet."""
        self._size = 0
        self._data: list[bytes] = []
        """Data lines of the event that has not ended yet."""
        self._data_size = 0
        self._skip_newline = False
        self._at_start = True

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of all events that ``chunk`` completes.

        Raises:
            EngineError: an event above ``max_event_bytes``.
        """
        if self._skip_newline and chunk:
            # The read before ended between the two characters of a CRLF.
            self._skip_newline = False
            if chunk.startswith(b"\n"):
                chunk = chunk[1:]
        if b"\r" in chunk:
            self._skip_newline = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in chunk:
            self._hold(chunk)
            return []
        if self._parts:
            self._parts.append(chunk)
            chunk = b"".join(self._parts)
            self._parts.clear()
            self._size = 0
        events: list[bytes] = []
        if chunk.startswith(b"data: ") and not self._data:
            whole, end, rest = chunk.rpartition(b"\n\n")
            found = whole[6:].split(b"\n\ndata: ")
            if end and whole.count(b"\n") == 2 * len(found) - 2 and len(whole) <= self._max_event_bytes:
                # Nearly always: whole events of one line each.
                self._at_start = False
                events, chunk = found, rest
        whole, newline, rest = chunk.rpartition(b"\n")
        if newline:
            self._lines(whole, events)
        self._hold(rest)
        return events

    def close(self) -> list[bytes]:
        """The data of an event that the end of the stream cut short of its blank line.

        The standard drops it; some servers end so.
        """
        events: list[bytes] = []
        self._line(b"".join(self._parts), events)
        self._line(b"", events)
        self._parts.clear()
        return events

    def _hold(self, piece: bytes) -> None:
        if piece:
            self._size += len(piece)
            self._check(self._size)
            self._parts.append(piece)

    def _lines(self, lines: bytes, events: list[bytes]) -> None:
        for line in lines.split(b"\n"):
            self._line(line, events)

    def _line(self, line: bytes, events: list[bytes]) -> None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        if not line:
            if self._data:
                events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                self._data = []
                self._data_size = 0
        elif line.startswith(b"data:"):
            # "If value starts with a U+0020 SPACE character, remove it from value."
            value = line[6:] if line[5:6] == b" " else line[5:]
            self._data_size += len(value)
            self._check(self._data_size)
            self._data.append(value)

    def _check(self, size: int) -> None:
        if size > self._max_event_bytes:
            message = f"an event of the engine's stream is longer than {self._max_event_bytes} bytes"
            raise EngineError("protocol", message)


class AnswerReader(ABC, Generic[D]):
    """One server's dialect: the data of its events in, deltas out. No IO."""

    max_event_bytes = MAX_EVENT_BYTES
    is_done = False
    """The answer is whole: nothing that follows counts."""

    @abstractmethod
    def feed(self, data: bytes, deltas: list[D]) -> None:
        """Add what one event says; or a whole JSON answer, from servers that do not stream.

        Raises:
            EngineError: it reports one, or cannot be read.
        """

    @abstractmethod
    def finish(self, deltas: list[D]) -> None:
        """The stream has ended: add what is left, with ``Finished``.

        Raises:
            EngineError: it ended too early.
        """

    def refusal(self, status: int, body: bytes, headers: Mapping[str, str]) -> EngineError:
        """The error for an answer whose status is not 200."""
        return refusal(status, body, headers)
