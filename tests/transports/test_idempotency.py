"""``Idempotency-Key`` on ``POST /v1/responses``: served once, answered again."""

import asyncio
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from asgiref.sync import sync_to_async
from django.test import AsyncClient
from django.utils import timezone

from responses_ws.models import ApiKey, IdempotencyKey, Project, StoredResponse, UsageRecord
from responses_ws.protocol.request import decode_request
from responses_ws.runtime import background
from responses_ws.serving import background as background_responses
from responses_ws.serving import jobs
from responses_ws.serving.admission import Principal, enter
from responses_ws.stores.pruning import prune
from responses_ws.transports.sse import answer_once
from tests.protocol import grammar

from .test_background import frames_of, until_status
from .test_views import KeyClient

SLOW = "!tokens 300 !rate 100 hello"


class OnceClient(KeyClient):
    """Sends every request under one idempotency key."""

    def __init__(self, key: str | None, idempotency_key: str = "one") -> None:
        super().__init__(key)
        self.idempotency_key = idempotency_key

    def generic(self, *args: Any, **kwargs: Any) -> Any:
        headers = {"Authorization": f"Bearer {self._key}", "Idempotency-Key": self.idempotency_key}
        return AsyncClient.generic(self, *args, **{**kwargs, "headers": headers})


@pytest.fixture
async def client(api_key: ApiKey) -> Any:
    yield OnceClient(api_key.secret)
    background_responses.stop()
    await background.settle()


async def post(client: AsyncClient, given: Any = "Hello", **fields: Any) -> Any:
    body = msgspec.json.encode({"model": "scripted", "input": given, **fields})
    return await client.post("/v1/responses", body, content_type="application/json")


def refusal(answer: Any) -> tuple[int, str, str]:
    return answer.status_code, answer.json()["error"]["code"], answer["x-should-retry"]


async def test_a_repeat_gets_the_same_response_and_costs_nothing(client: AsyncClient) -> None:
    first = await post(client)

    second = await post(client)

    assert (first.status_code, second.status_code) == (200, 200)
    assert first.json() == second.json()
    assert await UsageRecord.objects.acount() == 1


async def test_a_repeated_stream_is_told_again(client: AsyncClient) -> None:
    first = grammar.read(await frames_of(await post(client, stream=True)))

    second = grammar.read(await frames_of(await post(client, stream=True)))

    assert first[-1]["response"] == second[-1]["response"]
    assert await UsageRecord.objects.acount() == 1


async def test_a_response_that_failed_is_the_response(client: AsyncClient) -> None:
    first = await post(client, "!tokens 5 !break 2 hi")

    second = await post(client, "!tokens 5 !break 2 hi")

    assert first.json()["status"] == "failed"
    assert second.json() == first.json()
    assert await UsageRecord.objects.acount() == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_background_response_is_given_as_it_is_now(client: AsyncClient, stream: bool) -> None:
    fields = {"background": True, "stream": stream}
    first = await post(client, "!tokens 20 !rate 200 hi", **fields)
    second = await post(client, "!tokens 20 !rate 200 hi", **fields)

    if stream:
        told = [grammar.read(await frames_of(answer)) for answer in (first, second)]
        assert told[0] == told[1]
    else:
        assert second.json()["id"] == first.json()["id"]
        assert second.json()["status"] in ("queued", "in_progress")
        finished = await until_status(client, first.json()["id"], "completed")
        assert (await post(client, "!tokens 20 !rate 200 hi", **fields)).json() == finished
    assert await UsageRecord.objects.acount() == 1


async def test_another_body_is_refused_and_changes_nothing(client: AsyncClient) -> None:
    first = await post(client)

    assert refusal(await post(client, "Hello!")) == (409, "idempotency_key_reused", "false")
    assert (await post(client)).json() == first.json()


async def test_while_the_first_runs_a_repeat_has_to_wait(client: AsyncClient) -> None:
    first = await post(client, SLOW, stream=True)
    async with aclosing(aiter(first)) as chunks:
        await anext(chunks)
        answer = await post(client, SLOW, stream=True)
    await background.settle()

    assert refusal(answer) == (409, "idempotency_key_in_use", "true")
    assert await UsageRecord.objects.acount() == 1


async def test_what_is_not_kept_is_not_run_again(client: AsyncClient) -> None:
    first = (await post(client, store=False)).json()

    answer = await post(client, store=False)

    assert refusal(answer) == (409, "idempotency_result_not_kept", "false")
    assert first["id"] in answer.json()["error"]["message"]
    assert await UsageRecord.objects.acount() == 1 and not await StoredResponse.objects.aexists()


async def test_what_was_deleted_is_not_run_again(client: AsyncClient) -> None:
    first = (await post(client)).json()
    await client.delete(f"/v1/responses/{first['id']}")

    assert refusal(await post(client)) == (409, "idempotency_result_not_kept", "false")


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        pytest.param("hi", {"model": "nobody"}, id="unknown model"),
        pytest.param("hi", {"temperature": 9}, id="invalid"),
        pytest.param("!fail overloaded hi", {}, id="engine refuses"),
        pytest.param("hi", {"background": True, "store": False}, id="background unstored"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_is_not_remembered(
    client: AsyncClient, given: str, fields: dict[str, Any], stream: bool
) -> None:
    refused = [await post(client, given, stream=stream, **fields) for _ in range(2)]

    assert refused[0].status_code == refused[1].status_code >= 400
    assert refused[0].json() == refused[1].json()
    assert not await IdempotencyKey.objects.aexists()
    assert (await post(client)).status_code == 200


async def test_a_request_whose_client_left_runs_again(client: AsyncClient) -> None:
    answer = await post(client, SLOW, stream=True)
    async with aclosing(aiter(answer)) as chunks:
        while b"output_text.delta" not in await anext(chunks):
            pass
    await background.settle()

    again = await post(client, SLOW, stream=True)

    assert again.status_code == 200
    async with aclosing(aiter(again)) as chunks:
        await anext(chunks)
    await background.settle()
    assert [record.status async for record in UsageRecord.objects.all()] == ["cancelled", "cancelled"]
    assert await IdempotencyKey.objects.acount() == 1


async def test_a_request_whose_process_died_before_it_began_is_forgotten_after_a_while(
    client: AsyncClient, project: Project, api_key: ApiKey
) -> None:
    await post(client)
    await UsageRecord.objects.all().adelete()
    await sync_to_async(StoredResponse.objects.all().delete)()
    assert refusal(await post(client)) == (409, "idempotency_key_in_use", "true")

    await IdempotencyKey.objects.aupdate(created_at=timezone.now() - timedelta(minutes=2))

    assert (await post(client)).status_code == 200


async def test_a_key_is_good_for_a_day(client: AsyncClient) -> None:
    first = (await post(client)).json()
    await IdempotencyKey.objects.aupdate(created_at=timezone.now() - timedelta(hours=24))

    second = await post(client, "something else")

    assert second.status_code == 200 and second.json()["id"] != first["id"]


async def test_expired_keys_are_pruned(client: AsyncClient) -> None:
    await post(client)
    assert await sync_to_async(prune)() == {}

    await IdempotencyKey.objects.aupdate(created_at=timezone.now() - timedelta(hours=24))

    assert await sync_to_async(prune)() == {"idempotency keys": 1}


async def test_keys_of_other_api_keys_have_nothing_to_do_with_it(client: AsyncClient, project: Project) -> None:
    second_key = await sync_to_async(ApiKey.objects.create_with_secret)(project=project, name="second")

    answers = [(await post(one)).json()["id"] for one in (client, OnceClient(second_key.secret))]

    assert len(set(answers)) == 2


@pytest.mark.parametrize("key", ["", "x" * 256, "a\tb"], ids=["empty", "long", "unprintable"])
async def test_a_bad_key_is_400(api_key: ApiKey, key: str) -> None:
    answer = await post(OnceClient(api_key.secret, key))

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Idempotency-Key")


async def test_nothing_of_the_body_is_kept_for_an_unstored_response(client: AsyncClient) -> None:
    await post(client, "a secret", store=False)

    row = await IdempotencyKey.objects.aget()
    assert len(row.body_digest) == 32
    assert "secret" not in f"{row.key} {row.scope} {row.response_id}"


async def test_a_background_response_keeps_its_key_though_its_client_leaves_at_once(principal: Principal) -> None:
    body = b'{"model": "scripted", "input": "hi", "background": true}'
    asked, ticket = decode_request(body), await enter(principal, transport="http")
    request = asyncio.create_task(answer_once(principal, asked, ticket, key="one", body=body))
    while not jobs.running:  # noqa: ASYNC110
        await asyncio.sleep(0)

    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    await background.settle()

    again = await answer_once(
        principal, decode_request(body), await enter(principal, transport="http"), key="one", body=body
    )
    assert msgspec.json.decode(again.content)["status"] == "completed"
    assert await UsageRecord.objects.acount() == 1
