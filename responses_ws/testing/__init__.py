"""What people who extend us test with: fakes, and contracts to subclass."""

import asyncio
import contextlib
import unittest
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
from asgiref.testing import ApplicationCommunicator

from responses_ws.engines.base import ChatRequest, Engine, EngineError
from responses_ws.engines.script import Call, Plan, pieces_of
from responses_ws.engines.scripted import Scripted
from responses_ws.protocol.sampling import CallArguments, CallEnd, CallStart, Delta, Finished, Started
from responses_ws.rendering.chat import ChatPrompt

from .rendering import RenderedChain, RendererContract
from .safety import ClassifierContract
from .tokens import TokenContract, collect_tokens, ids_in, token_request
from .tools import ToolContract

__all__ = [
    "Call",
    "ClassifierContract",
    "EngineContract",
    "Plan",
    "RenderedChain",
    "RendererContract",
    "ResponsesCommunicator",
    "ScriptedEngine",
    "TokenContract",
    "ToolContract",
    "chat_request",
    "collect",
    "collect_tokens",
    "ids_in",
    "token_request",
]

_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "error"})


class ScriptedEngine(Scripted):
    """A `Scripted` that tells ``answers`` first, in order, and goes by its rules after them.

    It is asked in messages, where a word is a token, unless the option ``TOKEN_IDS`` says otherwise.
    An answer is a text or a `Plan`. ``requests`` are the calls it has had. Put it to use with
    ``registry.install("main", ScriptedEngine("Hello"))``.
    """

    def __init__(self, *answers: str | Plan, name: str = "scripted", options: Mapping[str, Any] | None = None) -> None:
        super().__init__(name, {"TOKEN_IDS": False, **(options or {})})
        self.answers = list(answers)
        self.requests: list[ChatRequest] = []

    def plan(self, request: ChatRequest) -> Plan:
        self.requests.append(request)
        if not self.answers:
            return super().plan(request)
        answer = self.answers.pop(0)
        return Plan(text=pieces_of(answer)) if isinstance(answer, str) else answer


def chat_request(text: str, *, model: str = "scripted", **fields: Any) -> ChatRequest:
    """A request whose only message is the user's ``text``. ``tools`` may be a list of chat-completions tools."""
    prompt = fields.pop("prompt", None) or ChatPrompt().extended([{"role": "user", "content": text}])
    if isinstance(fields.get("tools"), list):
        fields["tools"] = msgspec.json.encode(fields["tools"])
    return ChatRequest(request_id=fields.pop("request_id", "resp_test"), model=model, prompt=prompt, **fields)


def call(engine: Engine, request: ChatRequest) -> AbstractAsyncContextManager[AsyncIterator[list[Delta]]]:
    """One call, in items to an engine that takes them, in messages to others."""
    return engine.respond(request) if engine.capabilities.items else engine.chat(request)


async def collect(engine: Engine, request: ChatRequest) -> list[Delta]:
    """All deltas of one call."""
    async with call(engine, request) as answer:
        return [delta async for deltas in answer for delta in deltas]


class ResponsesCommunicator:
    """A WebSocket client in the test's own process, without a server.

    ``async with ResponsesCommunicator(key) as socket: events = await socket.turn(model="scripted", input="Hi")``

    ``application`` defaults to this app's routes. A refused handshake leaves ``refusal`` set, ``(status, body)``, as
    a server that can answer in HTTP would give it; with ``can_refuse=False`` the communicator plays one that cannot.
    ``headers`` are those of the answer to the handshake, their names in lower case.
    """

    def __init__(
        self,
        key: str | None = None,
        *,
        path: str = "/v1/responses",
        headers: Mapping[str, str] | None = None,
        application: Any = None,
        can_refuse: bool = True,
        seconds_to_answer: float = 10.0,
    ) -> None:
        if application is None:
            from responses_ws.routing import websocket_application

            application = websocket_application
        given = {**({"Authorization": f"Bearer {key}"} if key else {}), **(headers or {})}
        protocols = next((value for name, value in given.items() if name.lower() == "sec-websocket-protocol"), "")
        scope = {
            "type": "websocket",
            "path": path,
            "query_string": b"",
            "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
            "subprotocols": [word.strip() for word in protocols.split(",") if word.strip()],
            "extensions": {"websocket.http.response": {}} if can_refuse else {},
        }
        self._application = ApplicationCommunicator(application, scope)
        self._seconds = seconds_to_answer
        self.refusal: tuple[int, dict[str, Any]] | None = None
        self.headers: dict[str, str] = {}
        self.subprotocol: str | None = None

    async def __aenter__(self) -> "ResponsesCommunicator":
        await self._application.send_input({"type": "websocket.connect"})
        message = await self._application.receive_output(self._seconds)
        self.subprotocol = message.get("subprotocol")
        self.headers = {name.decode(): value.decode() for name, value in message.get("headers", ())}
        if message["type"] == "websocket.http.response.start":
            body = await self._application.receive_output(self._seconds)
            self.refusal = (message["status"], msgspec.json.decode(body["body"]))
        else:
            assert message["type"] == "websocket.accept", message
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Leave without a close frame, as clients do, and wait until the server has noticed."""
        if self.refusal is None:
            await self._application.send_input({"type": "websocket.disconnect", "code": 1006})
        await self._application.wait(self._seconds)

    async def send(self, event: Mapping[str, Any] | str | bytes) -> None:
        """Send an event, or a frame as it is."""
        assert self.refusal is None, f"the handshake was refused: {self.refusal}"
        if isinstance(event, bytes):
            await self._application.send_input({"type": "websocket.receive", "bytes": event})
            return
        text = event if isinstance(event, str) else msgspec.json.encode(event).decode()
        await self._application.send_input({"type": "websocket.receive", "text": text})

    async def create(self, **fields: Any) -> None:
        """Send a ``response.create``."""
        await self.send({"type": "response.create", **fields})

    async def receive(self) -> dict[str, Any]:
        """The next event; a close is ``{"type": "websocket.close", "code": …}``."""
        message = await self._application.receive_output(self._seconds)
        if message["type"] == "websocket.send":
            event: dict[str, Any] = msgspec.json.decode(message["text"])
            return event
        return dict(message)

    async def receive_turn(self) -> list[dict[str, Any]]:
        """Events up to and with the next terminal one."""
        events = [await self.receive()]
        while events[-1]["type"] not in _ENDS:
            events.append(await self.receive())
        return events

    async def turn(self, **fields: Any) -> list[dict[str, Any]]:
        """Send a ``response.create`` and collect its events."""
        await self.create(**fields)
        return await self.receive_turn()

    async def is_silent(self) -> bool:
        """Whether nothing more comes."""
        return bool(await self._application.receive_nothing())


_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class EngineContract:
    """What every engine promises. Subclass it in your tests, as ``class TestMyEngine(EngineContract)``.

    Give ``engine()`` and ``model``, and the requests below as far as your engine can be brought to them; what
    returns None is skipped. Needs pytest-asyncio in auto mode, or any runner of async test methods.
    """

    model: str
    seconds_to_answer = 30.0

    def engine(self) -> AbstractAsyncContextManager[Engine]:
        """A fresh engine, closed at the end of the block."""
        raise NotImplementedError

    def plain(self) -> ChatRequest:
        """Is answered with a short text."""
        return chat_request("Say hello.", model=self.model, max_output_tokens=64)

    def endless(self) -> ChatRequest | None:
        """Is answered at a length that outlasts the test."""
        return None

    def limited(self) -> ChatRequest | None:
        """Asks for more than its ``max_output_tokens``."""
        return None

    def refused(self) -> ChatRequest | None:
        """Is refused before it is accepted."""
        return None

    def broken(self) -> ChatRequest | None:
        """Is accepted, and breaks midway."""
        return None

    def two_calls(self, tools: list[dict[str, Any]]) -> ChatRequest | None:
        """Is answered with two parallel calls of ``get_weather``."""
        return None

    async def wait_until_free(self, engine: Engine) -> None:
        """Returns when the engine itself knows that a call was left. The default trusts it."""

    async def test_an_answer_ends_with_its_only_finished(self) -> None:
        async with self._running() as engine:
            deltas = await collect(engine, self.plain())

        assert isinstance(deltas[-1], Finished)
        assert [type(delta) for delta in deltas].count(Finished) == 1

    async def test_no_step_is_empty_and_started_comes_first(self) -> None:
        async with self._running() as engine:
            async with call(engine, self.plain()) as answer:
                steps = [deltas async for deltas in answer]

        assert all(steps)
        starts = [index for index, delta in enumerate(sum(steps, [])) if isinstance(delta, Started)]
        assert starts in ([], [0])

    async def test_usage_is_a_partition(self) -> None:
        async with self._running() as engine:
            deltas = await collect(engine, self.plain())

        finished = deltas[-1]
        assert isinstance(finished, Finished)
        if finished.usage is None:
            assert not engine.capabilities.exact_usage
            return
        assert finished.usage == finished.usage.clamped()
        if engine.capabilities.exact_usage:
            assert sum(getattr(delta, "tokens", 0) for delta in deltas) == finished.usage.output_tokens

    async def test_answers_side_by_side_do_not_mix(self) -> None:
        async with self._running() as engine:
            answers = await asyncio.gather(*(collect(engine, self.plain()) for _ in range(4)))

        assert [[type(delta) for delta in deltas].count(Finished) for deltas in answers] == [1, 1, 1, 1]

    async def test_the_output_limit_is_kept(self) -> None:
        request = _or_skip(self.limited())

        async with self._running() as engine:
            deltas = await collect(engine, request)

        finished = deltas[-1]
        assert isinstance(finished, Finished)
        assert finished.reason == "length"
        if finished.usage is not None:
            assert finished.usage.output_tokens == request.max_output_tokens

    async def test_leaving_the_block_frees_the_engine(self) -> None:
        request = _or_skip(self.endless())

        async with self._running() as engine:
            async with call(engine, request) as answer:
                await anext(answer)
            await self.wait_until_free(engine)
            deltas = await collect(engine, self.plain())

        assert isinstance(deltas[-1], Finished)

    async def test_cancelling_frees_the_engine(self) -> None:
        request = _or_skip(self.endless())
        first = asyncio.Event()

        async def listen(engine: Engine) -> None:
            async with call(engine, request) as answer:
                async for _ in answer:
                    first.set()

        async with self._running() as engine:
            task = asyncio.create_task(listen(engine))
            await first.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self.wait_until_free(engine)
            deltas = await collect(engine, self.plain())

        assert task.cancelled()
        assert isinstance(deltas[-1], Finished)

    async def test_a_refusal_raises_on_entering(self) -> None:
        request = _or_skip(self.refused())
        entered = False

        async with self._running() as engine:
            try:
                async with call(engine, request):
                    entered = True
            except EngineError as exc:
                refusal: EngineError | None = exc
            else:
                refusal = None

        assert refusal is not None
        assert not entered

    async def test_a_break_raises_after_what_was_made(self) -> None:
        request = _or_skip(self.broken())
        deltas: list[Delta] = []
        error: EngineError | None = None

        async with self._running() as engine:
            async with call(engine, request) as answer:
                try:
                    async for some in answer:
                        deltas += some
                except EngineError as exc:
                    error = exc

        assert error is not None
        assert deltas
        assert not any(isinstance(delta, Finished) for delta in deltas)

    async def test_parallel_calls_have_an_index_each(self) -> None:
        request = _or_skip(self.two_calls([_TOOL]))

        async with self._running() as engine:
            deltas = await collect(engine, request)

        starts = [delta.index for delta in deltas if isinstance(delta, CallStart)]
        ends = [delta.index for delta in deltas if isinstance(delta, CallEnd)]
        arguments = dict.fromkeys(starts, "")
        for delta in deltas:
            if isinstance(delta, CallArguments):
                arguments[delta.index] += delta.text
        assert starts == [0, 1]
        assert sorted(ends) == [0, 1]
        assert all(isinstance(msgspec.json.decode(text), dict) for text in arguments.values())
        assert isinstance(deltas[-1], Finished) and deltas[-1].reason == "tool_calls"

    async def test_it_lists_its_model_and_is_healthy(self) -> None:
        async with self._running() as engine:
            models = await engine.models()
            health = await engine.health()

        assert self.model in [model.id for model in models]
        assert health.ok

    async def test_closing_twice_is_closing_once(self) -> None:
        async with self._running() as engine:
            await collect(engine, self.plain())

            await engine.aclose()
            await engine.aclose()

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncIterator[Engine]:
        async with asyncio.timeout(self.seconds_to_answer), self.engine() as engine:
            yield engine


def _or_skip(request: ChatRequest | None) -> ChatRequest:
    if request is None:
        raise unittest.SkipTest("this engine cannot be brought to that")
    return request
