"""Background responses whose process has gone: another one goes on, or says how far it was."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from asgiref.sync import sync_to_async
from django.db.models import F
from django.test import AsyncClient
from django.utils import timezone

from responses_ws.billing import ledger
from responses_ws.models import ApiKey, BackgroundRun, Conversation, ResponseEvents, StoredItem, UsageRecord
from responses_ws.runtime import background
from responses_ws.serving import background as jobs
from responses_ws.serving import jobs as running_jobs
from responses_ws.serving import runner
from responses_ws.stores.memory import hot_tier
from tests.protocol import grammar
from tests.serving.hosted import NOTES, Notebook, calls, note, run_here, script
from tests.waiting import until

from .test_background import begun, cancel, frames_of, get, until_status
from .test_idempotency import OnceClient
from .test_views import KeyClient, create, post

__all__ = ["run_here"]

SLOW = "!ttft 60000 hello"
ENDLESS = "!tokens 2000 !rate 100 hello"


@pytest.fixture(autouse=True)
def impatient(settings: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "LIMITS": {"background_poll_seconds": 0.02}}


@pytest.fixture
async def client(api_key: ApiKey) -> AsyncIterator[Any]:
    yield KeyClient(api_key.secret)
    await runner.stop()
    jobs.stop()
    await background.settle()


async def die(response_id: str) -> None:
    """What the database shows of a process that died some time ago."""
    job = running_jobs.running[response_id]
    job.leave(hands_back=False)
    await job.ended.wait()
    # A renewal may be on its way, which a dead process would not have sent.
    await BackgroundRun.objects.aupdate(lease_until=timezone.now(), fence=F("fence") + 1)
    hot_tier.clear()


async def asked(client: AsyncClient, given: Any, **fields: Any) -> str:
    """The id of a background response that has told nothing of its output; its client does not listen."""
    answer = await post(client, {"model": "scripted", "input": given, "background": True, **fields})
    if not fields.get("stream"):
        response_id: str = answer.json()["id"]
    else:
        first = await anext(aiter(answer))
        response_id = msgspec.json.decode(first.split(b"data: ")[1].split(b"\n")[0])["response"]["id"]
    await until_status(client, response_id, "in_progress")
    return response_id


@pytest.mark.parametrize("stream", [False, True])
async def test_what_has_told_nothing_runs_again_elsewhere(client: AsyncClient, stream: bool) -> None:
    response_id = await asked(client, "!ttft 1000 hello", stream=stream)
    queued = (await get(client, response_id)).json()
    await die(response_id)

    runner.take_over(4)
    response = await until_status(client, response_id, "completed", "failed")

    record = await UsageRecord.objects.aget()
    assert response["output"][0]["content"][0]["text"] and response["created_at"] == queued["created_at"]
    assert (record.status, record.output_tokens) == ("completed", response["usage"]["output_tokens"])
    assert not await BackgroundRun.objects.aexists()
    assert await StoredItem.objects.acount() == 2
    if stream:
        events = grammar.read(await frames_of(await get(client, response_id, stream="true")))
        assert [event["type"] for event in events[:3]] == [
            "response.created",
            "response.queued",
            "response.in_progress",
        ]
        assert events[-1]["response"] == response


async def test_what_has_told_something_fails_with_what_it_had_cost(client: AsyncClient) -> None:
    response_id = await begun(client, ENDLESS)
    await UsageRecord.objects.aupdate(input_tokens=7, output_tokens=3)
    await die(response_id)
    written = await ResponseEvents.objects.acount()

    runner.take_over(4)
    response = await until_status(client, response_id, "completed", "failed")

    events = grammar.read(await frames_of(await get(client, response_id, stream="true")))
    record = await UsageRecord.objects.aget()
    assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
    assert (response["usage"]["input_tokens"], response["usage"]["output_tokens"]) == (7, 3)
    assert (record.status, record.reason, record.output_tokens) == ("abandoned", "lease_expired", 3)
    assert events[-1]["type"] == "response.failed" and events[-1]["response"] == response
    assert await ResponseEvents.objects.acount() == written
    assert not await BackgroundRun.objects.aexists()


async def test_a_run_without_listeners_begins_again_whatever_it_had_made(client: AsyncClient) -> None:
    response_id = await asked(client, "!tokens 30 !rate 100 hello")
    await until(lambda: running_jobs.running[response_id]._has_output, "some output")
    await die(response_id)

    runner.take_over(4)
    response = await until_status(client, response_id, "completed", "failed")

    assert response["status"] == "completed"
    assert (await UsageRecord.objects.aget()).output_tokens == response["usage"]["output_tokens"] >= 30


async def test_the_process_that_was_thought_dead_has_lost(client: AsyncClient, caplog: Any) -> None:
    """It goes on, and finds at its next write that another one has taken over: one of them tells the end."""
    response_id = await asked(client, "!ttft 1000 !tokens 10 !rate 20 hello", stream=True)
    late = running_jobs.running.pop(response_id)
    await BackgroundRun.objects.aupdate(lease_until=timezone.now())

    runner.take_over(4)
    await asyncio.wait_for(late.ended.wait(), 10)
    response = await until_status(client, response_id, "completed", "failed")

    events = grammar.read(await frames_of(await get(client, response_id, stream="true")))
    record = await UsageRecord.objects.aget()
    assert events[-1]["response"] == response
    assert (record.status, record.output_tokens) == (response["status"], response["usage"]["output_tokens"])
    assert not [entry for entry in caplog.records if entry.levelname == "ERROR"]


async def test_a_tool_is_not_called_twice(client: AsyncClient, run_here: None) -> None:
    """Nobody has been told anything; but what a tool has done cannot be undone by beginning again."""
    script(calls(note("wait")), "Done.")
    response_id = await asked(client, "Note.", tools=[NOTES])
    await asyncio.wait_for(Notebook.began.wait(), 10)
    await die(response_id)

    runner.take_over(4)
    response = await until_status(client, response_id, "completed", "failed")

    assert (response["status"], len(Notebook.jobs)) == ("failed", 1)
    assert (await UsageRecord.objects.aget()).status == "abandoned"


async def test_the_reaper_leaves_to_a_runner_what_may_still_find_one(client: AsyncClient) -> None:
    response_id = await asked(client, SLOW)
    await UsageRecord.objects.aupdate(lease_until=timezone.now())
    await die(response_id)

    reaped = await sync_to_async(ledger.reap)()
    await BackgroundRun.objects.aupdate(lease_until=timezone.now() - timedelta(hours=2))
    reaped_late = await sync_to_async(ledger.reap)()

    assert (reaped, reaped_late) == (0, 1)
    assert (await get(client, response_id)).json()["error"]["code"] == "server_error"
    runner.take_over(4)
    async with asyncio.timeout(10):
        while await BackgroundRun.objects.aexists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert (await get(client, response_id)).json()["status"] == "failed"


async def test_a_response_that_kills_its_processes_does_not_go_on_for_ever(client: AsyncClient) -> None:
    response_id = await asked(client, SLOW)
    await BackgroundRun.objects.aupdate(deaths=2)
    await die(response_id)

    runner.take_over(4)

    assert (await until_status(client, response_id, "failed", "completed"))["status"] == "failed"


async def test_a_repeat_of_its_request_finds_it_wherever_it_runs(client: AsyncClient, api_key: ApiKey) -> None:
    once = OnceClient(api_key.secret)
    body = {"model": "scripted", "input": "!ttft 1000 hello", "background": True}
    first = (await post(once, body)).json()
    await until_status(client, first["id"], "in_progress")
    await die(first["id"])

    meanwhile = (await post(once, body)).json()
    runner.take_over(4)
    ended = await until_status(client, first["id"], "completed", "failed")

    assert (meanwhile["id"], meanwhile["status"]) == (first["id"], "in_progress")
    assert ended["status"] == "completed" and (await post(once, body)).json() == ended
    assert await UsageRecord.objects.acount() == 1


async def test_what_nobody_runs_is_cancelled_by_whoever_is_asked(client: AsyncClient) -> None:
    response_id = await asked(client, SLOW, stream=True)
    await die(response_id)

    answer = await cancel(client, response_id)

    events = grammar.read(await frames_of(await get(client, response_id, stream="true")))
    record = await UsageRecord.objects.aget()
    assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
    assert (events[-1]["type"], events[-1]["response"]) == ("response.incomplete", answer.json())
    assert (record.status, record.reason) == ("cancelled", "cancel_requested")


async def test_a_draining_process_hands_back_what_has_told_nothing(client: AsyncClient) -> None:
    waiting, talking = await asked(client, SLOW), await begun(client, ENDLESS)

    handed_over = running_jobs.running[waiting].ended
    jobs.drain()

    await asyncio.wait_for(handed_over.wait(), 10)
    run = await BackgroundRun.objects.aget(pk=waiting)
    assert (run.owner, run.deaths) == ("", 0) and run.lease_until <= timezone.now()
    assert (await get(client, waiting)).json()["status"] == "queued"
    assert talking in running_jobs.running
    assert (await get(client, talking)).json()["status"] == "in_progress"


async def test_a_conversation_goes_with_the_run(client: AsyncClient) -> None:
    created = (await client.post("/v1/conversations", b"{}", content_type="application/json")).json()
    response_id = await asked(client, "!ttft 1000 hello", conversation=created["id"])
    holder = (await Conversation.objects.aget()).holder
    await die(response_id)

    refused = await post(client, {"model": "scripted", "input": "x", "conversation": created["id"]})
    runner.take_over(4)
    await until(lambda: response_id in running_jobs.running, "the run to be taken over")
    taken_by = (await Conversation.objects.aget()).holder
    response = await until_status(client, response_id, "completed", "failed")

    conversation = await Conversation.objects.aget()
    assert refused.json()["error"]["code"] == "conversation_locked"
    assert taken_by and taken_by != holder
    assert (response["status"], conversation.holder, conversation.length) == ("completed", "", 2)


async def test_a_conversation_that_others_have_changed_meanwhile_fails_the_run(client: AsyncClient) -> None:
    created = (await client.post("/v1/conversations", b"{}", content_type="application/json")).json()
    response_id = await asked(client, SLOW, conversation=created["id"])
    await die(response_id)
    await Conversation.objects.aupdate(locked_until=timezone.now())
    await create(client, "in between", conversation=created["id"])

    runner.take_over(4)
    response = await until_status(client, response_id, "completed", "failed")

    assert (response["status"], response["error"]["message"].split()[0]) == ("failed", "Another")
    assert (await Conversation.objects.aget()).length == 2
    assert (await UsageRecord.objects.aget(response_id=response_id)).reason == "conversation_locked"


async def test_web_workers_leave_all_of_it_to_runners(client: AsyncClient, settings: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "BACKGROUND_RUNNERS": True}
    queued = await create(client, "hello", background=True)
    await background.settle()
    assert (await get(client, queued["id"])).json()["status"] == "queued"
    assert not running_jobs.running

    runner.take_over(4)

    assert (await until_status(client, queued["id"], "completed", "failed"))["status"] == "completed"


async def test_deleting_what_waits_frees_its_conversation(client: AsyncClient, settings: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "BACKGROUND_RUNNERS": True}
    created = (await client.post("/v1/conversations", b"{}", content_type="application/json")).json()
    queued = await create(client, "hello", background=True, conversation=created["id"])
    held = await post(client, {"model": "scripted", "input": "x", "conversation": created["id"]})

    await client.delete(f"/v1/responses/{queued['id']}")

    assert held.json()["error"]["code"] == "conversation_locked"
    assert not await BackgroundRun.objects.aexists()
    assert (await post(client, {"model": "scripted", "input": "x", "conversation": created["id"]})).status_code == 200


async def test_too_many_that_wait_are_refused(client: AsyncClient, settings: Any) -> None:
    limits = {"background_waiting": 1}
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "BACKGROUND_RUNNERS": True, "LIMITS": limits}
    await create(client, "hello", background=True)

    answer = await post(client, {"model": "scripted", "input": "hi", "background": True})

    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "server_is_overloaded")


async def test_the_request_is_kept_sealed(client: AsyncClient) -> None:
    await asked(client, SLOW, metadata={"note": "the-canary-of-this-test"})

    run = await BackgroundRun.objects.aget()

    assert "the-canary-of-this-test" not in run.request and len(run.request) > 100
