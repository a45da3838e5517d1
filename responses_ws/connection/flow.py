"""How fast things may come."""


class Bucket:
    """Holds ``most``, drains ``per_second``. Times are seconds of a monotonic clock, given by the caller."""

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
