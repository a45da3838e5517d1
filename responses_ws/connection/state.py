"""One WebSocket connection: told what happened, answers with commands."""

from responses_ws.protocol.client_events import (
    InvalidCreate,
    ResponseAppend,
    ResponseCreate,
    ResponseSteer,
    decode_frame,
)
from responses_ws.protocol.errors import ApiError, InvalidRequest, RateLimited, websocket_error
from responses_ws.protocol.server_events import SteerFailed, encode
from responses_ws.protocol.steering import Steer, steer_error

from .chain import Chains
from .commands import Append, Close, Command, Send, StartTurn, Tell
from .flow import Bucket
from .lanes import Lanes
from .limits import Limits

_REMEMBERED = 1000
"""Ids of ended responses, to tell a steer that came too late from one that names nothing."""

_FAULTS = "Too many messages that are no valid events."


class Connection:
    """The rules of one socket. Times are seconds of a monotonic clock, given by the caller."""

    def __init__(self, limits: Limits, *, opened_at: float, may_append: bool = False) -> None:
        self.chains = Chains()
        self.may_append = may_append
        """The client has opted in to responses that wait for appended outputs."""
        self._running: dict[str, str | None] = {}
        """Lanes by the id of the response that runs on them."""
        self._told: dict[str, int] = {}
        """Bytes of what running responses have been told, by their ids."""
        self._ended: dict[str, None] = {}
        """Ids of responses that have ended here, as far as they are remembered."""
        self._limits = limits
        self._frames = Bucket(limits.frames_at_once, per_second=limits.frames_per_second, now=opened_at)
        faults = limits.faults_per_minute
        self._faults = Bucket(faults, per_second=faults / 60, now=opened_at)
        self._lanes = Lanes(limits)
        self._closes_at = opened_at + limits.connection_seconds
        self._is_over = False
        """Takes no more turns."""
        self._why = f"({round(limits.connection_seconds / 60)} minutes)"
        self._farewell = Close(1000, "connection limit reached")
        """How it closes then."""
        self._has_refused = False
        """Has told the client so."""
        self._is_closed = False
        self._closing: Close | None = None
        """To be sent as soon as nothing runs."""

    def receive(self, frame: str | bytes, *, now: float) -> list[Command]:
        """A text frame has arrived. No error closes the socket; too many of them do, and too many frames."""
        if self._is_closed:
            return []
        if self._frames.overflows(now):
            most = self._limits.frames_per_second
            return self._cut(f"Too many messages: this connection may send {most:g} a second.")
        try:
            event = decode_frame(frame)
        except ApiError as error:
            return self._cut(_FAULTS) if self._faults.overflows(now) else [Send(websocket_error(error))]
        if isinstance(event, InvalidCreate) and self._faults.overflows(now):
            return self._cut(_FAULTS)
        if isinstance(event, ResponseCreate | InvalidCreate):
            return self._create(event, len(frame), now)
        if isinstance(event, ResponseSteer):
            return [self._steer(event, len(frame))]
        if isinstance(event, ResponseAppend):
            return [self._append(event, len(frame))]
        # response.processed expects no answer.
        return []

    def _cut(self, message: str) -> list[Command]:
        """The client has lost its rights to this socket; what runs on it ends as if it had left."""
        self._is_closed = True
        return [Send(websocket_error(RateLimited(message))), Close(1008, "too many messages")]

    def turn_ended(self, lane: str | None, *, now: float) -> list[Command]:
        """The turn that was started on ``lane`` is over, whatever its end."""
        for response_id in [name for name, running_on in self._running.items() if running_on == lane]:
            self.response_ended(response_id)
        self._lanes.ended(lane)
        return self._go_on(now)

    def response_began(self, lane: str | None, response_id: str) -> None:
        """A turn has told its client this id."""
        self._running[response_id] = lane

    def response_ended(self, response_id: str) -> None:
        """Its terminal event goes out now; the turn may go on with a successor."""
        self._running.pop(response_id, None)
        self._told.pop(response_id, None)
        self._ended[response_id] = None
        if len(self._ended) > _REMEMBERED:
            del self._ended[next(iter(self._ended))]

    def time_is_up(self) -> list[Command]:
        """The age limit is reached, or this socket's moment in a restart: no new turns, running ones may finish."""
        self._is_over = True
        return self._go_on(self._closes_at)

    def restart(self) -> None:
        """The process is about to end: no new turns, running ones may finish. An idle socket stays open until it asks
        for a turn, or until `time_is_up`."""
        self._is_over = True
        self._why = "(the server restarts)"
        self._farewell = Close(1012, "the server restarts")

    def close_when_idle(self, code: int, reason: str) -> list[Command]:
        """Running turns may finish. Those that come are for admission to refuse."""
        self._closing = Close(code, reason)
        return self._closed_if_idle()

    def _closed_if_idle(self) -> list[Command]:
        if self._closing is None or self._is_closed or not self._lanes.is_idle:
            return []
        self._is_closed = True
        return [self._closing]

    @property
    def closes_at(self) -> float:
        """When ``time_is_up`` is due."""
        return self._closes_at

    @property
    def active_turns(self) -> int:
        return self._lanes.active

    @property
    def waiting_turns(self) -> int:
        return self._lanes.waiting

    @property
    def lanes(self) -> int:
        """Names of lanes used so far."""
        return self._lanes.named

    @property
    def held_bytes(self) -> int:
        """What it remembers, and what waits for its lane; roughly."""
        return self.chains.size + self._lanes.waiting_bytes

    def _create(self, create: ResponseCreate | InvalidCreate, size: int, now: float) -> list[Command]:
        try:
            self._lanes.add(create, size)
        except ApiError as error:
            return [Send(websocket_error(error, stream_id=create.stream_id))]
        return self._go_on(now)

    def _steer(self, event: ResponseSteer, size: int) -> Command:
        steer = Steer(event.previous_response_id, event.input)
        if steer.previous_response_id in self._running:
            if not self._has_room(steer.previous_response_id, size):
                error = steer_error("too_many_pending_steers", "This response has been told too much.")
                return Send(encode(SteerFailed(sequence_number=0, steer=steer.returned(), error=error)))
            return Tell(self._running[steer.previous_response_id], steer)
        return Send(unheard_steer(steer, has_ended=steer.previous_response_id in self._ended))

    def _append(self, event: ResponseAppend, size: int) -> Command:
        if not self.may_append:
            error = InvalidRequest("This socket has not opted in to response.append.", code="invalid_event")
            return Send(websocket_error(error, stream_id=event.stream_id))
        if event.response_id in self._running:
            if not self._has_room(event.response_id, size):
                refusal = RateLimited("This response has been told too much.")
                return Send(websocket_error(refusal, stream_id=event.stream_id))
            return Tell(self._running[event.response_id], Append(event.input))
        return Send(websocket_error(unknown_response(event.response_id), stream_id=event.stream_id))

    def _has_room(self, response_id: str, size: int) -> bool:
        """Whether so much more may be told to a running response, which may be too busy to listen; counts it."""
        # A word takes more than its letters.
        told = self._told.get(response_id, 0) + max(size, 1024)
        if told > self._limits.told_bytes:
            return False
        self._told[response_id] = told
        return True

    def _go_on(self, now: float) -> list[Command]:
        """Start what may start; when its time is up, refuse it, and close when nothing is left."""
        if not self._is_over and now < self._closes_at:
            starts: list[Command] = [StartTurn(lane, create) for lane, create in self._lanes.ready()]
            return starts or self._closed_if_idle()
        self._is_over = True
        commands: list[Command] = []
        # Each in its lane's turn: beside a running one, clients would take the error for that one's end.
        while ready := self._lanes.ready():
            for lane, _ in ready:
                commands.append(self._refuse(lane))
                self._lanes.ended(lane)
        if self._lanes.is_idle and not self._is_closed:
            if not self._has_refused:
                # Nobody waits for an answer, but the client should know why the socket closes. And a create that is
                # under way is answered like one that came in time: by the error on which clients connect again.
                commands.append(self._refuse(None))
            self._is_closed = True
            commands.append(self._farewell)
        return commands

    def _refuse(self, lane: str | None) -> Command:
        self._has_refused = True
        error = InvalidRequest(
            f"Responses websocket connection limit reached {self._why}. Create a new websocket connection to continue.",
            code="websocket_connection_limit_reached",
        )
        return Send(websocket_error(error, stream_id=lane))


def unheard_steer(steer: Steer, *, has_ended: bool) -> str:
    """A steer that no running response can take; its input comes back."""
    if has_ended:
        error = steer_error("response_already_completed", "The response has already ended.")
    else:
        error = steer_error("response_not_found", "No such response is running on this connection.")
    return encode(SteerFailed(sequence_number=0, steer=steer.returned(), error=error))


def unknown_response(response_id: str) -> InvalidRequest:
    """An append that names no response running here."""
    return InvalidRequest(
        f"No response with id '{response_id[:128]}' waits on this connection.",
        code="response_not_found",
        param="response_id",
    )
