"""Logs for machines: one JSON object a line, with the ids of what it is about, and nothing that anybody has said.

Put `JsonFormatter` and `Brake` into your ``LOGGING``. The ids travel in one context variable, set once for each
connection, HTTP request and response; nothing is done per frame or token.
"""

import json
import logging
import time
import traceback
from collections import OrderedDict
from collections.abc import Mapping
from contextvars import Context, ContextVar
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

Ids = Mapping[str, str | int | None]
"""``request_id``, ``connection_id``, ``response_id``, ``project_id``, ``key_id``: those that are known."""

MAX_MESSAGE_CHARACTERS = 500
MAX_FRAMES = 12
"""Of a traceback, the innermost ones."""
MAX_KINDS = 1000

_about: ContextVar[Ids] = ContextVar("responses_ws_about", default={})  # noqa: B039  never changed, only replaced

access = logging.getLogger("responses_ws.access")
"""What came and how it ended: one line for each turn and each socket, at INFO."""


def about(**ids: str | int | None) -> None:
    """From here on, what this task and those it starts log is about these, too."""
    _about.set({**_about.get(), **ids})


def of_nobody() -> Context:
    """For tasks that one turn happens to start and all share: what they log is about none of them."""
    return Context()


def came_to_pass(what: str, details: Mapping[str, Any]) -> None:
    """A line of the access log. Ask first whether anybody wants it: ``if access.isEnabledFor(logging.INFO)``."""
    access.info(what, extra={"details": details})


class JsonFormatter(logging.Formatter):
    """``{"time", "level", "logger", "message", …ids, …details, "exception"}``.

    Of exceptions their types and where they were raised, but not their texts: those quote what could not be read.
    With ``exception_texts`` these too, for development.
    """

    def __init__(self, *, exception_texts: bool = False) -> None:
        super().__init__()
        self._exception_texts = exception_texts

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage()[:MAX_MESSAGE_CHARACTERS],
            **_about.get(),
            **getattr(record, "details", {}),
        }
        held_back = getattr(record, "held_back", 0)
        if held_back:
            line["held_back"] = held_back
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = self._explained(record.exc_info[1])
        # Escaped to ASCII: a line stays a line, and a lone surrogate breaks nothing.
        return json.dumps(line, default=str, separators=(",", ":"))

    def _explained(self, exc: BaseException) -> str:
        """From the cause to the effect, as Python does."""
        parts: list[str] = []
        seen: set[int] = set()
        current: BaseException | None = exc
        while current is not None and id(current) not in seen:
            seen.add(id(current))
            name = type(current).__qualname__
            name = f"{name}: {current}" if self._exception_texts else name
            parts.append(f"{name} ({_where(current.__traceback__)})")
            current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
        # By this word people and tests look for them.
        return "Traceback: " + "; then ".join(reversed(parts))


def _where(raised: TracebackType | None) -> str:
    frames = traceback.extract_tb(raised)[-MAX_FRAMES:]
    return " > ".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames)


class Brake(logging.Filter):
    """Lets so many lines of a kind through in so many seconds; the next one after that says how many were held back.

    Whoever causes a line from outside causes no more than that. A kind is a logger, a level and a text without its
    arguments; of all kinds of a logger together ten times as many pass, since there are texts that clients write. The
    access log passes: its lines are as many as turns, and those have limits of their own.
    """

    def __init__(self, *, lines: int = 20, seconds: float = 10.0) -> None:
        super().__init__()
        self._lines = lines
        self._seconds = seconds
        self._kinds: OrderedDict[tuple[str, int, str], list[float]] = OrderedDict()
        """Per kind until when its time runs, how many have passed in it, and how many have not."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == access.name:
            return True
        text = str(record.msg)[:MAX_MESSAGE_CHARACTERS]
        return self._has_room(record, text, self._lines) and self._has_room(record, "", 10 * self._lines)

    def _has_room(self, record: logging.LogRecord, text: str, lines: int) -> bool:
        now = time.monotonic()
        key = (record.name, record.levelno, text)
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = [now + self._seconds, 0, 0]
            if len(self._kinds) > MAX_KINDS:
                self._kinds.popitem(last=False)
        elif now >= kind[0]:
            record.held_back = getattr(record, "held_back", 0) + int(kind[2])
            kind[:] = [now + self._seconds, 0, 0]
        self._kinds.move_to_end(key)
        has_room = kind[1] < lines
        kind[1 if has_room else 2] += 1
        return has_room
