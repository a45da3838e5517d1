import asyncio
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from asgiref.sync import sync_to_async
from django.db import IntegrityError, transaction
from django.utils import timezone

from responses_ws.models import BackgroundRun, Project, ResponseEvents, StoredResponse, UsageRecord
from responses_ws.protocol.request import Request
from responses_ws.protocol.response import response_object
from responses_ws.runtime.writer import writer
from responses_ws.stores import events, rows, runs
from responses_ws.stores.events import EventWriter, Fate
from responses_ws.stores.pruning import prune
from responses_ws.stores.runs import Claim
from tests.waiting import until


def frame(number: int, kind: str = "response.output_text.delta") -> str:
    return msgspec.json.encode({"type": kind, "sequence_number": number}).decode()


FRAMES = [frame(number) for number in range(5)]
ID = "resp_1"
OURS = Claim(ID)


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
    with transaction.atomic():
        runs.insert({"response_id": ID, "project_id": project.pk, "owner": "here", "request": "sealed"})
    return {"response": response, "place": place}


@pytest.fixture(params=["here", "elsewhere"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where followers are: in the process that runs the response, or in another."""
    if request.param == "elsewhere":
        monkeypatch.setattr(events.MemoryLog, "find", lambda *_args: None)
    return request.param


def unexpected(failure: Exception | Fate) -> None:
    raise AssertionError(f"events could not be written: {failure}")


def writing(project: Project, number: int = 0) -> EventWriter:
    return EventWriter(project.pk, OURS, number, unexpected)


async def read(project: Project, starting_after: int = -1, response_id: str = ID) -> list[str]:
    """Everything up to where following ends by itself."""
    frames: list[str] = []
    async with asyncio.timeout(10), aclosing(events.follow(project.pk, response_id, starting_after)) as followed:
        async for run in followed:
            frames += run
    return frames


def settle(stored: dict[str, Any], status: str = "completed") -> None:
    """The end of the response, in one commit as its process writes it."""
    assert runs.end(OURS)
    rows.finish({**stored["response"], "status": status, "completed_at": 1001}, stored["place"], [])
    UsageRecord.objects.filter(response_id=ID).update(status=status)


def last_of(frames: list[str]) -> tuple[str, int, str]:
    last = msgspec.json.decode(frames[-1])
    return last["type"], last["sequence_number"], last["response"]["status"]


@pytest.mark.parametrize("starting_after", range(-1, 7))
async def test_what_was_logged_is_read_from_any_number_on(
    project: Project, stored: dict[str, Any], place: str, starting_after: int
) -> None:
    log = writing(project)
    for number in (0, 2, 4):
        await log.tell(FRAMES[number : number + 2])
    log.settle()
    await writer.write(lambda: settle(stored))
    await log.end()

    frames = await read(project, starting_after)

    assert frames[: 4 - starting_after] == FRAMES[starting_after + 1 :]
    if starting_after < 5:
        assert last_of(frames) == ("response.completed", 5, "completed")
    else:
        assert frames == []


async def test_followers_hear_what_comes_later(project: Project, stored: dict[str, Any], place: str) -> None:
    log = writing(project)
    await log.tell(FRAMES[:2])
    following = [asyncio.create_task(read(project, number)) for number in (-1, 0, 2)]
    for number in (2, 3, 4):
        await asyncio.sleep(0)
        await log.tell(FRAMES[number : number + 1])
    log.settle()
    await writer.write(lambda: settle(stored))
    await log.end()

    heard = await asyncio.gather(*following)

    assert [frames[:-1] for frames in heard] == [FRAMES, FRAMES[1:], FRAMES[3:]]
    assert {last_of(frames) for frames in heard} == {("response.completed", 5, "completed")}


async def test_nothing_is_told_that_is_not_written(project: Project, stored: dict[str, Any], settings: Any) -> None:
    """A process that takes over goes on behind what is written: nobody may have heard more."""
    limits = {"background_poll_seconds": 0.01, "background_log_seconds": 60}
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "LIMITS": limits}
    log = writing(project)
    heard: list[str] = []

    async def hear() -> None:
        async with aclosing(events.follow(project.pk, ID, -1)) as followed:
            async for run in followed:
                heard.extend(run)

    following = asyncio.create_task(hear())
    for number in range(5):
        await log.tell(FRAMES[number : number + 1])
    async with asyncio.timeout(10):
        while not heard:  # noqa: ASYNC110
            await asyncio.sleep(0)

    # The first comes at once; the others are due in a minute.
    run = await BackgroundRun.objects.aget()
    assert (heard, run.next_number) == (FRAMES[:1], 1)
    await log.end()
    assert (await BackgroundRun.objects.aget()).next_number == 5
    following.cancel()


async def test_events_that_come_together_share_a_row(project: Project, stored: dict[str, Any]) -> None:
    log = writing(project)
    for number in range(5):
        await log.tell(FRAMES[number : number + 1])
    await log.end()

    assert await sync_to_async(list)(ResponseEvents.objects.values_list("first_number", "count")) == [(0, 1), (1, 4)]


async def test_a_silence_is_told(project: Project, stored: dict[str, Any], settings: Any) -> None:
    limits = {"background_poll_seconds": 0.01, "keep_alive_seconds": 0.02}
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "LIMITS": limits}
    await writer.write(lambda: events._insert(project.pk, OURS, 0, FRAMES[:1]))

    async with asyncio.timeout(10), aclosing(events.follow(project.pk, ID, -1)) as followed:
        heard = [await anext(followed) for _ in range(3)]

    assert heard == [FRAMES[:1], [], []]


async def test_nobody_follows_another_project_s_response(project: Project, stored: dict[str, Any]) -> None:
    other = await Project.objects.acreate(organization=project.organization, name="other")
    await writing(project).tell(FRAMES)

    assert await read(other) == await read(project, response_id="resp_2") == []
    assert not await sync_to_async(events.is_logged)(other.pk, ID)


async def test_memory_forgets_the_oldest_response_and_its_readers_go_on_in_the_database(
    project: Project, stored: dict[str, Any], settings: Any
) -> None:
    limits = {"background_poll_seconds": 0.01, "event_log_bytes": sum(map(len, FRAMES)) + 10}
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "LIMITS": limits}
    log = writing(project)
    await log.tell(FRAMES[:3])
    following = asyncio.create_task(read(project))

    def remembered() -> list[str]:
        kept = events.memory_log.find(project.pk, ID, 0)
        return [] if kept is None else kept.frames

    await until(remembered, "the events to be written")

    events.memory_log.begin(project.pk, "resp_2", 0)
    events.memory_log.append(project.pk, "resp_2", FRAMES)
    assert events.memory_log.find(project.pk, ID, 0) is None
    await log.tell(FRAMES[3:])
    log.settle()
    await writer.write(lambda: settle(stored))

    assert (await following)[:-1] == FRAMES
    await log.end()
    events.memory_log.forget(project.pk, "resp_2")
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
    project: Project, stored: dict[str, Any], place: str, end: Any, event: str, status: str
) -> None:
    log = writing(project)
    await log.tell(FRAMES[:3])
    await log.end()
    following = asyncio.create_task(read(project))
    await writer.write(lambda: end(stored))

    frames = await following

    assert frames[:-1] == FRAMES[:3]
    assert last_of(frames) == (event, 3, status)
    assert await read(project, 2) == frames[3:]
    assert await read(project, 3) == []


async def test_what_was_told_before_the_end_is_committed_no_later(project: Project, stored: dict[str, Any]) -> None:
    log = writing(project)
    for number in range(4):
        await log.tell(FRAMES[number : number + 1])
    log.settle()

    logged = await writer.write(lambda: list(ResponseEvents.objects.values_list("count", flat=True)))

    assert sum(logged) == 4
    await log.end()


async def test_a_process_that_was_thought_dead_writes_nothing_more(project: Project, stored: dict[str, Any]) -> None:
    stopped: list[Exception | Fate] = []
    log = EventWriter(project.pk, OURS, 0, stopped.append)
    await log.tell(FRAMES[:1])
    await log.end()
    await BackgroundRun.objects.aupdate(lease_until=timezone.now())
    taken = await sync_to_async(runs.claim_one)(ID, "there")
    assert taken is not None and (taken.claim.fence, taken.next_number, taken.is_repeatable) == (2, 1, False)

    await log.tell(FRAMES[1:])
    await log.end()

    assert stopped == ["another's"]
    assert await ResponseEvents.objects.acount() == 1
    assert not await sync_to_async(runs.end)(OURS)
    # Whoever has taken over goes on with the numbers.
    log = EventWriter(project.pk, taken.claim, 1, unexpected)
    await log.tell([frame(1)])
    await log.end()
    assert (await BackgroundRun.objects.aget()).next_number == 2


async def test_a_write_whose_answer_was_lost_is_written_once(project: Project, stored: dict[str, Any]) -> None:
    for _ in range(2):
        assert await writer.write(lambda: events._insert(project.pk, OURS, 0, FRAMES)) == "ours"

    assert await ResponseEvents.objects.acount() == 1


async def test_what_could_not_be_written_leaves_no_gap(project: Project, stored: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError):
        await writer.write(lambda: events._insert(project.pk, OURS, 2, FRAMES[2:]))

    assert not await ResponseEvents.objects.aexists()
    assert (await BackgroundRun.objects.aget()).next_number == 0


async def test_a_deleted_response_keeps_no_events_and_gets_no_new_ones(
    project: Project, stored: dict[str, Any]
) -> None:
    stopped: list[Exception | Fate] = []
    log = EventWriter(project.pk, OURS, 0, stopped.append)
    await log.tell(FRAMES[:2])
    await log.end()
    following = asyncio.create_task(read(project, 1))

    await sync_to_async(rows.delete)(project.pk, ID)
    await log.tell(FRAMES[2:])
    await log.end()

    assert await following == []
    assert stopped == ["deleted"]
    assert not await ResponseEvents.objects.aexists()


async def test_a_long_log_is_read_in_pages(project: Project, stored: dict[str, Any]) -> None:
    frames = [frame(number) for number in range(150)]

    def write_all() -> None:
        for number in range(0, 150, 2):
            events._insert(project.pk, OURS, number, frames[number : number + 2])

    await writer.write(write_all)
    await writer.write(lambda: settle(stored))

    assert (await read(project))[:-1] == frames


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        pytest.param({}, 1, id="runs"),
        pytest.param({"status": "completed"}, 0, id="has ended"),
        pytest.param({"expires_at": timezone.now() - timedelta(days=1)}, 0, id="has expired"),
    ],
)
def test_old_events_are_pruned_once_their_response_has_ended(
    project: Project, stored: dict[str, Any], change: dict[str, Any], kept: int
) -> None:
    with transaction.atomic():
        events.insert_events(project.pk, ID, 0, FRAMES)
    StoredResponse.objects.update(**change)
    if "expires_at" not in change:
        assert prune() == {}
        ResponseEvents.objects.update(written_at=timezone.now() - timedelta(hours=25))

    assert prune().get("rows of events", 0) == 1 - kept
    assert ResponseEvents.objects.count() == kept
