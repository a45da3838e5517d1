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
        self._refusal: ApiError | None = None
        """Set once the connection takes no more turns."""

    def receive(self, frame: str | bytes, *, now: float) -> list[Command]:
        """A text frame has arrived. No error closes the socket."""
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
        return self._go_on()

    def time_is_up(self) -> list[Command]:
        """The connection has reached its age limit: no new turns, running ones may finish."""
        commands = self._stop_taking()
        if not commands and self._lanes.is_idle and self._refusal is not None:
            # Nobody waits for an answer, but the client should know why the socket closes.
            commands.append(Send(websocket_error(self._refusal)))
        return commands + self._go_on()

    @property
    def closes_at(self) -> float:
        """When ``time_is_up`` is due."""
        return self._closes_at

    @property
    def active_turns(self) -> int:
        return self._lanes.active

    def _create(self, create: ResponseCreate | InvalidCreate, now: float) -> list[Command]:
        commands: list[Command] = []
        if now >= self._closes_at:
            commands = self._stop_taking()
        if self._refusal is not None:
            refused = Send(websocket_error(self._refusal, stream_id=create.stream_id))
            return [*commands, refused, *self._go_on()]
        try:
            self._lanes.add(create)
        except ApiError as error:
            return [Send(websocket_error(error, stream_id=create.stream_id))]
        return self._go_on()

    def _stop_taking(self) -> list[Command]:
        """Refuse what waits and all that comes; once only."""
        if self._refusal is not None:
            return []
        minutes = round(self._limits.connection_seconds / 60)
        self._refusal = InvalidRequest(
            f"Responses websocket connection limit reached ({minutes} minutes). "
            "Create a new websocket connection to continue.",
            code="websocket_connection_limit_reached",
        )
        return [
            Send(websocket_error(self._refusal, stream_id=create.stream_id)) for create in self._lanes.drop_waiting()
        ]

    def _go_on(self) -> list[Command]:
        commands: list[Command] = [StartTurn(lane, create) for lane, create in self._lanes.ready()]
        if self._refusal is not None and self._lanes.is_idle:
            commands.append(Close(1000, "connection limit reached"))
        return commands


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
