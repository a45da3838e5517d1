"""One WebSocket connection: told what happened, answers with commands."""

from responses_ws.protocol.client_events import InvalidCreate, ResponseCreate, ResponseSteer, decode_frame
from responses_ws.protocol.errors import ApiError, InvalidRequest, websocket_error
from responses_ws.protocol.server_events import SteerFailed, encode

from .chain import Chains
from .commands import Close, Command, Send, StartTurn
from .lanes import Lanes
from .limits import Limits


class Connection:
    """The rules of one socket. Times are seconds of a monotonic clock, given by the caller."""

    def __init__(self, limits: Limits, *, opened_at: float) -> None:
        self.chains = Chains()
        self._limits = limits
        self._lanes = Lanes(limits)
        self._closes_at = opened_at + limits.connection_seconds
        self._is_over = False
        """Takes no more turns."""
        self._has_refused = False
        """Has told the client so."""
        self._is_closed = False

    def receive(self, frame: str | bytes, *, now: float) -> list[Command]:
        """A text frame has arrived. No error closes the socket."""
        if self._is_closed:
            return []
        try:
            event = decode_frame(frame)
        except ApiError as error:
            return [Send(websocket_error(error))]
        if isinstance(event, ResponseCreate | InvalidCreate):
            return self._create(event, now)
        if isinstance(event, ResponseSteer):
            return [Send(_steer_refused(event))]
        # response.processed expects no answer.
        return []

    def turn_ended(self, lane: str | None, *, now: float) -> list[Command]:
        """The turn that was started on ``lane`` is over, whatever its end."""
        self._lanes.ended(lane)
        return self._go_on(now)

    def time_is_up(self) -> list[Command]:
        """The connection has reached its age limit: no new turns, running ones may finish."""
        self._is_over = True
        return self._go_on(self._closes_at)

    @property
    def closes_at(self) -> float:
        """When ``time_is_up`` is due."""
        return self._closes_at

    @property
    def active_turns(self) -> int:
        return self._lanes.active

    def _create(self, create: ResponseCreate | InvalidCreate, now: float) -> list[Command]:
        try:
            self._lanes.add(create)
        except ApiError as error:
            return [Send(websocket_error(error, stream_id=create.stream_id))]
        return self._go_on(now)

    def _go_on(self, now: float) -> list[Command]:
        """Start what may start; after the age limit, refuse it, and close when nothing is left."""
        if not self._is_over and now < self._closes_at:
            return [StartTurn(lane, create) for lane, create in self._lanes.ready()]
        self._is_over = True
        commands: list[Command] = []
        # Each in its lane's turn: beside a running one, clients would take the error for that one's end.
        while ready := self._lanes.ready():
            for lane, _ in ready:
                commands.append(self._refuse(lane))
                self._lanes.ended(lane)
        if self._lanes.is_idle and not self._is_closed:
            if not self._has_refused:
                # Nobody waits for an answer, but the client should know why the socket closes.
                commands.append(self._refuse(None))
            self._is_closed = True
            commands.append(Close(1000, "connection limit reached"))
        return commands

    def _refuse(self, lane: str | None) -> Command:
        self._has_refused = True
        minutes = round(self._limits.connection_seconds / 60)
        error = InvalidRequest(
            f"Responses websocket connection limit reached ({minutes} minutes). "
            "Create a new websocket connection to continue.",
            code="websocket_connection_limit_reached",
        )
        return Send(websocket_error(error, stream_id=lane))


def _steer_refused(event: ResponseSteer) -> str:
    return encode(
        SteerFailed(
            sequence_number=0,
            steer={"previous_response_id": event.previous_response_id, "input": event.input},
            error={
                "type": "invalid_request_error",
                "code": "steering_not_supported",
                "message": "This server does not support steering yet.",
            },
        )
    )
