"""What is logged of turns: the right ids, whoever runs beside them, and nothing that anybody has said."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import pytest
from asgiref.sync import sync_to_async
from django.db import transaction
from django.test import AsyncClient

from responses_ws.engines.base import Capabilities, ChatRequest, Engine, EngineModel
from responses_ws.engines.chat_errors import refusal
from responses_ws.engines.registry import registry
from responses_ws.models import ApiKey, Organization, Project
from responses_ws.protocol.sampling import Delta
from responses_ws.runtime import background
from responses_ws.runtime.logs import JsonFormatter, access
from responses_ws.testing import ResponsesCommunicator

TENANTS = 200
CANARY = "canary-4711"


class Lines(logging.Handler):
    """Everything that is logged, as the formatter tells it."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(JsonFormatter())
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    def decoded(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]

    def ended(self) -> dict[str, dict[str, Any]]:
        """The lines of turns that have ended, by response."""
        return {line["response_id"]: line for line in self.decoded() if line["message"] == "turn ended"}


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler = Lines()
    root = logging.getLogger()
    root.addHandler(handler)
    before = access.level
    access.setLevel(logging.INFO)
    yield handler
    access.setLevel(before)
    root.removeHandler(handler)


async def post(key: str, **body: Any) -> Any:
    content = msgspec.json.encode({"model": "scripted", **body})
    headers = {"Authorization": f"Bearer {key}"}
    return await AsyncClient().post("/v1/responses", content, content_type="application/json", headers=headers)


async def by_socket(key: str, text: str) -> tuple[str, str]:
    """The ids of a response, and of the handshake."""
    async with ResponsesCommunicator(key, seconds_to_answer=60) as socket:
        events = await socket.turn(model="scripted", input=text)
        return events[-1]["response"]["id"], socket.headers["x-request-id"]


async def by_stream(key: str, text: str) -> tuple[str, str]:
    answer = await post(key, input=text, stream=True)
    events = b"".join([chunk async for chunk in answer.streaming_content])
    created = json.loads(events.split(b"data: ", 1)[1].split(b"\n", 1)[0])
    return created["response"]["id"], answer["x-request-id"]


async def by_post(key: str, text: str) -> tuple[str, str]:
    answer = await post(key, input=text)
    return answer.json()["id"], answer["x-request-id"]


def door(number: int) -> Callable[[str, str], Awaitable[tuple[str, str]]]:
    """Of ten one posts and two stream: the test's client has one thread for views, which these wait in."""
    return by_post if number % 10 == 0 else by_stream if number % 5 == 1 else by_socket


@transaction.atomic
def tenants(organization: Organization) -> list[ApiKey]:
    made = [Project(organization=organization, name=f"project {number}") for number in range(TENANTS)]
    projects = Project.objects.bulk_create(made)
    return [ApiKey.objects.create_with_secret(project=project, name="tests") for project in projects]


async def test_each_line_of_200_interleaved_tenants_has_its_own_ids(transactional_db: None, lines: Lines) -> None:
    organization = await Organization.objects.acreate(name="Acme")
    keys = await sync_to_async(tenants)(organization)

    async def one(number: int) -> tuple[str, str]:
        # Every seventh breaks off, which is a line of its own; the loop comes to all of them in between.
        text = "!tokens 3 !rate 100" + (" !break 2" if number % 7 == 0 else "")
        return await door(number)(keys[number].secret, text)

    ids = await asyncio.gather(*(asyncio.create_task(one(number)) for number in range(TENANTS)))
    await background.settle()

    ended = lines.ended()
    for number, (response_id, stamped) in enumerate(ids):
        line = ended[response_id]
        name = "connection_id" if door(number) is by_socket else "request_id"
        found = (line["project_id"], line["key_id"], line[name], line["status"])
        status = "failed" if number % 7 == 0 else "completed"
        assert found == (keys[number].project_id, keys[number].pk, stamped, status)
    assert len(ended) == TENANTS
    warned = [line for line in lines.decoded() if line["logger"] == "responses_ws.serving.failures"]
    assert len(warned) == len(range(0, TENANTS, 7))
    for line in warned:
        assert f"Response {line['response_id']}:" in line["message"]
        assert line["project_id"] == ended[line["response_id"]]["project_id"]


class Indiscreet(Engine):
    """Fails in words that hold all it was told: as its own, as an upstream's, or by breaking its contract."""

    capabilities = Capabilities(chat=True)

    def chat(self, request: ChatRequest) -> AbstractAsyncContextManager[AsyncIterator[list[Delta]]]:
        heard = b",".join(request.prompt.log)
        if "upstream" in heard.decode():
            raise refusal(500, b'{"error": {"message": "I cannot read ' + heard.replace(b'"', b"'") + b'"}}', {})
        raise RuntimeError(heard.decode())

    async def models(self) -> list[EngineModel]:
        return [EngineModel(id="scripted")]


@pytest.mark.parametrize("how", ["upstream", "contract"])
async def test_prompts_and_keys_are_nowhere_in_the_log(
    api_key: ApiKey, lines: Lines, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    caplog.set_level(logging.DEBUG, "responses_ws")
    registry.install("scripted", Indiscreet("scripted", {}))

    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.turn(model="scripted", input=f"{CANARY} {how}", instructions=CANARY)
        await socket.turn(model="scripted", input=[{"type": CANARY}])
        await socket.send(CANARY)
        await socket.receive()
    await post(api_key.secret, input=f"{CANARY} {how}", stream=True, metadata={"note": CANARY})
    await post(api_key.secret, input=f"{CANARY} {how}")
    await post(f"sk-proj-{CANARY}", input="Hello")
    async with ResponsesCommunicator(f"sk-proj-{CANARY}") as refused:
        assert refused.refusal is not None
    await background.settle()

    text = "\n".join(lines.lines)
    assert CANARY not in text and api_key.secret not in text
    assert len(lines.ended()) == 4, "all that failed were logged"


async def test_a_probe_that_a_turn_began_is_logged_as_nobodys(api_key: ApiKey, lines: Lines) -> None:
    class Sick(Indiscreet):
        async def models(self) -> list[EngineModel]:
            raise KeyError("no list")

    registry.install("scripted", Sick("scripted", {}))
    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.turn(model="scripted", input="Hello")
    await registry.station("scripted").list()

    (line,) = [line for line in lines.decoded() if "does not list its models" in line["message"]]
    assert not {"project_id", "key_id", "connection_id", "response_id"} & set(line)


def ids_in(line: Mapping[str, Any]) -> set[str]:
    return {name for name in line if name.endswith("_id")}


async def test_a_socket_comes_and_goes_in_the_access_log(api_key: ApiKey, lines: Lines) -> None:
    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.turn(model="scripted", input="Hello")
        stamped = socket.headers["x-request-id"]

    told = [line for line in lines.decoded() if line["logger"] == access.name]
    assert [line["message"] for line in told] == ["socket opened", "turn ended", "socket closed"]
    assert {line["connection_id"] for line in told} == {stamped}
    assert ids_in(told[1]) == {"connection_id", "project_id", "key_id", "response_id"}
    assert told[1]["transport"] == "websocket" and told[1]["output_tokens"] > 0
