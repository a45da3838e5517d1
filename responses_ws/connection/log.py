"""A list that many conversations can share: append-only, forks copy on their first write."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedLog(Generic[T]):
    """An immutable view of the first ``len(log)`` entries of a growing list.

    ``log.extended(new)`` gives a longer view. When this view is the newest one, the new entries are written behind
    it into the same list: cost O(new), whatever the length. When another view has been extended before, the past
    is copied once and the two go separate ways: a fork.

    Not thread-safe: extend on the event loop only.
    """

    __slots__ = ("_entries", "_end")

    def __init__(self, entries: Sequence[T] = ()) -> None:
        self._entries: list[T] = list(entries)
        self._end = len(self._entries)

    def extended(self, new: Sequence[T]) -> "SharedLog[T]":
        """This log with ``new`` behind it. Neither this view nor any other changes."""
        view: SharedLog[T] = SharedLog.__new__(SharedLog)
        if len(self._entries) == self._end:
            view._entries = self._entries
        else:
            view._entries = self._entries[: self._end]
        view._entries.extend(new)
        view._end = self._end + len(new)
        return view

    def until(self, end: int) -> "SharedLog[T]":
        """A view of the first ``end`` entries only. Extending it copies them, unless nothing came after them."""
        assert 0 <= end <= self._end, "a view never shows more than its log"
        view: SharedLog[T] = SharedLog.__new__(SharedLog)
        view._entries, view._end = self._entries, end
        return view

    def __len__(self) -> int:
        return self._end

    def __iter__(self) -> Iterator[T]:
        return islice(self._entries, self._end)

    def __reversed__(self) -> Iterator[T]:
        for index in range(self._end - 1, -1, -1):
            yield self._entries[index]

    def __getitem__(self, position: int) -> T:
        assert 0 <= position < self._end, "a view never shows more than its log"
        return self._entries[position]

    def since(self, start: int) -> list[T]:
        """Entries from position ``start`` on, as a list of their own."""
        return self._entries[start : self._end]

    @property
    def last(self) -> T:
        """The newest entry of this view, which must have one."""
        assert self._end, "an empty log has no last entry"
        return self._entries[self._end - 1]

    @property
    def identity(self) -> int:
        """The same for all views that share one list."""
        return id(self._entries)

    @property
    def is_tip(self) -> bool:
        """Whether extending this view writes in place."""
        return len(self._entries) == self._end
