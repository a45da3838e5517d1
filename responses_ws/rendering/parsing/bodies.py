"""The contract of what stands between a call's opener and its closer."""

from abc import ABC, abstractmethod
from collections.abc import Collection

from .said import Said

WHITESPACE = " \t\r\n"


class NotACall(Exception):
    """What was fed is no call after all; nothing of it has been said."""


class CallBody(ABC):
    """One call, read while it is written. What becomes certain of it goes to ``said``."""

    def __init__(self, said: Said, raw: str, declared: Collection[str] | None) -> None:
        self.raw = [raw]
        """What was written since the opener, it included, while it is not sure that this is a call."""
        self.has_started = False
        self.is_malformed = False
        """It has started, but not all of it could be read."""
        self._said = said
        self._declared = declared
        """The names one of which makes this a call; None: any does."""

    def feed(self, text: str) -> str | None:
        """What stands behind the call's end; None: it has not ended.

        Raises:
            NotACall: only before it ``has_started``.
        """
        if not self.has_started:
            self.raw.append(text)
        return self._read(text)

    @abstractmethod
    def _read(self, text: str) -> str | None: ...

    @property
    @abstractmethod
    def is_within_value(self) -> bool:
        """Whether what comes next is content of the arguments: there a marker is text like any other."""

    @abstractmethod
    def close(self) -> None:
        """A call that has started ends here, although it has not said so."""

    def cut_off(self) -> None:
        """No more comes of a call that has started: what was kept back of its arguments is said as it is."""

    def _start(self, name: str, call_id: str | None = None) -> None:
        if not name or (self._declared is not None and name not in self._declared):
            raise NotACall
        self.has_started = True
        self.raw = []
        self._said.start(name, call_id)
