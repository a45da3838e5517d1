from contextlib import aclosing
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest
from asgiref.sync import sync_to_async
from django.test import AsyncClient
from django.urls import reverse

from responses_ws.models import ApiKey, Project, UsageRecord
from responses_ws.runtime import background


class KeyClient(AsyncClient):
    """Sends a key with every request."""

    def __init__(self, key: str | None) -> None:
        super().__init__()
        self._key = key

    def generic(self, *args: Any, **kwargs: Any) -> Any:
        return super().generic(*args, **{**kwargs, "headers": {"Authorization": f"Bearer {self._key}"}})


@pytest.fixture
def client(api_key: ApiKey) -> AsyncClient:
    return KeyClient(api_key.secret)


async def post(client: AsyncClient, body: Any) -> Any:
    content = body if isinstance(body, bytes | str) else msgspec.json.encode(body)
    return await client.post("/v1/responses", content, content_type="application/json")


async def create(client: AsyncClient, given: Any, **fields: Any) -> dict[str, Any]:
    answer = await post(client, {"model": "scripted", "input": given, **fields})
    assert answer.status_code == 200, answer.content
    response: dict[str, Any] = answer.json()
    return response


async def events_of(answer: Any) -> list[tuple[str, str]]:
    """(event line, data line) of an SSE answer."""
    text = b"".join([chunk async for chunk in answer.streaming_content]).decode()
    assert "\r" not in text and text.endswith("\n\n")
    pairs = []
    for block in text[:-2].split("\n\n"):
        *head, data = block.split("\n")
        pairs.append((head[0].removeprefix("event: ") if head else "", data.removeprefix("data: ")))
    return pairs


async def test_a_context_is_compacted_and_goes_on(client: AsyncClient) -> None:
    history = [{"role": "user", "content": "Remember cobalt."}, {"role": "assistant", "content": "many words " * 1000}]
    body = {"model": "scripted", "input": history, "prompt_cache_key": "k", "unknown": 1}

    answer = await client.post("/v1/responses/compact", msgspec.json.encode(body), content_type="application/json")
    compaction = answer.json()
    following = await create(client, [*compaction["output"], {"role": "user", "content": "On"}])

    assert answer.status_code == 200
    assert compaction["object"] == "response.compaction"
    assert [item["type"] for item in compaction["output"]] == ["message", "compaction"]
    assert following["status"] == "completed"
    assert (await UsageRecord.objects.order_by("id").afirst()).transport == "compact"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("body", "param"),
    [({"input": "x"}, "model"), ({"model": "scripted"}, "input")],
    ids=["no model", "no input"],
)
async def test_a_compaction_without_what_it_needs_is_a_400(
    client: AsyncClient, body: dict[str, Any], param: str
) -> None:
    answer = await client.post("/v1/responses/compact/", msgspec.json.encode(body), content_type="application/json")

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


async def test_a_plain_post_answers_with_the_final_response(client: AsyncClient) -> None:
    response = await create(client, "Hello")

    assert response["status"] == "completed"
    assert response["output"][0]["content"][0]["text"] == 'You said: "Hello"'
    assert (await UsageRecord.objects.aget()).transport == "http"


async def test_a_stream_s_event_lines_repeat_the_type(client: AsyncClient) -> None:
    answer = await post(client, {"model": "scripted", "input": "Hello", "stream": True})
    events = await events_of(answer)

    assert answer["Content-Type"].startswith("text/event-stream")
    assert answer["X-Accel-Buffering"] == "no"
    assert events.pop() == ("", "[DONE]")
    assert all(msgspec.json.decode(data)["type"] == name for name, data in events)
    assert events[0][0] == "response.created" and events[-1][0] == "response.completed"


async def test_done_can_be_left_out(client: AsyncClient, settings: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "SSE_DONE": False}

    events = await events_of(await post(client, {"model": "scripted", "input": "Hello", "stream": True}))

    assert events[-1][0] == "response.completed"


async def test_a_stream_that_is_left_is_recorded(client: AsyncClient) -> None:
    answer = await post(client, {"model": "scripted", "input": "!tokens 1000 !rate 100 hi", "stream": True})
    text = b""
    # As Django's handler reads it, which closes nothing but this iterator.
    async with aclosing(aiter(answer)) as chunks:
        while b"output_text.delta" not in text:
            text += await anext(chunks)
    await background.settle()

    record = await UsageRecord.objects.aget()
    assert (record.status, record.transport) == ("cancelled", "sse")


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        pytest.param("{", 400, "invalid_json", None, id="not json"),
        pytest.param('{"text":' * 100_000, 400, "invalid_json", None, id="too deep"),
        pytest.param({"input": "hi"}, 400, "missing_required_parameter", "model", id="no model"),
        pytest.param({"model": "scripted"}, 400, "missing_required_parameter", "input", id="no input"),
        pytest.param({"model": "nobody", "input": "hi"}, 404, "model_not_found", "model", id="unknown model"),
        pytest.param(
            {"model": "scripted", "input": "hi", "temperature": 3}, 400, "invalid_value", "temperature", id="range"
        ),
        pytest.param(
            {"model": "scripted", "input": "hi", "stream": True, "previous_response_id": "resp_x"},
            400,
            "previous_response_not_found",
            "previous_response_id",
            id="a stream that cannot begin",
        ),
        pytest.param(
            {"model": "scripted", "input": "!fail rate_limited"}, 429, "rate_limit_exceeded", None, id="engine refuses"
        ),
    ],
)
async def test_a_refusal_has_its_status(
    client: AsyncClient, body: Any, status: int, code: str, param: str | None
) -> None:
    answer = await post(client, body)

    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param)
    assert set(error) == {"message", "type", "param", "code"}
    assert answer["x-request-id"].startswith("req_")


async def test_a_body_over_the_limit_is_413(client: AsyncClient, settings: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "LIMITS": {"max_frame_bytes": 100}}

    answer = await post(client, {"model": "scripted", "input": "x" * 200})

    assert answer.status_code == 413


async def test_a_body_over_django_s_own_limit_is_taken(client: AsyncClient, settings: Any) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000

    assert (await create(client, "x" * 10_000))["status"] == "completed"


async def test_without_a_key_nothing_is_told(client: AsyncClient) -> None:
    for path in ("/v1/responses/resp_x", "/v1/responses/resp_x/input_items", "/v1/models", "/v1/models/scripted"):
        answer = await AsyncClient().get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key"), path
        assert answer["WWW-Authenticate"] == "Bearer"


async def test_get_on_the_collection_is_405(client: AsyncClient) -> None:
    answer = await client.get("/v1/responses")

    assert (answer.status_code, answer["Allow"]) == (405, "POST, OPTIONS")
    assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_a_stored_response_is_read_back_as_it_was(client: AsyncClient) -> None:
    response = await create(client, "Hello", metadata={"a": "b"})

    assert (await client.get(f"/v1/responses/{response['id']}")).json() == response


async def test_input_items_are_the_whole_context_in_pages(client: AsyncClient) -> None:
    first = await create(client, "one")
    second = await create(client, [{"role": "user", "content": "two"}], previous_response_id=first["id"])
    url = f"/v1/responses/{second['id']}/input_items"

    newest = (await client.get(url, {"limit": 2})).json()
    rest = (await client.get(url, {"after": newest["last_id"]})).json()
    oldest_first = (await client.get(url, {"order": "asc"})).json()

    texts = [item["content"][0]["text"] for item in oldest_first["data"]]
    assert texts == ["one", 'You said: "one"', "two"]
    assert newest["has_more"] and not rest["has_more"]
    assert newest["data"] + rest["data"] == oldest_first["data"][::-1]
    assert all(item["type"] == "message" and item["id"] for item in oldest_first["data"])


@pytest.mark.parametrize("query", [{"limit": "0"}, {"limit": "101"}, {"limit": "x"}, {"order": "up"}, {"after": "no"}])
async def test_a_bad_page_is_400(client: AsyncClient, query: dict[str, str]) -> None:
    response = await create(client, "one")

    answer = await client.get(f"/v1/responses/{response['id']}/input_items", query)

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(query)))


async def test_a_deleted_response_is_gone_from_every_door(client: AsyncClient) -> None:
    first = await create(client, "one")
    second = await create(client, "two", previous_response_id=first["id"])

    deleted = await client.delete(f"/v1/responses/{first['id']}")

    assert deleted.json() == {"id": first["id"], "object": "response", "deleted": True}
    for response_id in (first["id"], second["id"]):
        assert (await client.get(f"/v1/responses/{response_id}")).status_code == 404
        answer = await post(client, {"model": "scripted", "input": "on", "previous_response_id": response_id})
        assert answer.json()["error"]["code"] == "previous_response_not_found"
    assert (await client.delete(f"/v1/responses/{first['id']}")).status_code == 404


async def test_foreign_unknown_and_unstored_ids_get_the_same_bytes(client: AsyncClient, project: Project) -> None:
    other = await Project.objects.acreate(organization=project.organization, name="theirs")
    theirs = await sync_to_async(ApiKey.objects.create_with_secret)(project=other, name="theirs")
    mine = await create(client, "mine")
    unstored = await create(client, "unstored", store=False)
    client = KeyClient(theirs.secret)

    answers = set()
    for response_id in (mine["id"], unstored["id"], "resp_" + "0" * 48, "non%00sense", "x" * 500):
        for path, method in (("", client.get), ("/input_items", client.get), ("", client.delete)):
            answer = await method(f"/v1/responses/{response_id}{path}")
            body = {**answer.json()["error"], "status": answer.status_code}
            body["message"] = body["message"].replace(unquote(response_id), "ID")
            answers.add(tuple(body.items()))

    assert len(answers) == 1


async def test_models_are_listed_and_found(client: AsyncClient) -> None:
    listed = (await client.get("/v1/models")).json()
    one = await client.get("/v1/models/scripted")

    assert [model["id"] for model in listed["data"]] == ["scripted"]
    assert one.json() == listed["data"][0]
    assert (await client.get("/v1/models/nobody")).json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("slash", ["", "/"])
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/codex/responses", "/responses", "/codex/responses"])
async def test_the_paths_that_clients_make_of_their_base_url(client: AsyncClient, path: str, slash: str) -> None:
    body = msgspec.json.encode({"model": "scripted", "input": "Hello"})

    answer = await client.post(path + slash, body, content_type="application/json")

    assert answer.status_code == 200


def test_the_name_of_the_endpoint_is_its_usual_path() -> None:
    assert reverse("responses_ws:responses") == "/v1/responses"
