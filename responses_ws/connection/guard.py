"""What may come out of one sampling step: engines do not always keep to what they were asked."""

from collections.abc import Mapping
from typing import Any

from responses_ws.protocol.errors import EngineFault
from responses_ws.protocol.json_schema import misfit
from responses_ws.protocol.sampling import (
    CallArguments,
    CallEnd,
    CallStart,
    Delta,
    Finished,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)

_COUNTED = (TextDelta, CallArguments, ReasoningDelta, RefusalDelta)


class Guard:
    """Holds an engine to its request, in the engine's own words.

    An engine that goes on behind the last token it may say, or behind the one call it may make, is cut off there:
    its step ends as if it had stopped by itself, and ``has_cut`` is set. A call that must not come out is a fault.
    An answer of which something was dropped is not the one that the engine remembers: its `continuation` goes too.
    """

    __slots__ = ("has_cut", "_callable", "_schemas", "_only", "_tokens_left", "_open", "_kept", "_has_dropped")

    def __init__(
        self,
        *,
        callable_names: frozenset[str] | None,
        schemas: Mapping[str, Any],
        one_call: bool = False,
        max_tokens: int | None = None,
    ) -> None:
        self.has_cut = False
        """The step is over, although the engine has not said so."""
        self._callable = callable_names
        self._schemas = schemas
        """Of tools whose arguments the engine has promised to hold to their schema, by name."""
        self._only: int | None = -1 if one_call else None
        """Index of the one call that may be made; -1 before it, None where there may be many."""
        self._tokens_left = max_tokens
        self._open: dict[int, str] = {}
        """Names of open calls."""
        self._kept: dict[int, list[str]] = {}
        """Arguments of open calls so far, where they are going to be read."""
        self._has_dropped = False

    def feed(self, delta: Delta) -> list[Delta]:
        """What to hand on for one delta of the engine; nothing after a cut.

        Raises:
            EngineFault: a call of a tool that may not be called, or arguments that break a promise.
        """
        if self.has_cut:
            return []
        if self._tokens_left is not None and isinstance(delta, _COUNTED):
            self._tokens_left -= delta.tokens
            if self._tokens_left < 0:
                self.has_cut = True
                return [Finished("length")]
        if isinstance(delta, Finished) and self._has_dropped:
            return [Finished(delta.reason, delta.usage)]
        if isinstance(delta, CallStart):
            return self._start(delta)
        if isinstance(delta, CallArguments | CallEnd):
            if delta.index not in self._open:
                # Of a second call that has been dropped.
                return []
            if isinstance(delta, CallEnd):
                self._end(delta.index)
            elif delta.index in self._kept:
                self._kept[delta.index].append(delta.text)
        return [delta]

    def _start(self, start: CallStart) -> list[Delta]:
        if self._callable is not None and start.name not in self._callable:
            raise EngineFault(f"The model called {start.name[:100]!r}, which is not a tool that it may call.")
        if self._only is not None and self._only >= 0:
            return self._end_with_one_call()
        self._open[start.index] = start.name
        if self._only is not None or start.name in self._schemas:
            self._kept[start.index] = []
        if self._only is not None:
            self._only = start.index
        return [start]

    def _end_with_one_call(self) -> list[Delta]:
        """A second call begins where one was asked for: nothing of it comes out."""
        self._has_dropped = True
        only = self._only
        assert only is not None, "asked for only where one call may be made"
        ends: list[Delta] = []
        if only in self._open:
            if misfit(True, "".join(self._kept[only])):
                # The first is not whole: this engine says them side by side.
                return []
            self._end(only)
            ends.append(CallEnd(only))
        self.has_cut = True
        return [*ends, Finished("tool_calls")]

    def _end(self, index: int) -> None:
        name = self._open.pop(index)
        pieces = self._kept.pop(index, ())
        if name not in self._schemas:
            return
        fault = misfit(self._schemas[name], "".join(pieces) or "{}")
        if fault is not None:
            raise EngineFault(f"The model called {name!r} with arguments that do not fit its schema: {fault}.")
