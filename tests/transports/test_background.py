"""Background mode over HTTP: queued at once, polled, streamed again, cancelled, deleted."""

import asyncio
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
from asgiref.sync import sync_to_async
from django.test import AsyncClient

from responses_ws.engines.registry import registry
from responses_ws.models import ApiKey, BackgroundRun, Project, ResponseEvents, StoredItem, StoredResponse, UsageRecord
from responses_ws.runtime import background, drain
from responses_ws.serving import background as jobs
from responses_ws.serving import runner
from responses_ws.stores import events as log
from responses_ws.stores import rows
from responses_ws.stores.memory import hot_tier
from tests.protocol import grammar
from tests.serving.test_compaction import Summariser

from .test_views import KeyClient, create, events_of, post

ENDLESS = "!tokens 2000 !rate 100 hello"


@pytest.fixture(autouse=True)
def impatient(settings: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "LIMITS": {"background_poll_seconds": 0.02}}


@pytest.fixture
async def client(api_key: ApiKey) -> Any:
    yield KeyClient(api_key.secret)
    jobs.stop()
    await background.settle()
    await runner.stop()


async def get(client: AsyncClient, response_id: str, **query: Any) -> Any:
    return await client.get(f"/v1/responses/{response_id}", query)


async def cancel(client: AsyncClient, response_id: str) -> Any:
    return await client.post(f"/v1/responses/{response_id}/cancel")


async def until_status(client: AsyncClient, response_id: str, *statuses: str) -> dict[str, Any]:
    async with asyncio.timeout(10):
        while (response := (await get(client, response_id)).json())["status"] not in statuses:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return response


async def frames_of(answer: Any) -> list[str]:
    """The events of an SSE answer to its end."""
    assert answer.status_code == 200, answer.content
    return [data for name, data in await events_of(answer) if name]


def chunks_of(answer: Any) -> Any:
    return aclosing(aiter(answer))


async def begun(client: AsyncClient, given: str = ENDLESS, **fields: Any) -> str:
    """The id of a streamed background response whose first client has left after some text."""
    answer = await post(client, {"model": "scripted", "input": given, "background": True, "stream": True, **fields})
    text = b""
    async with chunks_of(answer) as chunks:
        while text.count(b"output_text.delta") < 4:
            text += await anext(chunks)
    response_id: str = msgspec.json.decode(text.split(b"data: ")[1].split(b"\n")[0])["response"]["id"]
    return response_id


async def test_the_answer_comes_at_once_and_the_response_later(client: AsyncClient) -> None:
    queued = await create(client, "Hello", background=True)

    finished = await until_status(client, queued["id"], "completed")

    record = await UsageRecord.objects.aget()
    unchanged = {"status", "output", "usage", "completed_at"}
    assert (queued["status"], queued["output"], queued["usage"], queued["background"]) == ("queued", [], None, True)
    assert {key: value for key, value in finished.items() if key not in unchanged} == {
        key: value for key, value in queued.items() if key not in unchanged
    }
    assert finished["output"][0]["content"][0]["text"] == 'You said: "Hello"'
    assert (record.response_id, record.status, record.transport) == (queued["id"], "completed", "http")
    assert record.output_tokens == finished["usage"]["output_tokens"]
    assert not await ResponseEvents.objects.aexists()


async def test_what_runs_is_seen_by_everyone_who_asks(client: AsyncClient) -> None:
    response = await create(client, ENDLESS, background=True)

    running = await until_status(client, response["id"], "in_progress")
    items = (await client.get(f"/v1/responses/{response['id']}/input_items")).json()

    assert (running["output"], running["usage"], running["completed_at"]) == ([], None, None)
    assert [item["content"][0]["text"] for item in items["data"]] == [ENDLESS]


async def test_a_background_chain_writes_only_what_is_new(client: AsyncClient) -> None:
    first = await create(client, "one", background=True)
    await until_status(client, first["id"], "completed")
    second = await create(client, "two", background=True, previous_response_id=first["id"])
    await until_status(client, second["id"], "completed")
    hot_tier.clear()

    third = await create(client, "three", previous_response_id=second["id"])

    stored = await StoredResponse.objects.aget(id=third["id"])
    assert (stored.input_end, await StoredItem.objects.acount()) == (5, 6)


@pytest.mark.parametrize("status", ["in_progress", "cancelled", "failed"])
async def test_only_what_has_ended_well_can_be_continued(client: AsyncClient, status: str) -> None:
    given = "!break 1 !tokens 3 hi" if status == "failed" else ENDLESS
    response = await create(client, given, background=True)
    if status == "cancelled":
        await cancel(client, response["id"])
    await until_status(client, response["id"], status)

    answer = await post(client, {"model": "scripted", "input": "on", "previous_response_id": response["id"]})

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "previous_response_not_found")


async def test_a_sibling_of_a_running_response_forks(client: AsyncClient) -> None:
    first = await create(client, "one")
    running = await create(client, "!tokens 3 !ttft 100 two", background=True, previous_response_id=first["id"])

    sibling = await create(client, "three", previous_response_id=first["id"])

    await until_status(client, running["id"], "completed")
    hot_tier.clear()
    for response_id, text in ((running["id"], "!tokens 3 !ttft 100 two"), (sibling["id"], "three")):
        items = (await client.get(f"/v1/responses/{response_id}/input_items", {"order": "asc"})).json()["data"]
        assert [item["content"][0]["text"] for item in items] == ["one", 'You said: "one"', text]


async def test_a_stream_begins_queued_and_is_whole(client: AsyncClient) -> None:
    body = {"model": "scripted", "input": "Hello", "background": True, "stream": True}

    events = grammar.read(await frames_of(await post(client, body)))

    types = [event["type"] for event in events]
    assert types[:3] == ["response.created", "response.queued", "response.in_progress"]
    assert events[-1]["response"] == (await get(client, events[0]["response"]["id"])).json()


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        pytest.param({"store": False}, 400, "invalid_value", "store", id="unstored"),
        pytest.param({"model": "nobody"}, 404, "model_not_found", "model", id="unknown model"),
        pytest.param({"previous_response_id": "resp_x"}, 400, "previous_response_not_found", None, id="unknown parent"),
        pytest.param({"input": [{"role": "nobody", "content": ""}]}, 400, "invalid_value", None, id="bad input"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_has_its_status_and_leaves_nothing(
    client: AsyncClient, body: dict[str, Any], status: int, code: str, param: str | None, stream: bool
) -> None:
    request = {"model": "scripted", "input": "hi", "background": True, "stream": stream, **body}

    answer = await post(client, request)

    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert param is None or answer.json()["error"]["param"] == param
    assert not await UsageRecord.objects.aexists() and not await StoredResponse.objects.aexists()


async def test_one_too_many_is_refused(client: AsyncClient, settings: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "LIMITS": {"background_turns": 1}}
    await create(client, ENDLESS, background=True)

    answer = await post(client, {"model": "scripted", "input": "hi", "background": True})

    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "server_is_overloaded")


@pytest.mark.parametrize("given", ["!fail overloaded hi", "!break 2 !tokens 5 hi"])
async def test_a_failure_is_kept_for_those_who_ask(client: AsyncClient, given: str) -> None:
    body = {"model": "scripted", "input": given, "background": True, "stream": True}

    events = grammar.read(await frames_of(await post(client, body)))

    response_id = events[0]["response"]["id"]
    assert events[-1]["type"] == "response.failed"
    assert (await get(client, response_id)).json() == events[-1]["response"]
    assert (await UsageRecord.objects.aget()).status == "failed"


async def test_a_client_that_leaves_cancels_nothing(client: AsyncClient) -> None:
    response_id = await begun(client, "!tokens 20 !rate 200 hello")

    events = grammar.read(await frames_of(await get(client, response_id, stream="true")))

    assert events[-1]["type"] == "response.completed"
    assert (await UsageRecord.objects.aget()).status == "completed"


@pytest.mark.parametrize("place", ["running", "finished", "elsewhere"])
async def test_a_stream_goes_on_where_the_client_was(client: AsyncClient, place: str, monkeypatch: Any) -> None:
    response_id = await begun(client, "!tokens 30 !rate 300 hello")
    if place == "finished":
        await until_status(client, response_id, "completed")
    if place == "elsewhere":
        # As any other process sees it.
        monkeypatch.setattr(log, "memory_log", log.MemoryLog())

    rest = await frames_of(await get(client, response_id, stream="true", starting_after=5))
    whole = await frames_of(await get(client, response_id, stream="true"))

    assert [msgspec.json.decode(frame)["sequence_number"] for frame in rest] == list(range(6, 6 + len(rest)))
    assert whole[6:] == rest
    grammar.read(whole)


async def test_only_background_streams_are_streamed_again(client: AsyncClient) -> None:
    plain = await create(client, "Hello")
    unlogged = await create(client, "Hello", background=True)

    for response_id in (plain["id"], unlogged["id"]):
        answer = await get(client, response_id, stream="true")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stream")


@pytest.mark.parametrize("number", ["x", "-1", "1.5", "9" * 30])
async def test_a_bad_number_to_start_after_is_400(client: AsyncClient, number: str) -> None:
    response_id = await begun(client)

    answer = await get(client, response_id, stream="true", starting_after=number)

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "starting_after")


async def test_cancelling_frees_the_engine_and_keeps_what_was_made(client: AsyncClient) -> None:
    response_id = await begun(client)
    watching = asyncio.create_task(frames_of(await get(client, response_id, stream="true")))

    answer = await cancel(client, response_id)

    response = answer.json()
    events = grammar.read(await watching)
    record = await UsageRecord.objects.aget()
    assert (answer.status_code, response["status"], response["incomplete_details"]) == (200, "cancelled", None)
    assert events[-1]["type"] == "response.incomplete" and events[-1]["response"] == response
    assert response["output"][0]["status"] == "incomplete" and response["output"][0]["content"][0]["text"]
    assert (record.status, record.reason) == ("cancelled", "cancel_requested")
    assert record.output_tokens == response["usage"]["output_tokens"] > 0
    assert (await get(client, response_id)).json() == response
    assert (await cancel(client, response_id)).json() == response


async def test_a_cancellation_comes_through_the_database_too(client: AsyncClient, project: Project) -> None:
    """As another process says it, to which this one runs the response somewhere else."""
    response_id = await begun(client)

    await sync_to_async(rows.request_cancel)(project.pk, response_id)

    assert (await until_status(client, response_id, "cancelled"))["usage"]["output_tokens"] > 0


async def test_only_running_background_responses_can_be_cancelled(client: AsyncClient) -> None:
    plain = await create(client, "Hello")
    finished = await create(client, "Hello", background=True)
    await until_status(client, finished["id"], "completed")

    messages = []
    for response_id in (plain["id"], finished["id"]):
        answer = await cancel(client, response_id)
        assert answer.status_code == 400
        messages.append(answer.json()["error"]["message"])

    assert messages == [
        "Only responses made with 'background' can be cancelled.",
        "Cannot cancel a completed response.",
    ]


async def test_foreign_and_unknown_ids_get_the_same_bytes(client: AsyncClient, project: Project) -> None:
    other = await Project.objects.acreate(organization=project.organization, name="theirs")
    theirs = await sync_to_async(ApiKey.objects.create_with_secret)(project=other, name="theirs")
    response_id = await begun(client)
    stranger = KeyClient(theirs.secret)

    answers = set()
    for asked in (response_id, "resp_" + "0" * 48, "x" * 500):
        for answer in (await get(stranger, asked, stream="true"), await cancel(stranger, asked)):
            answers.add((answer.status_code, answer.content.decode().replace(asked, "ID")))

    assert len(answers) == 1 and next(iter(answers))[0] == 404
    assert (await get(client, response_id)).json()["status"] == "in_progress"


async def test_deleting_a_running_response_stops_it_and_leaves_nothing(client: AsyncClient, caplog: Any) -> None:
    response_id = await begun(client)

    deleted = await client.delete(f"/v1/responses/{response_id}")
    await background.settle()

    assert deleted.json()["deleted"]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert (await get(client, response_id)).status_code == 404
    assert (await UsageRecord.objects.aget()).status == "cancelled"
    assert not await ResponseEvents.objects.aexists() and not await StoredItem.objects.aexists()


async def test_deleting_its_parent_takes_a_running_response_too(client: AsyncClient) -> None:
    first = await create(client, "one")
    response_id = await begun(client, previous_response_id=first["id"])

    await client.delete(f"/v1/responses/{first['id']}")
    await background.settle()

    assert (await get(client, response_id)).status_code == 404
    assert not await StoredItem.objects.aexists()


async def test_a_process_that_is_about_to_end_takes_no_more(client: AsyncClient, monkeypatch: Any) -> None:
    monkeypatch.setattr(drain, "_is_draining", True)

    answer = await post(client, {"model": "scripted", "input": "hi", "background": True})

    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "server_is_overloaded")


async def test_a_cancellation_that_is_not_obeyed_in_time_answers_with_what_is(
    client: AsyncClient, project: Project, settings: Any
) -> None:
    """Its process has died, and the reaper does not know yet."""
    limits = {"background_poll_seconds": 0.02, "cancel_seconds": 0.1}
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "LIMITS": limits}
    response_id = await begun(client)
    jobs.stop()
    await background.settle()
    await StoredResponse.objects.aupdate(status="in_progress")
    await UsageRecord.objects.aupdate(status="in_progress")

    answer = await cancel(client, response_id)

    assert (answer.status_code, answer.json()["status"]) == (200, "in_progress")


async def test_a_process_that_ends_fails_what_cannot_begin_again(client: AsyncClient) -> None:
    response_id = await begun(client)

    jobs.stop()
    await background.settle()

    response = (await get(client, response_id)).json()
    assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
    assert (await UsageRecord.objects.aget()).status == "abandoned"
    assert not await BackgroundRun.objects.aexists()


HISTORY = [
    {"role": "user", "content": "One"},
    {"role": "assistant", "content": "many words " * 1000},
    {"role": "user", "content": "Two"},
]
IN_TIME = {"context_management": [{"type": "compaction", "compact_threshold": 100}]}


@pytest.mark.parametrize(
    ("given", "fields", "kinds"),
    [
        (HISTORY, IN_TIME, ["compaction", "message"]),
        ([*HISTORY[:1], {"type": "compaction_trigger"}], {}, ["compaction"]),
        ([*HISTORY[:2], {"type": "compaction_trigger"}], {}, ["compaction"]),
    ],
    ids=["in time", "on a trigger, short", "on a trigger, long"],
)
async def test_contexts_are_compacted_in_the_background_too(
    client: AsyncClient, given: list[Any], fields: dict[str, Any], kinds: list[str]
) -> None:
    answer = await post(client, {"model": "scripted", "input": given, "background": True, "stream": True, **fields})
    events = grammar.read(await frames_of(answer))

    response = events[-1]["response"]
    assert response["status"] == "completed"
    assert [item["type"] for item in response["output"]] == kinds
    assert (await get(client, response["id"])).json()["output"] == response["output"]


async def test_a_compaction_that_is_cancelled_is_the_whole_context(client: AsyncClient) -> None:
    engine = Summariser()
    engine.summary, engine.plan_summary = "many words " * 100, {"tokens_per_second": 20.0}
    registry.install("scripted", engine)
    body = {"model": "scripted", "input": HISTORY, "background": True, "stream": True, **IN_TIME}
    answer = await post(client, body)
    text = b""
    async with chunks_of(answer) as chunks:
        while b"compaction.compacting" not in text:
            text += await anext(chunks)
        response_id = msgspec.json.decode(text.split(b"data: ")[1].split(b"\n")[0])["response"]["id"]
        await cancel(client, response_id)
        text += b"".join([chunk async for chunk in chunks])

    events = grammar.read([block.split("data: ")[1] for block in text.decode().split("\n\n") if "event: " in block])
    response = events[-1]["response"]
    assert response["status"] == "cancelled"
    assert [item["type"] for item in response["output"]] == ["compaction"]
    following = await create(client, [response["output"][0], {"role": "user", "content": "Three"}], store=False)
    assert following["status"] == "completed"
    assert [text for _, text in engine.prompts[-1]] == ["One", HISTORY[1]["content"], "Two", "Three"]
