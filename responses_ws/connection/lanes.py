"""The lanes of one connection: FIFO each, side by side, never more than so many at once."""

from collections import deque

from responses_ws.protocol.client_events import InvalidCreate, ResponseCreate
from responses_ws.protocol.errors import InvalidRequest, RateLimited

from .limits import Limits

Create = ResponseCreate | InvalidCreate


class Lanes:
    """Who runs, who waits.

    A second create on a busy lane, or one more than may run at once, waits; it is not refused. Waiting is bounded.

    Source: OpenAI's WebSocket guide: 16 active over all lanes, 32 distinct names, the default lane uncounted.
    """

    __slots__ = ("_limits", "_names", "_waiting", "_waiting_bytes", "_running")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # Lists: there are never many, and every socket has them.
        self._names: list[str] = []
        self._waiting: dict[str | None, deque[tuple[Create, int]]] = {}
        """Per lane, in order of arrival, with their sizes. A lane is a key here while it has creates waiting."""
        self._waiting_bytes = 0
        self._running: list[str | None] = []

    def add(self, create: Create, size: int) -> None:
        """Queue a create on its lane. ``size``: of its frame.

        Raises:
            InvalidRequest: one lane name too many.
            RateLimited: too many waiting on this lane, or too much on all lanes together.
        """
        lane = create.stream_id
        queue = self._waiting.get(lane)
        if queue is not None and len(queue) >= self._limits.queued_turns:
            raise RateLimited(f"Too many responses are waiting on this lane: {len(queue)}.")
        # One alone always finds room, whatever its size.
        if self._waiting_bytes and self._waiting_bytes + size > self._limits.queued_bytes:
            raise RateLimited(f"Too much is waiting on this connection: {self._waiting_bytes} bytes.")
        if lane is not None and lane not in self._names:
            if len(self._names) >= self._limits.lane_names:
                raise InvalidRequest(
                    f"This connection has used {self._limits.lane_names} stream ids; reuse one or open another.",
                    code="websocket_stream_limit_reached",
                    param="stream_id",
                )
            self._names.append(lane)
        if queue is None:
            queue = self._waiting[lane] = deque()
        queue.append((create, size))
        self._waiting_bytes += size

    def ready(self) -> list[tuple[str | None, Create]]:
        """Take out what may start now: of every idle lane its oldest, while there is room."""
        started: list[tuple[str | None, Create]] = []
        for lane in list(self._waiting):
            if len(self._running) >= self._limits.active_turns:
                break
            if lane in self._running:
                continue
            queue = self._waiting.pop(lane)
            create, size = queue.popleft()
            self._waiting_bytes -= size
            started.append((lane, create))
            self._running.append(lane)
            if queue:
                # To the back: a lane with much to do does not starve the others.
                self._waiting[lane] = queue
        return started

    def ended(self, lane: str | None) -> None:
        """The running turn of a lane is over."""
        if lane in self._running:
            self._running.remove(lane)

    @property
    def is_idle(self) -> bool:
        return not self._running and not self._waiting

    @property
    def waiting_bytes(self) -> int:
        return self._waiting_bytes

    @property
    def active(self) -> int:
        return len(self._running)

    @property
    def named(self) -> int:
        return len(self._names)

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))
