"""How fast things may come."""


class Bucket:
    """Holds ``most``, drains ``per_second``. Times are seconds of a monotonic clock, given by the caller."""

    __slots__ = ("_most", "_per_second", "_level", "_at")

    def __init__(self, most: float, *, per_second: float, now: float) -> None:
        self._most = most
        self._per_second = per_second
        self._level = 0.0
        self._at = now

    def overflows(self, now: float) -> bool:
        """Put one more in; whether it found no room."""
        self._level = max(0.0, self._level - (now - self._at) * self._per_second) + 1
        self._at = now
        return self._level > self._most

    def takes(self, now: float) -> bool:
        """Put one more in, if there is room for it; whether there was."""
        level = max(0.0, self._level - (now - self._at) * self._per_second)
        has_room = level + 1 <= self._most
        self._level = level + has_room
        self._at = now
        return has_room
