import json
from collections import deque
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from responses_ws.connection.commands import Append, Close, Command, Send, StartTurn, Tell
from responses_ws.connection.limits import Limits
from responses_ws.connection.state import Connection
from responses_ws.protocol.client_events import InvalidCreate, ResponseCreate
from responses_ws.protocol.steering import Steer

OPENED = 1000.0
END = OPENED + 3600


def connection(**limits: Any) -> Connection:
    return Connection(Limits(**limits), opened_at=OPENED)


def create(lane: str | None = None, **fields: Any) -> str:
    named = {} if lane is None else {"stream_id": lane}
    return json.dumps({"type": "response.create", "model": "m", "input": "hi", **named, **fields})


def said(commands: list[Command]) -> list[Any]:
    """Commands in short: ("start", lane), ("error", code, lane), ("close", code) or the event itself."""
    short: list[Any] = []
    for command in commands:
        if isinstance(command, StartTurn):
            short.append(("start", command.lane))
        elif isinstance(command, Close):
            short.append(("close", command.code))
        else:
            assert isinstance(command, Send)
            event = json.loads(command.frame)
            if event["type"] == "error":
                short.append(("error", event["error"]["code"], event.get("stream_id")))
            else:
                short.append(event)
    return short


LIMIT = "websocket_connection_limit_reached"


def test_a_create_starts_at_once_with_what_was_asked() -> None:
    commands = connection().receive(create("a", temperature=0.5), now=OPENED)

    (command,) = commands
    assert isinstance(command, StartTurn)
    assert command.lane == "a"
    assert isinstance(command.create, ResponseCreate)
    assert (command.create.model, command.create.temperature) == ("m", 0.5)


def test_nothing_is_said_before_the_first_frame() -> None:
    made = connection()

    assert made.active_turns == 0
    assert len(made.chains) == 0


# Frames that a new connection answers at once.
ANSWERS: dict[str, tuple[str, list[Any]]] = {
    "create": (create(), [("start", None)]),
    "create in a lane": (create("a"), [("start", "a")]),
    "invalid create": (create("a", model=5), [("start", "a")]),
    "no JSON": ("{", [("error", "invalid_json", None)]),
    "unknown event": ('{"type":"session.update"}', [("error", "invalid_event", None)]),
    "invalid lane name": (create(""), [("error", "invalid_stream_id", None)]),
    "Codex's note": ('{"type":"response.processed","response_id":"resp_a"}', []),
    "steer of nothing": ('{"type":"response.steer"}', [("error", "missing_required_parameter", None)]),
}


@pytest.mark.parametrize(("frame", "answer"), ANSWERS.values(), ids=ANSWERS)
def test_a_frame_has_its_answer(frame: str, answer: list[Any]) -> None:
    assert said(connection().receive(frame, now=OPENED)) == answer


@pytest.mark.parametrize("frame", [frame for frame, _ in ANSWERS.values()], ids=ANSWERS)
def test_the_socket_is_as_good_as_before_after_any_frame(frame: str) -> None:
    made = connection()
    made.receive(frame, now=OPENED)

    assert said(made.receive(create("z"), now=OPENED)) == [("start", "z")]


def test_an_invalid_create_waits_for_its_turn() -> None:
    """Sent at once, its error would be taken for the end of the running turn."""
    made = connection()
    made.receive(create(), now=OPENED)

    assert made.receive(create(temperature=5, previous_response_id="resp_a"), now=OPENED) == []
    (command,) = made.turn_ended(None, now=OPENED)

    assert isinstance(command, StartTurn)
    assert isinstance(command.create, InvalidCreate)
    assert command.create.previous_response_id == "resp_a"
    assert command.create.error.param == "temperature"


FULL = {"type": "message", "role": "user", "content": "wait"}


def steer(response_id: str, given: Any = "wait") -> str:
    return json.dumps({"type": "response.steer", "previous_response_id": response_id, "input": given})


def append(response_id: str, **fields: Any) -> str:
    return json.dumps({"type": "response.append", "response_id": response_id, "input": [], **fields})


@pytest.mark.parametrize("given", ["wait", [FULL]], ids=["text", "items"])
def test_a_steer_of_an_unknown_response_comes_back(given: Any) -> None:
    (event,) = said(connection().receive(steer("resp_a", given), now=OPENED))

    assert event == {
        "type": "response.steer.failed",
        "sequence_number": 0,
        "steer": {"previous_response_id": "resp_a", "input": given},
        "error": {
            "type": "invalid_request_error",
            "code": "response_not_found",
            "message": "No such response is running on this connection.",
        },
    }
    check_types_on_a_socket(event)


def test_a_steer_goes_to_the_lane_of_its_response() -> None:
    made = connection()
    made.receive(create("a"), now=OPENED)
    made.response_began("a", "resp_a")

    (command,) = made.receive(steer("resp_a"), now=OPENED)

    assert command == Tell("a", Steer("resp_a", "wait"))


@pytest.mark.parametrize("how", ["its terminal event", "its turn"])
def test_a_steer_after_the_end_is_told_so(how: str) -> None:
    made = connection()
    made.receive(create(), now=OPENED)
    made.response_began(None, "resp_a")
    if how == "its turn":
        made.turn_ended(None, now=OPENED)
    else:
        made.response_ended("resp_a")

    (event,) = said(made.receive(steer("resp_a"), now=OPENED))

    assert event["error"]["code"] == "response_already_completed"
    check_types_on_a_socket(event)


def test_only_so_many_ended_responses_are_remembered() -> None:
    made = connection()
    for number in range(2000):
        made.response_ended(f"resp_{number}")

    codes = [said(made.receive(steer(f"resp_{number}"), now=OPENED))[0]["error"]["code"] for number in (0, 1999)]

    assert codes == ["response_not_found", "response_already_completed"]


def test_an_append_is_for_those_who_opted_in() -> None:
    made = connection()
    made.response_began(None, "resp_a")

    assert said(made.receive(append("resp_a", stream_id="s"), now=OPENED)) == [("error", "invalid_event", "s")]


def test_what_a_running_response_is_told_is_bounded() -> None:
    made = Connection(Limits(told_bytes=3000), opened_at=OPENED, may_append=True)
    made.response_began("a", "resp_a")
    made.response_began("b", "resp_b")

    first = [made.receive(append("resp_a", pad="x" * 1500), now=OPENED), made.receive(steer("resp_a"), now=OPENED)]
    refused = said(made.receive(append("resp_a"), now=OPENED)) + said(made.receive(steer("resp_a"), now=OPENED))

    assert all(isinstance(command, Tell) for commands in first for command in commands)
    assert refused[0] == ("error", "rate_limit_exceeded", None)
    assert refused[1]["error"]["code"] == "too_many_pending_steers"
    assert isinstance(made.receive(append("resp_b"), now=OPENED)[0], Tell)


def test_an_append_goes_to_the_lane_of_its_response() -> None:
    made = Connection(Limits(), opened_at=OPENED, may_append=True)
    made.response_began("a", "resp_a")

    assert made.receive(append("resp_a"), now=OPENED) == [Tell("a", Append([]))]
    assert said(made.receive(append("resp_b"), now=OPENED)) == [("error", "response_not_found", None)]


def check_types_on_a_socket(event: dict[str, Any]) -> None:
    from openai.types.responses import ResponseSteerFailedEvent

    ResponseSteerFailedEvent.model_validate(event, strict=True)


def test_an_error_frame_is_read_by_the_official_client() -> None:
    (command,) = connection().receive("{", now=OPENED)
    assert isinstance(command, Send)

    from openai.types.responses import ResponsesServerEvent
    from pydantic import TypeAdapter

    event: Any = TypeAdapter(ResponsesServerEvent).validate_json(command.frame, strict=True)
    assert (event.status, event.error.code) == (400, "invalid_json")


def test_a_second_create_waits_and_follows() -> None:
    made = connection()

    assert said(made.receive(create(), now=OPENED)) == [("start", None)]
    assert said(made.receive(create(), now=OPENED)) == []
    assert said(made.receive(create("a"), now=OPENED)) == [("start", "a")]
    assert said(made.turn_ended("a", now=OPENED)) == []
    assert said(made.turn_ended(None, now=OPENED)) == [("start", None)]
    assert made.active_turns == 1


def test_the_seventeenth_active_turn_waits_for_any_of_the_others() -> None:
    made = connection()
    for number in range(16):
        made.receive(create(f"l{number}"), now=OPENED)

    assert said(made.receive(create(), now=OPENED)) == []
    assert made.active_turns == 16
    assert said(made.turn_ended("l7", now=OPENED)) == [("start", None)]


def test_the_thirty_third_name_is_refused_by_its_name() -> None:
    made = connection()
    for number in range(32):
        made.receive(create(f"l{number}"), now=OPENED)

    refused = made.receive(create("l32"), now=OPENED)

    assert said(refused) == [("error", "websocket_stream_limit_reached", "l32")]
    assert said(made.receive(create(), now=OPENED)) == []


def test_a_full_queue_is_a_429_and_evicts_nothing() -> None:
    made = connection(queued_turns=1)
    made.receive(create("a"), now=OPENED)
    made.receive(create("a"), now=OPENED)

    commands = made.receive(create("a"), now=OPENED)

    (command,) = commands
    assert isinstance(command, Send)
    event = json.loads(command.frame)
    assert (event["status"], event["error"]["code"], event["stream_id"]) == (429, "rate_limit_exceeded", "a")


def test_an_idle_connection_says_why_and_closes() -> None:
    made = connection()
    assert made.closes_at == END

    commands = made.time_is_up()

    assert said(commands) == [("error", LIMIT, None), ("close", 1000)]
    assert isinstance(commands[0], Send)
    assert json.loads(commands[0].frame) == {
        "type": "error",
        "sequence_number": 0,
        "status": 400,
        "error": {
            "message": "Responses websocket connection limit reached (60 minutes). "
            "Create a new websocket connection to continue.",
            "type": "invalid_request_error",
            "param": None,
            "code": LIMIT,
        },
    }


def test_a_running_turn_finishes_undisturbed_and_then_the_client_is_told() -> None:
    made = connection()
    made.receive(create(), now=OPENED)

    assert made.time_is_up() == []
    assert said(made.turn_ended(None, now=END + 5)) == [("error", LIMIT, None), ("close", 1000)]


def test_what_waits_is_refused_in_its_lane_s_turn() -> None:
    made = connection()
    for lane in (None, None, None, "a", "a"):
        made.receive(create(lane), now=OPENED)

    assert made.time_is_up() == []
    assert said(made.turn_ended("a", now=END)) == [("error", LIMIT, "a")]
    assert said(made.turn_ended(None, now=END)) == [("error", LIMIT, None), ("error", LIMIT, None), ("close", 1000)]


@pytest.mark.parametrize(("now", "answer"), [(END - 0.001, [("start", "a")]), (END, [("error", LIMIT, "a")])])
def test_the_age_counts_even_when_the_timer_is_late(now: float, answer: list[Any]) -> None:
    made = connection()
    made.receive(create("b"), now=OPENED)

    assert said(made.receive(create("a"), now=now)) == answer


def test_a_waiting_turn_does_not_start_after_the_end() -> None:
    made = connection()
    made.receive(create(), now=OPENED)
    made.receive(create(), now=OPENED)

    assert said(made.turn_ended(None, now=END)) == [("error", LIMIT, None), ("close", 1000)]


def test_the_end_stays_the_end_whatever_the_clock_says() -> None:
    made = connection()
    made.receive(create("b"), now=OPENED)
    made.time_is_up()

    assert said(made.receive(create("a"), now=END - 1)) == [("error", LIMIT, "a")]


def test_nothing_is_said_after_the_close() -> None:
    made = connection()
    made.time_is_up()

    assert made.time_is_up() == []
    assert made.receive(create(), now=END) == []
    assert made.receive("{", now=END) == []


class ConnectionMachine(RuleBasedStateMachine):
    """The connection against a model made of plain queues."""

    LIMITS = Limits(active_turns=3, lane_names=4, queued_turns=2, connection_seconds=60)

    def __init__(self) -> None:
        super().__init__()
        self.connection = Connection(self.LIMITS, opened_at=0)
        self.now = 0.0
        self.waiting: dict[str | None, deque[str]] = {}
        self.running: dict[str | None, str] = {}
        self.names: set[str] = set()
        self.count = 0
        self.is_closed = False
        self.errors_told = 0

    lanes = Bundle("lanes")

    @rule(target=lanes, name=st.sampled_from([None, "a", "b", "c", "d", "e"]))
    def name_lane(self, name: str | None) -> str | None:
        return name

    @rule(lane=lanes, valid=st.booleans())
    def receive(self, lane: str | None, valid: bool) -> None:
        self.count += 1
        tag = f"m{self.count}"
        fields: dict[str, Any] = {"model": tag} if valid else {"previous_response_id": tag, "input": 5}
        commands = self.connection.receive(create(lane, **fields), now=self.now)
        if self.is_closed:
            assert commands == []
            return
        queue = self.waiting.setdefault(lane, deque())
        if len(queue) >= self.LIMITS.queued_turns:
            assert said(commands) == [("error", "rate_limit_exceeded", lane)]
        elif lane is not None and lane not in self.names and len(self.names) >= self.LIMITS.lane_names:
            assert said(commands) == [("error", "websocket_stream_limit_reached", lane)]
        else:
            if lane is not None:
                self.names.add(lane)
            queue.append(tag)
            self.obey(commands)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        lane = data.draw(st.sampled_from(sorted(self.running, key=str)))
        del self.running[lane]
        self.obey(self.connection.turn_ended(lane, now=self.now))

    @rule(seconds=st.sampled_from([1.0, 30.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.now >= 60)
    @rule()
    def time_is_up(self) -> None:
        self.obey(self.connection.time_is_up())

    @rule(frame=st.sampled_from(["{", "[]", '{"type":"x"}', create("")]))
    def nonsense(self, frame: str) -> None:
        commands = self.connection.receive(frame, now=self.now)

        assert [type(command) for command in commands] == ([] if self.is_closed else [Send])

    def obey(self, commands: list[Command]) -> None:
        is_over = self.now >= self.LIMITS.connection_seconds
        for command in commands:
            assert not self.is_closed, "a command after the close"
            if isinstance(command, StartTurn):
                assert not is_over
                assert command.lane not in self.running, "two turns at once in one lane"
                tag = self.waiting[command.lane].popleft()
                made = command.create
                is_this = made.model if isinstance(made, ResponseCreate) else made.previous_response_id
                assert is_this == tag, "not in order of arrival"
                self.running[command.lane] = tag
            elif isinstance(command, Close):
                assert command.code == 1000
                assert not self.running
                assert not any(self.waiting.values())
                assert self.errors_told > 0, "closed without a word"
                self.is_closed = True
            else:
                assert is_over
                event = json.loads(command.frame)
                assert event["error"]["code"] == LIMIT
                lane = event.get("stream_id")
                assert lane not in self.running, "an error beside a running turn"
                if self.waiting.get(lane):
                    self.waiting[lane].popleft()
                self.errors_told += 1
        if is_over:
            assert self.is_closed == (not self.running and not any(self.waiting.values()))

    @invariant()
    def as_many_run_as_may(self) -> None:
        assert self.connection.active_turns == len(self.running) <= self.LIMITS.active_turns
        if self.now < self.LIMITS.connection_seconds and len(self.running) < self.LIMITS.active_turns:
            assert all(lane in self.running for lane, queue in self.waiting.items() if queue)


ConnectionMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestConnection = ConnectionMachine.TestCase
