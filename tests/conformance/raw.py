"""A client without an SDK: frames as they are, recorded, and HTTP as it is."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.described import check_answer, check_event
from tests.live import Server

Event = dict[str, Any]

TERMINAL = ("response.completed", "response.incomplete", "response.failed", "error")
SECONDS = 60.0
"""For any one answer; nothing here takes a tenth of it, if the machine is not busy."""


class Door:
    """Both doors of one server, with one key."""

    def __init__(self, server: Server, key: str) -> None:
        self.server = server
        self.headers = {"Authorization": f"Bearer {key}"}

    @asynccontextmanager
    async def socket(
        self, *, path: str = "", headers: dict[str, str] | None = None, **options: Any
    ) -> AsyncIterator["Socket"]:
        """A socket; ``path`` is put behind the usual URL, ``options`` are those of ``websockets``."""
        options = {"compression": None, "max_size": None, **options}
        url = self.server.socket_url + path
        async with connect(url, additional_headers={**self.headers, **(headers or {})}, **options) as connection:
            yield Socket(connection)

    @asynccontextmanager
    async def http(self) -> AsyncIterator[aiohttp.ClientSession]:
        """A client; URLs begin with ``/v1/``."""
        timeout = aiohttp.ClientTimeout(total=SECONDS)
        async with aiohttp.ClientSession(self.server.url, headers=self.headers, timeout=timeout) as client:
            yield client

    async def post(self, model: str = "scripted", **fields: Any) -> tuple[int, Event]:
        """(status, body) of ``POST /v1/responses``."""
        async with self.http() as client, client.post("/v1/responses", json={"model": model, **fields}) as answer:
            return await described("post", answer)

    async def compact(self, model: str | None = "scripted", **fields: Any) -> tuple[int, Event]:
        """(status, body) of ``POST /v1/responses/compact``."""
        body = {"model": model, **fields}
        async with self.http() as client, client.post("/v1/responses/compact", json=body) as answer:
            return await described("post", answer)

    async def get(self, path: str) -> tuple[int, Event]:
        """(status, body) of ``GET /v1/responses/{path}``."""
        async with self.http() as client, client.get(f"/v1/responses/{path}") as answer:
            return await described("get", answer)

    async def delete(self, response_id: str) -> tuple[int, Event]:
        async with self.http() as client, client.delete(f"/v1/responses/{response_id}") as answer:
            return await described("delete", answer)


async def described(method: str, answer: aiohttp.ClientResponse) -> tuple[int, Event]:
    """(status, body) of an answer that is as its route is described."""
    body = await answer.json()
    check_answer(method, answer.url.path, answer.status, body)
    return answer.status, body


class Socket:
    """One WebSocket; ``sent`` and ``received`` are its record."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.sent: list[Event] = []
        self.received: list[Event] = []

    async def send(self, event: Event) -> None:
        self.sent.append(event)
        await self.connection.send(json.dumps(event))

    async def create(self, model: str = "scripted", **fields: Any) -> None:
        await self.send({"type": "response.create", "model": model, **fields})

    async def receive(self) -> Event:
        async with asyncio.timeout(SECONDS):
            frame = await self.connection.recv()
        assert isinstance(frame, str), "every frame is text"
        event: Event = json.loads(frame)
        check_event(event)
        self.received.append(event)
        return event

    async def rest_of_turn(self) -> list[Event]:
        """Everything up to the next terminal event."""
        events = [await self.receive()]
        while events[-1]["type"] not in TERMINAL:
            events.append(await self.receive())
        return events

    async def turn(self, model: str = "scripted", **fields: Any) -> list[Event]:
        """A create and all that comes of it, alone on the socket."""
        await self.create(model, **fields)
        return await self.rest_of_turn()

    async def wait_for(self, kind: str) -> Event:
        event = await self.receive()
        while event["type"] != kind:
            event = await self.receive()
        return event

    async def refused(self, model: str = "scripted", **fields: Any) -> Event:
        """A create that is answered by nothing but an error."""
        events = await self.turn(model, **fields)
        assert [event["type"] for event in events] == ["error"]
        return events[0]

    async def close_code(self) -> int | None:
        """Read until the server closes."""
        try:
            while True:
                await self.receive()
        except ConnectionClosed:
            return self.connection.close_code

    async def drop(self) -> None:
        """Leave as a killed process does: no close frame, the TCP connection reset."""
        self.connection.transport.abort()
        await self.connection.wait_closed()


def response_of(events: list[Event]) -> dict[str, Any]:
    """The final Response of a turn that completed."""
    assert events[-1]["type"] == "response.completed", events[-1]
    return events[-1]["response"]


def text_of(response: dict[str, Any]) -> str:
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(part["text"] for part in parts)


def calls_in(response: dict[str, Any]) -> list[dict[str, Any]]:
    return [item for item in response["output"] if item["type"] in ("function_call", "custom_tool_call")]


def outputs_for(response: dict[str, Any], output: str = "sunny, 21 degrees") -> list[dict[str, Any]]:
    """One output for every call of a response."""
    return [
        {"type": f"{call['type']}_output", "call_id": call["call_id"], "output": output} for call in calls_in(response)
    ]


def sse_events(lines: Iterable[str]) -> list[tuple[str, str]]:
    """(event name, data) of each server-sent event."""
    events: list[tuple[str, str]] = []
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            events.append((name, line.removeprefix("data: ")))
            name = ""
        else:
            assert line == "", f"neither event, data nor the end of one: {line!r}"
    return events
