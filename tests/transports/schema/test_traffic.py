"""What is really said, on both doors, is what the documents say."""

from typing import Any

import msgspec
import pytest
from asgiref.sync import sync_to_async

from responses_ws.models import ApiKey, PromptTemplate, PromptVersion
from responses_ws.testing import ResponsesCommunicator
from tests.described import NAMES, check, check_answer, check_event
from tests.transports.test_views import KeyClient

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TOOLS = [
    WEATHER,
    {"type": "custom", "name": "shell"},
    {"type": "namespace", "name": "files", "tools": [{"type": "function", "name": "read"}]},
    {"type": "web_search"},
]
CALL = '!call get_weather {"city": "Oslo"}'

TURNS = [
    pytest.param({"input": "Hello"}, "response.completed", id="text"),
    pytest.param({"input": "Hello", "stream_id": "main"}, "response.completed", id="a named lane"),
    pytest.param({"input": "!reason 4 Hello"}, "response.completed", id="reasoning"),
    pytest.param({"input": "!reason 4 Hello", "reasoning": {"summary": "auto"}}, "response.completed", id="summary"),
    pytest.param(
        {"input": "!reason 4 Hello", "reasoning": {"summary": "concise"}, "include": ["reasoning.encrypted_content"]},
        "response.completed",
        id="sealed reasoning",
    ),
    pytest.param({"input": "!refuse"}, "response.completed", id="refusal"),
    pytest.param({"input": CALL, "tools": TOOLS}, "response.completed", id="a call"),
    pytest.param({"input": f"{CALL} {CALL}", "tools": TOOLS}, "response.completed", id="two calls"),
    pytest.param({"input": '!call shell {"input": "ls"}', "tools": TOOLS}, "response.completed", id="a custom call"),
    pytest.param({"input": "!call files__read {}", "tools": TOOLS}, "response.completed", id="a call in a namespace"),
    pytest.param(
        {"input": "!reason 4 Weather?", "tools": TOOLS, "tool_choice": {"type": "function", "name": "get_weather"}},
        "response.completed",
        id="a chosen tool",
    ),
    pytest.param({"input": "!cut !tokens 20 Hello"}, "response.incomplete", id="incomplete"),
    pytest.param({"input": "!filter !tokens 20 Hello"}, "response.incomplete", id="filtered"),
    pytest.param({"input": "!tokens 20 !break 5 Hello"}, "response.failed", id="failed"),
    pytest.param({"input": "!fail rate_limited"}, "error", id="refused by the engine"),
    pytest.param({"generate": False}, "response.completed", id="warm-up"),
    pytest.param({"input": "Hello", "model": "nobody"}, "error", id="no such model"),
    pytest.param({"input": "Hello", "temperature": 3}, "error", id="out of range"),
    pytest.param({"input": "Hello", "previous_response_id": "resp_x"}, "error", id="no such response"),
    pytest.param(
        {
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}],
            "instructions": "Be nice.",
            "metadata": {"a": "b"},
            "reasoning": {"effort": "low", "summary": "auto"},
            "text": {"format": {"type": "json_object"}, "verbosity": "low"},
            "tools": TOOLS,
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "shell"}]},
            "max_output_tokens": 100,
            "service_tier": "fast",
            "truncation": "auto",
            "user": "me",
        },
        "response.completed",
        id="every field",
    ),
]


@pytest.mark.parametrize(("fields", "end"), TURNS)
async def test_every_event_of_a_turn_is_as_described(api_key: ApiKey, fields: dict[str, Any], end: str) -> None:
    create = {"type": "response.create", "model": "scripted", "store": False, **fields}

    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.send(create)
        events = await socket.receive_turn()

    for event in events:
        check_event(event)
    assert events[-1]["type"] == end
    if end != "error":
        check_event(create)


async def test_an_error_of_the_connection_is_as_described(api_key: ApiKey) -> None:
    async with ResponsesCommunicator(api_key.secret) as socket:
        for frame in ("{", "{}", '{"type": "no.such"}', '{"type": "response.create", "stream_id": ""}', b"binary"):
            await socket.send(frame)
            check_event(await socket.receive())


async def test_a_steered_turn_is_as_described(api_key: ApiKey) -> None:
    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.create(model="scripted", input="!tokens 5000 !rate 200 a long answer")
        events = [await socket.receive() for _ in range(5)]
        steer = {"type": "response.steer", "previous_response_id": events[0]["response"]["id"], "input": "stop it"}
        await socket.send(steer)
        for _ in range(2):
            events += await socket.receive_turn()
        await socket.send(steer)
        events.append(await socket.receive())

    for event in [steer, *events]:
        check_event(event)
    assert {"response.steer.accepted", "response.incomplete", "response.steer.failed"} <= {e["type"] for e in events}


async def test_steers_of_a_turn_that_calls_are_as_described(api_key: ApiKey) -> None:
    steer: dict[str, Any] = {"type": "response.steer", "input": [{"role": "user", "content": "rather Rome"}]}
    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.create(model="scripted", input=f"!rate 20 {CALL}", tools=[WEATHER])
        events = [await socket.receive() for _ in range(4)]
        steer["previous_response_id"] = events[0]["response"]["id"]
        await socket.send(steer)
        events += await socket.receive_turn()
        events.append(await socket.receive())

    for event in [steer, *events]:
        check_event(event)
    assert events[-1]["type"] == "response.steer.pending"


async def test_one_long_response_is_as_described(api_key: ApiKey) -> None:
    headers = {"OpenAI-Beta": "responses_rollout=v1"}
    async with ResponsesCommunicator(api_key.secret, headers=headers) as socket:
        await socket.create(model="scripted", input="!rounds 1 Weather in Oslo?", tools=[WEATHER])
        events = [await socket.receive()]
        while events[-1]["type"] != "response.done":
            events.append(await socket.receive())
        outputs = [{**stub, "output": "sunny"} for stub in events[-1]["required"]]
        append = {
            "type": "response.append",
            "response_id": events[0]["response"]["id"],
            "input": [*outputs, {"role": "user", "content": "!rounds 0 Thanks."}],
        }
        await socket.send(append)
        events += await socket.receive_turn()
        await socket.send(append)
        events += await socket.receive_turn()

    for event in [append, *events]:
        check_event(event)
    kinds = [item["type"] for item in events[-2]["response"]["output"]]
    assert kinds == ["function_call", "function_call_output", "message", "message"]


def test_every_event_has_a_name_of_its_own() -> None:
    assert len(set(NAMES.values())) == len(NAMES)


class Reader:
    """An HTTP client that holds every answer against its route's description."""

    def __init__(self, key: str) -> None:
        self._client = KeyClient(key)

    async def ask(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        content = {"data": msgspec.json.encode(body), "content_type": "application/json"} if body is not None else {}
        answer = await getattr(self._client, method)(path, **content)
        assert answer.status_code == status, answer.content
        check_answer(method, path, status, answer.json())
        return answer.json()


@pytest.fixture
def reader(api_key: ApiKey) -> Reader:
    return Reader(api_key.secret)


async def test_stored_responses_are_as_described(reader: Reader) -> None:
    asked = {"model": "scripted", "input": CALL, "tools": TOOLS}
    check("Request", asked)
    first = await reader.ask("post", "/v1/responses", asked)
    output = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "sunny"}
    body = {"model": "scripted", "input": [output], "previous_response_id": first["id"], "tools": TOOLS}
    second = await reader.ask("post", "/v1/responses", body)
    path = f"/v1/responses/{second['id']}"

    assert await reader.ask("get", path) == second
    assert (await reader.ask("get", f"{path}/input_items?limit=2"))["has_more"]
    assert (await reader.ask("delete", path))["deleted"]
    await reader.ask("get", path, status=404)
    await reader.ask("get", f"{path}/input_items", status=404)


async def test_models_are_as_described(reader: Reader) -> None:
    assert (await reader.ask("get", "/v1/models"))["data"]
    await reader.ask("get", "/v1/models/scripted")
    await reader.ask("get", "/v1/models/nobody", status=404)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param({"input": "Hello"}, 400, id="no model"),
        pytest.param({"model": "scripted", "input": "Hello", "top_p": 2}, 400, id="out of range"),
        pytest.param({"model": "scripted", "input": "!fail rate_limited"}, 429, id="rate limit"),
        pytest.param({"model": "scripted", "input": "!fail overloaded"}, 503, id="overloaded"),
    ],
)
async def test_a_refusal_is_as_described(reader: Reader, body: Any, status: int) -> None:
    await reader.ask("post", "/v1/responses", body, status=status)


async def test_a_streamed_event_is_one_that_the_stream_names(api_key: ApiKey) -> None:
    client = KeyClient(api_key.secret)
    body = msgspec.json.encode({"model": "scripted", "input": f"!reason 3 {CALL}", "tools": TOOLS, "stream": True})

    answer = await client.post("/v1/responses", body, content_type="application/json")
    text = b"".join([chunk async for chunk in answer.streaming_content]).decode()

    frames = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
    assert len(frames) > 5
    for frame in frames:
        event = msgspec.json.decode(frame)
        check_event(event)
        check("StreamEvent", event)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("Response", {"id": "resp_x"}, id="keys are missing"),
        pytest.param("ErrorObject", {"message": "", "type": "", "param": None, "code": None, "odd": 1}, id="odd key"),
        pytest.param("OutputItem", {"type": "message", "id": 1}, id="wrong type"),
    ],
)
def test_the_check_itself_finds_faults(name: str, value: Any) -> None:
    with pytest.raises(AssertionError, match="describe it in"):
        check(name, value)


async def test_conversations_are_as_described(reader: Reader) -> None:
    tools = {"type": "additional_tools", "role": "developer", "tools": TOOLS}
    update = {"type": "configuration_update", "reasoning": {"effort": "low"}, "text": {"format": {"type": "text"}}}
    made = await reader.ask("post", "/v1/conversations", {"items": [tools, update], "metadata": {"a": "b"}})
    path = f"/v1/conversations/{made['id']}"
    added = await reader.ask("post", f"{path}/items", {"items": [{"role": "user", "content": "!tokens 1 hi"}]})
    item_path = f"{path}/items/{added['first_id']}"
    reference = {"id": added["first_id"]}
    body = {"model": "scripted", "input": [reference], "conversation": made["id"]}

    assert (await reader.ask("post", "/v1/responses", body))["conversation"] == {"id": made["id"]}
    assert (await reader.ask("post", "/v1/responses/input_tokens", body))["input_tokens"]
    assert await reader.ask("get", path) == made
    assert (await reader.ask("get", f"{path}/items?limit=2"))["has_more"]
    assert (await reader.ask("post", path, {"metadata": {}}))["metadata"] == {}
    assert (await reader.ask("delete", item_path))["id"] == made["id"]
    assert (await reader.ask("delete", path))["deleted"]
    await reader.ask("get", path, status=404)
    await reader.ask("get", item_path, status=404)


async def test_a_response_with_a_prompt_is_as_described(reader: Reader, api_key: ApiKey) -> None:
    template = await PromptTemplate.objects.acreate(project_id=api_key.project_id, name="greeting")
    await sync_to_async(PromptVersion.objects.create)(template=template, text="Be {{mood}}.\n[user]\nHello")
    await sync_to_async(PromptVersion.objects.publish)()
    body = {"model": "scripted", "prompt": {"id": template.pk, "variables": {"mood": "kind"}}}

    response = await reader.ask("post", "/v1/responses", body)

    assert response["prompt"]["version"] == "1"
