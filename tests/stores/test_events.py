import asyncio
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from asgiref.sync import sync_to_async
from django.db import transaction
from django.utils import timezone

from responses_ws.models import Project, ResponseEvent, StoredResponse, UsageRecord
from responses_ws.protocol.request import Request
from responses_ws.protocol.response import response_object
from responses_ws.runtime.writer import writer
from responses_ws.stores import events, rows
from responses_ws.stores.events import DatabaseLog, EventLog, MemoryLog
from responses_ws.stores.pruning import prune


def frame(number: int, kind: str = "response.output_text.delta") -> str:
    return msgspec.json.encode({"type": kind, "sequence_number": number}).decode()


FRAMES = [frame(number) for number in range(4)] + [frame(4, "response.completed")]
ID = "resp_1"


@pytest.fixture
def stored(project: Project, settings: Any) -> dict[str, Any]:
    """A background response in progress, as its process stores it."""
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "LIMITS": {"background_poll_seconds": 0.01}}
    request = Request(model="m", input="hi", background=True, stream=True)
    response = {**response_object(request, response_id=ID, created_at=1000), "status": "in_progress"}
    place = rows.save(
        project_id=project.pk,
        response=response,
        parent=None,
        items=[{"type": "message", "role": "user", "content": "hi", "id": "msg_1"}],
        input_end=1,
        expires_at=timezone.now() + timedelta(days=1),
    )
    UsageRecord.objects.create(
        response_id=ID,
        organization=project.organization,
        project=project,
        model="m",
        transport="sse",
        started_at=timezone.now(),
        lease_until=timezone.now(),
    )
    return {"response": response, "place": place}


@pytest.fixture(params=[MemoryLog, DatabaseLog])
def log(request: pytest.FixtureRequest) -> EventLog:
    return request.param()


async def read(log: Any, project: Project, starting_after: int = -1, response_id: str = ID) -> list[str]:
    """Everything up to where following ends by itself."""
    frames: list[str] = []
    async with asyncio.timeout(10), aclosing(log.follow(project.pk, response_id, starting_after)) as runs:
        async for run in runs:
            frames += run
    return frames


def settle(stored: dict[str, Any], status: str = "completed") -> None:
    """The end of the response, in one commit as its process writes it."""
    rows.finish({**stored["response"], "status": status, "completed_at": 1001}, stored["place"], [])
    UsageRecord.objects.filter(response_id=ID).update(status=status)


@pytest.mark.parametrize("starting_after", range(-1, 6))
async def test_what_was_logged_is_read_from_any_number_on(
    log: EventLog, project: Project, stored: dict[str, Any], starting_after: int
) -> None:
    for number in (0, 2, 4):
        await log.append(project.pk, ID, number, FRAMES[number : number + 2])
    await writer.write(lambda: settle(stored))
    reading = asyncio.create_task(read(log, project, starting_after))
    await asyncio.sleep(0)
    await log.end(project.pk, ID)

    assert await reading == FRAMES[starting_after + 1 :]


async def test_followers_hear_what_comes_later(log: EventLog, project: Project, stored: dict[str, Any]) -> None:
    await log.append(project.pk, ID, 0, FRAMES[:2])
    following = [asyncio.create_task(read(log, project, number)) for number in (-1, 0, 2)]
    for number in (2, 3, 4):
        await asyncio.sleep(0)
        await log.append(project.pk, ID, number, FRAMES[number : number + 1])

    assert await asyncio.gather(*following) == [FRAMES, FRAMES[1:], FRAMES[3:]]


async def test_nobody_follows_another_project_s_response(
    log: EventLog, project: Project, stored: dict[str, Any]
) -> None:
    other = await Project.objects.acreate(organization=project.organization, name="other")
    await log.append(project.pk, ID, 0, FRAMES)

    assert await read(log, other) == await read(log, project, response_id="resp_2") == []
    assert not await sync_to_async(events.is_logged)(other.pk, ID)


async def test_memory_forgets_the_oldest_response_and_its_readers_go_on_in_the_database(
    project: Project, stored: dict[str, Any], settings: Any
) -> None:
    limits = {"background_poll_seconds": 0.01, "event_log_bytes": sum(map(len, FRAMES)) + 10}
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "LIMITS": limits}
    await events.append(project.pk, ID, 0, FRAMES[:3])
    following = asyncio.create_task(read(events, project))
    await asyncio.sleep(0.02)

    await events.memory_log.append(project.pk, "resp_2", 0, FRAMES)
    await events.append(project.pk, ID, 3, FRAMES[3:])

    assert await following == FRAMES
    assert await read(events.memory_log, project) == []
    await events.end(project.pk, ID)
    await events.end(project.pk, "resp_2")
    assert len(events.memory_log) == 0


@pytest.mark.parametrize(
    ("end", "event", "status"),
    [
        pytest.param(lambda stored: settle(stored), "response.completed", "completed", id="settled"),
        pytest.param(lambda stored: settle(stored, "cancelled"), "response.incomplete", "cancelled", id="cancelled"),
        pytest.param(
            lambda stored: UsageRecord.objects.update(status="abandoned"), "response.failed", "failed", id="abandoned"
        ),
    ],
)
async def test_a_process_that_dies_before_the_terminal_event_leaves_no_stream_without_end(
    project: Project, stored: dict[str, Any], end: Any, event: str, status: str
) -> None:
    await events.database_log.append(project.pk, ID, 0, FRAMES[:3])
    await events.database_log.end(project.pk, ID)
    following = asyncio.create_task(read(events, project))
    await writer.write(lambda: end(stored))

    frames = await following

    last = msgspec.json.decode(frames[-1])
    assert frames[:-1] == FRAMES[:3]
    assert (last["type"], last["sequence_number"], last["response"]["status"]) == (event, 3, status)
    assert await read(events, project, 2) == frames[3:]
    assert await read(events, project, 3) == []


async def test_what_was_appended_before_the_end_is_committed_no_later(project: Project, stored: dict[str, Any]) -> None:
    for number in range(4):
        await events.database_log.append(project.pk, ID, number, FRAMES[number : number + 1])

    logged = await writer.write(lambda: ResponseEvent.objects.of(project.pk, ID).count())

    assert logged == 4


async def test_a_deleted_response_keeps_no_events_and_gets_no_new_ones(
    project: Project, stored: dict[str, Any]
) -> None:
    await events.database_log.append(project.pk, ID, 0, FRAMES[:2])
    await events.database_log.end(project.pk, ID)
    following = asyncio.create_task(read(events.database_log, project, 1))

    await sync_to_async(rows.delete)(project.pk, ID)
    await events.database_log.append(project.pk, ID, 2, FRAMES[2:])
    await events.database_log.end(project.pk, ID)

    assert await following == []
    assert not await ResponseEvent.objects.aexists()


async def test_a_long_log_is_read_in_pages(project: Project, stored: dict[str, Any]) -> None:
    frames = [frame(number) for number in range(1200)] + [frame(1200, "response.completed")]
    await events.database_log.append(project.pk, ID, 0, frames)
    await events.database_log.end(project.pk, ID)

    assert await read(events.database_log, project) == frames


def test_what_has_expired_is_pruned(project: Project, stored: dict[str, Any]) -> None:
    with transaction.atomic():
        events.insert_events(project.pk, ID, 0, FRAMES)
    assert prune() == {}

    StoredResponse.objects.update(expires_at=timezone.now())

    assert prune()["events"] == len(FRAMES)
    assert not ResponseEvent.objects.exists()
