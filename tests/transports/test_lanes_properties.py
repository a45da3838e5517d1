"""Lanes under random use: the real consumer and serving code, a scripted engine that can be held, and a model of both.

Only one lane moves at a time, all others are idle or held at a gate inside of their engine call: so what must come
next is known, whatever the order of steps. The promises:

- numbers of a response rise without a gap, it has one terminal event, and nothing but ``response.steer.pending``
  comes after that;
- a stored response whose end was told is continued from elsewhere, with exactly the context that was told;
- one whose end was not told never looks complete to anybody;
- every response is in exactly one usage record.
"""

import asyncio
import contextlib
import re
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from responses_ws.engines.base import ChatRequest
from responses_ws.engines.registry import registry
from responses_ws.models import ApiKey, UsageRecord
from responses_ws.protocol.sampling import Delta
from responses_ws.runtime import background
from responses_ws.stores import rows
from responses_ws.stores.memory import hot_tier
from responses_ws.testing import ResponsesCommunicator, ScriptedEngine
from tests.protocol.grammar import Grammar, check_types

LANES = [None, "a", "b"]
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
# What is asked for, by how it must end.
WORDS = {
    "text": "hello",
    "warm-up": "hello",
    "orphan": "",
    "call": "The weather in Oslo?",
    "refused": "!fail overloaded",
    "broken": "!tokens 20 !break 10",
    "held": "!tokens 40 hold-{number}",
    # Longer than what the engine says before the gate: it is held in the middle of the arguments.
    "held call": '!call get_weather {{"city": "' + "Oslo " * 40 + '"}} hold-{number}',
}
CONTINUES = ["newest", "newest", "newest", "other lane", "any", "nobody", "no"]
ENDS = {"response.completed": "completed", "response.incomplete": "incomplete", "response.failed": "failed"}
NOT_FOUND = "previous_response_not_found"

Projection = tuple[str, ...]


class HeldEngine(ScriptedEngine):
    """Waits behind its first deltas where the newest user text says ``hold-N``, until gate N is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: dict[str, asyncio.Event] = {}

    @contextlib.asynccontextmanager
    async def chat(self, request: ChatRequest) -> AsyncIterator[AsyncIterator[list[Delta]]]:  # type: ignore[override]
        newest = next(message for message in request.prompt.newest_first() if message.get("role") == "user")
        held = re.search(r"hold-(\d+)", str(newest["content"]))
        # After a tool's output the question is still the newest user text; its gate is open by then.
        gate = self.gates.setdefault(held[1], asyncio.Event()) if held else None
        async with super().chat(request) as batches:
            yield self._held(batches, gate)

    async def _held(
        self, batches: AsyncIterator[list[Delta]], gate: asyncio.Event | None
    ) -> AsyncIterator[list[Delta]]:
        async for batch in batches:
            yield batch
            if gate is not None:
                await gate.wait()


class Asked:
    """A create on its way, and what has come of it."""

    def __init__(self, kind: str, number: int, parent: str | None, store: bool, given: list[dict[str, Any]]) -> None:
        self.kind = kind
        self.number = number
        self.parent = parent
        self.store = store
        self.given = given
        self.id: str | None = None
        self.context: list[Projection] = []
        """Of its parent, and its input."""
        self.steers: list[str] = []
        self.grammar = Grammar()
        self.is_waiting = False
        """For outputs to be appended."""


class Told:
    """A response whose end was told."""

    def __init__(self, response: dict[str, Any], context: list[Projection], store: bool) -> None:
        self.response = response
        self.context = context
        self.store = store
        self.kept: list[Projection] = []
        """Steers that wait for the next create."""

    @property
    def open_calls(self) -> list[str]:
        answered = {item[1] for item in self.context if item[0] == "function_call_output"}
        return [item[1] for item in self.context if item[0] == "function_call" and item[1] not in answered]


def projected(item: dict[str, Any]) -> Projection:
    if item["type"] == "message":
        content = item["content"]
        return "message", item["role"], content if isinstance(content, str) else "".join(p["text"] for p in content)
    return item["type"], item["call_id"]


class Sockets(RuleBasedStateMachine):
    """One connection after another of one key."""

    runner: asyncio.Runner
    api_key: ApiKey
    engine: HeldEngine

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[str, Told] = {}
        """All responses that ended well, by id."""
        self.untold: list[str] = []
        """Ids whose responses failed, or were cut off with their socket."""
        self.slots: dict[str | None, str] = {}
        self.lanes: dict[str | None, deque[Asked]] = {lane: deque() for lane in LANES}
        self.engine_calls = 0
        """Records that there must be."""
        self.count = 0
        self.first_record = UsageRecord.objects.count()
        self.may_append = False
        self.engine.gates.clear()

    def run(self, work: Any) -> Any:
        return self.runner.run(work)

    @initialize(may_append=st.booleans())
    def connect(self, may_append: bool) -> None:
        self.may_append = may_append
        headers = {"OpenAI-Beta": "responses_rollout=v1"} if may_append else {}
        self.socket = ResponsesCommunicator(self.api_key.secret, headers=headers)
        self.run(self.socket.__aenter__())

    @rule(data=st.data())
    def step(self, data: Any) -> None:
        # One rule with weights: left to itself, hypothesis gives examples to one or two rules each.
        moves = [self.create] * 6 + [self.disconnect]
        moves += [self.release] * 3 if self.held() else []
        moves += [self.append] * 3 if self.waiting() else []
        if not self.may_append:
            moves += [self.steer] * 3 if self.held() else []
            moves += [self.steer_too_late] if self.told else []
        data.draw(st.sampled_from(moves), label="move")(data)

    def create(self, data: Any) -> None:
        lane = data.draw(st.sampled_from(LANES), label="lane")
        kind = data.draw(st.sampled_from([*WORDS, "text", "call", "held", "held call", "held call"]), label="kind")
        store = data.draw(st.booleans(), label="store")
        continues = data.draw(st.sampled_from(CONTINUES), label="continues")
        gives_outputs = data.draw(st.sampled_from([True, True, True, False]), label="gives outputs")
        parent = self.choose_parent(lane, continues, data)
        self.count += 1
        given: list[dict[str, Any]] = []
        if parent in self.told and gives_outputs:
            given = [
                {"type": "function_call_output", "call_id": call_id, "output": "sunny"}
                for call_id in self.told[parent].open_calls
            ]
        if kind == "orphan":
            given = [{"type": "function_call_output", "call_id": "call_nobody", "output": ""}]
        else:
            words = WORDS[kind].format(number=self.count)
            given.append({"type": "message", "role": "user", "content": words})
        asked = Asked(kind, self.count, parent, store, given)
        self.lanes[lane].append(asked)
        fields: dict[str, Any] = {"model": "scripted", "store": store, "input": given}
        fields |= {"stream_id": lane} if lane is not None else {}
        fields |= {"previous_response_id": parent} if parent is not None else {}
        fields |= {"tools": [WEATHER]} if "call" in kind else {}
        fields |= {"generate": False} if kind == "warm-up" else {}
        self.run(self.socket.create(**fields))
        if len(self.lanes[lane]) == 1:
            self.run(self.follow(lane))

    def choose_parent(self, lane: str | None, continues: str, data: Any) -> str | None:
        if continues == "nobody":
            return "resp_" + "0" * 48
        if continues == "newest":
            return self.slots.get(lane)
        known = list(self.slots.values()) if continues == "other lane" else self.known_ids()
        if continues == "no" or not known:
            return None
        return str(data.draw(st.sampled_from(known), label="parent"))

    def known_ids(self) -> list[str]:
        running = [queue[0].id for queue in self.lanes.values() if queue and queue[0].id]
        return [*self.told, *self.untold, *running]

    def release(self, data: Any) -> None:
        lane = data.draw(st.sampled_from(self.held()), label="lane")
        asked = self.lanes[lane][0]
        self.engine.gates[str(asked.number)].set()
        self.run(self.follow(lane))

    def held(self) -> list[str | None]:
        return [lane for lane, queue in self.lanes.items() if queue and queue[0].id and not queue[0].is_waiting]

    def waiting(self) -> list[str | None]:
        return [lane for lane, queue in self.lanes.items() if queue and queue[0].is_waiting]

    def steer(self, data: Any) -> None:
        lane = data.draw(st.sampled_from(self.held()), label="lane")
        asked = self.lanes[lane][0]
        self.run(self.say_steer(asked.id, "stop it"))
        event = self.run(self.next_event())
        assert event["type"] == "response.steer.accepted"
        asked.grammar.feed(event)
        asked.steers.append("stop it")
        if asked.kind == "held":
            # It stops there; a call is finished first.
            self.run(self.follow(lane))

    def steer_too_late(self, data: Any) -> None:
        response_id = data.draw(st.sampled_from(list(self.told)), label="response")
        self.run(self.say_steer(response_id, "too late"))
        event = self.run(self.next_event())
        assert event["type"] == "response.steer.failed"
        assert event["error"]["code"] in ("response_already_completed", "response_not_found")

    def append(self, data: Any) -> None:
        is_right = data.draw(st.booleans(), label="is right")
        lane = data.draw(st.sampled_from(self.waiting()), label="lane")
        asked = self.lanes[lane][0]
        call_id = asked.context[-1][1] if is_right else "call_nobody"
        item = {"type": "function_call_output", "call_id": call_id, "output": "sunny"}
        self.run(self.socket.send({"type": "response.append", "response_id": asked.id, "input": [item]}))
        if not is_right:
            error = self.run(self.next_event())
            assert (error["type"], error["status"]) == ("error", 400)
            return
        asked.is_waiting = False
        asked.context.append(projected(item))
        self.run(self.follow(lane))

    def disconnect(self, data: Any) -> None:
        self.leave()
        if data.draw(st.booleans(), label="loses memory"):
            # As after a restart, or in another worker: what is stored is found all the same.
            hot_tier.clear()
        self.connect(data.draw(st.booleans(), label="may append"))

    def leave(self) -> None:
        for queue in self.lanes.values():
            if queue and queue[0].id:
                self.untold.append(queue[0].id)
            queue.clear()
        self.slots.clear()
        self.run(self.socket.__aexit__())
        self.run(background.settle())

    def teardown(self) -> None:
        if not hasattr(self, "socket"):
            return
        self.leave()
        self.check_records()
        hot_tier.clear()
        self.check_stores()
        self.connect(False)
        self.run(self.check_from_elsewhere())
        self.run(self.socket.__aexit__())
        self.run(background.settle())

    # What must come of it.

    async def say_steer(self, response_id: str | None, text: str) -> None:
        await self.socket.send({"type": "response.steer", "previous_response_id": response_id, "input": text})

    async def next_event(self) -> dict[str, Any]:
        event = await self.socket.receive()
        # Errors and steers are a socket's own, the wait for outputs is ours: no stream has them.
        if event["type"] != "error" and "steer" not in event and event["type"] != "response.done":
            check_types(event)
        return event

    async def follow(self, lane: str | None) -> None:
        """Read what one lane does until it is idle, held, or waits for outputs."""
        queue = self.lanes[lane]
        while queue:
            asked = queue[0]
            if asked.id is None:
                code = self.predicted_refusal(lane, asked)
                if code is not None:
                    event = await self.next_event()
                    assert (event["type"], event.get("stream_id")) == ("error", lane)
                    assert event["error"]["code"] == code
                    self.evict(lane, asked)
                    queue.popleft()
                    continue
                await self.begin(lane, asked)
            if await self.goes_on(lane, asked):
                return

    def predicted_refusal(self, lane: str | None, asked: Asked) -> str | None:
        """The code of the error that this create must get now; None: it begins. Notes its context."""
        parent = self.told.get(asked.parent or "")
        kept: list[Projection] = []
        if asked.parent is not None:
            is_here = asked.parent in self.slots.values()
            if parent is None or not (is_here or parent.store):
                return NOT_FOUND
            asked.context = list(parent.context)
            kept = parent.kept if is_here else []
        outputs = [projected(item) for item in asked.given if item["type"] == "function_call_output"]
        others = [projected(item) for item in asked.given if item["type"] == "message"]
        if sorted(item[1] for item in outputs) != sorted(parent.open_calls if parent else []):
            return "invalid_request_error"
        asked.context += [*outputs, *kept, *others]
        if asked.kind == "refused":
            self.engine_calls += 1
            return "server_is_overloaded"
        return None

    async def begin(self, lane: str | None, asked: Asked) -> None:
        created, progress = await self.next_event(), await self.next_event()
        for event in (created, progress):
            assert event.get("stream_id") == lane
            asked.grammar.feed(event)
        assert created["response"]["previous_response_id"] == asked.parent
        asked.id = created["response"]["id"]
        self.engine_calls += 1

    async def goes_on(self, lane: str | None, asked: Asked) -> bool:
        """Read on. True when the lane has to be moved by somebody first."""
        gate = self.engine.gates.get(str(asked.number))
        is_held = asked.kind.startswith("held") and not (gate and gate.is_set())
        said = asked.grammar.next_number
        while True:
            if is_held and not (asked.steers and asked.kind == "held") and self.has_reached_gate(asked):
                return True
            event = await self.next_event()
            assert event.get("stream_id") == lane, f"{event['type']} of another lane, behind number {said}"
            asked.grammar.feed(event)
            if event["type"] == "response.done":
                asked.is_waiting = True
                asked.context += [projected(item) for item in asked.grammar.items]
                return True
            if event["type"] in ENDS:
                await self.end(lane, asked, event["response"])
                return False

    def has_reached_gate(self, asked: Asked) -> bool:
        """Whether everything is read that the engine says before its gate: sixteen tokens."""
        return asked.grammar.deltas >= 16

    async def end(self, lane: str | None, asked: Asked, response: dict[str, Any]) -> None:
        queue = self.lanes[lane]
        queue.popleft()
        assert asked.id is not None
        is_steered = bool(asked.steers) and asked.kind == "held"
        wanted = "failed" if asked.kind == "broken" else "incomplete" if is_steered else "completed"
        assert response["status"] == wanted
        if wanted == "failed":
            self.untold.append(asked.id)
            self.evict(lane, asked)
            return
        context = list(asked.context)
        told = {item for item in context if item[0].startswith("function_call")}
        context += [item for item in map(projected, response["output"]) if item not in told]
        self.told[asked.id] = Told(response, context, asked.store)
        self.slots[lane] = asked.id
        if is_steered:
            # Ahead of whatever waits in the lane.
            given = [{"type": "message", "role": "user", "content": text} for text in asked.steers]
            queue.appendleft(Asked("text", 0, asked.id, asked.store, given))
            return
        for text in asked.steers:
            pending = await self.next_event()
            assert pending["type"] == "response.steer.pending"
            asked.grammar.feed(pending)
            self.told[asked.id].kept.append(("message", "user", text))

    def evict(self, lane: str | None, asked: Asked) -> None:
        if asked.parent is not None and self.slots.get(lane) == asked.parent:
            del self.slots[lane]

    # What must be left of it.

    def check_records(self) -> None:
        records = list(UsageRecord.objects.order_by("id")[self.first_record :])
        by_id = {record.response_id: record for record in records}
        assert len(by_id) == len(records) == self.engine_calls
        for response_id, told in self.told.items():
            record = by_id[response_id]
            assert record.status == told.response["status"]
            assert record.output_tokens == told.response["usage"]["output_tokens"]
        for response_id in self.untold:
            assert by_id[response_id].status in ("cancelled", "failed")

    def check_stores(self) -> None:
        for response_id in self.known_ids():
            stored = rows.load(self.api_key.project_id, response_id)
            told = self.told.get(response_id)
            if told is None or not told.store:
                assert stored is None
                continue
            assert stored is not None
            assert stored.response == told.response
            assert [projected(item) for item in stored.items] == told.context

    async def check_from_elsewhere(self) -> None:
        for response_id in self.known_ids():
            told = self.told.get(response_id)
            given: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
            if told is not None:
                given = [
                    {"type": "function_call_output", "call_id": call_id, "output": "sunny"}
                    for call_id in told.open_calls
                ] + given
            fields = {"model": "scripted", "store": False, "previous_response_id": response_id, "input": given}
            *_, last = await self.socket.turn(**fields)
            if told is not None and told.store:
                assert last["response"]["status"] == "completed"
            else:
                assert last["error"]["code"] == NOT_FOUND


def run_sockets(api_key: ApiKey, **how: Any) -> None:
    engine = HeldEngine()
    registry.install("scripted", engine)
    with asyncio.Runner() as runner:

        class Machine(Sockets):
            pass

        Machine.runner, Machine.api_key, Machine.engine = runner, api_key, engine
        checks = list(HealthCheck)
        run_state_machine_as_test(Machine, settings=settings(deadline=None, suppress_health_check=checks, **how))


def test_lanes_keep_their_promises(api_key: ApiKey) -> None:
    run_sockets(api_key, max_examples=10, stateful_step_count=30, derandomize=True)


@pytest.mark.chaos
def test_lanes_keep_their_promises_for_long(api_key: ApiKey) -> None:
    """Other steps at every run. Not made shorter where it fails: that would take an hour."""
    run_sockets(api_key, max_examples=200, stateful_step_count=60, phases=(Phase.generate,), database=None)
