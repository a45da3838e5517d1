"""With a journal, turns that nobody else asks for: opened in it, written whole at their end, and lost by no kill."""

import asyncio
import os
from collections.abc import Callable
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from responses_ws.billing import ledger
from responses_ws.models import Budget, Organization, UsageRecord
from responses_ws.protocol.errors import ServerError
from responses_ws.runtime import background
from responses_ws.runtime.journal import journal, legacies
from responses_ws.runtime.writer import writer
from responses_ws.serving.admission import Principal
from responses_ws.serving.replay import replay
from responses_ws.serving.turns import run_turn

from .test_durability import SlowDatabase, a_process_dies, slow
from .turns import asked, response_of

__all__ = ["slow"]


@pytest.fixture
def directory(tmp_path: Path, settings: Any) -> Path:
    journals = {"DURABILITY": "journal", "JOURNAL_DIR": str(tmp_path / "journal")}
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, **journals}
    return tmp_path / "journal"


async def begun(principal: Principal, given: str, meanwhile: Callable[[], Any], **fields: Any) -> str:
    """The id of a response whose client leaves at its first output, behind what happens ``meanwhile``."""
    events: list[dict[str, Any]] = []
    async with aclosing(run_turn(asked(principal, given, store=False, **fields))) as runs:
        async for frames in runs:
            events += map(msgspec.json.decode, frames)
            if events[-1]["type"] == "response.output_text.delta":
                await meanwhile()
                break
    await written()
    response_id: str = events[0]["response"]["id"]
    return response_id


async def written() -> None:
    """All that was handed to the writer is in the database."""
    await writer.write(lambda: None)
    await background.settle()


async def is_recorded() -> bool:
    return await UsageRecord.objects.aexists()


async def test_a_short_turn_is_one_row_written_once_and_leaves_nothing_in_the_journal(
    principal: Principal, directory: Path
) -> None:
    said: dict[str, Any] = {}

    async def look() -> None:
        said["recorded"] = await is_recorded()
        said["journal"] = [path.stat().st_size for path in directory.iterdir()]

    response_id = await begun(principal, "!tokens 2000 !rate 20000 once", look)

    record = await UsageRecord.objects.aget(response_id=response_id)
    assert said == {"recorded": False, "journal": [pytest.approx(400, abs=200)]}
    assert (record.status, record.reason) == ("cancelled", "client_left")
    assert record.output_tokens > 0
    assert [path.stat().st_size for path in directory.iterdir()] == [0]


async def test_turns_that_follow_each_other_share_a_commit(principal: Principal, directory: Path) -> None:

    def listen() -> Any:
        context = CaptureQueriesContext(connections["default"])
        context.__enter__()
        return context

    context = await writer.write(listen)
    responses = [await response_of(asked(principal, f"!tokens 3 {number}", store=False)) for number in range(5)]
    await written()
    await writer.write(lambda: context.__exit__(None, None, None))
    statements = [query["sql"] for query in context.captured_queries if "usagerecord" in query["sql"]]

    assert {response["status"] for response in responses} == {"completed"}
    assert await UsageRecord.objects.filter(status="completed").acount() == 5
    assert len(statements) == 5 and all(sql.startswith("INSERT") for sql in statements)


async def test_a_long_turn_is_in_the_database_from_its_first_checkpoint_on(
    principal: Principal, directory: Path
) -> None:
    found: list[UsageRecord] = []

    async def wait_for_checkpoint() -> None:
        async with asyncio.timeout(30):
            while not await UsageRecord.objects.filter(output_tokens__gt=0).aexists():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        found.append(await UsageRecord.objects.aget())

    response_id = await begun(principal, "!tokens 4000 !rate 1000 once", wait_for_checkpoint)

    record = await UsageRecord.objects.aget()
    assert (found[0].response_id, found[0].status) == (response_id, "in_progress")
    assert found[0].lease_until > timezone.now()
    assert (record.status, record.output_tokens >= found[0].output_tokens) == ("cancelled", True)
    journal.close()
    assert list(directory.iterdir()) == []


async def test_one_that_was_running_when_its_process_died_is_found_and_closed(
    principal: Principal, directory: Path
) -> None:
    left: list[Path] = []

    async def die() -> None:
        assert not await is_recorded()
        a_process_dies(directory)
        left.extend(directory.glob("dead-*"))
        # So that the replay does not meet what this process does next.
        assert len([*legacies(directory)]) == 1

    response_id = await begun(principal, "!tokens 2000 !rate 20000 once", die)
    # What a living process has written of it: as if it had not.
    await UsageRecord.objects.all().adelete()
    journal.close()
    replayed = [await sync_to_async(replay)() for _ in range(2)]
    opened = await UsageRecord.objects.aget()
    await sync_to_async(ledger.reap)(timezone.now() + timedelta(hours=1))

    assert left and replayed == [1, 0]
    assert (opened.response_id, opened.status) == (response_id, "in_progress")
    assert (await UsageRecord.objects.aget()).status == "abandoned"


async def test_one_whose_end_was_told_is_replayed_whole_and_once(principal: Principal, directory: Path) -> None:
    response = await response_of(asked(principal, "!tokens 30 once", store=False))
    a_process_dies(directory)
    at_death = await is_recorded()
    # The thread of the dead process would have written it a moment later.
    await written()
    await UsageRecord.objects.all().adelete()

    replayed = [await sync_to_async(replay)() for _ in range(2)]

    record = await UsageRecord.objects.aget(response_id=response["id"])
    assert not at_death
    # Its beginning, and its end.
    assert replayed == [2, 0]
    assert (record.status, record.output_tokens) == ("completed", response["usage"]["output_tokens"])


async def test_one_that_fails_is_written_by_commit(principal: Principal, directory: Path) -> None:
    with pytest.raises(ServerError):
        await response_of(asked(principal, "!fail server_error", store=False))

    assert (await UsageRecord.objects.aget()).status == "failed"
    assert [path.stat().st_size for path in directory.iterdir()] == [0]


async def test_a_stored_turn_speaks_before_the_database_knows_of_it_and_ends_when_it_does(
    principal: Principal, directory: Path, slow: SlowDatabase
) -> None:
    await asyncio.to_thread(slow.begin)
    recorded: list[bool] = []
    events: list[dict[str, Any]] = []

    async with aclosing(run_turn(asked(principal, "!tokens 30 once"))) as runs:
        async for frames in runs:
            events += map(msgspec.json.decode, frames)
            if not recorded and any(event["type"] == "response.output_text.delta" for event in events):
                recorded.append(await is_recorded())
                slow.end()
    await background.settle()

    record = await UsageRecord.objects.aget(response_id=events[-1]["response"]["id"])
    assert recorded == [False]
    assert (events[-1]["type"], record.status) == ("response.completed", "completed")
    assert [path.stat().st_size for path in directory.iterdir()] == [0]


@pytest.mark.parametrize("store", [False, True])
async def test_a_disk_that_cannot_be_synced_makes_an_end_wait_for_the_database(
    principal: Principal,
    directory: Path,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    store: bool,
) -> None:
    def fail(_descriptor: int) -> None:
        raise OSError("the disk is broken")

    monkeypatch.setattr(os, "fdatasync", fail)
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "JOURNAL_FSYNC": True}
    recorded: list[str] = []

    async with aclosing(run_turn(asked(principal, "!tokens 5 once", store=store))) as runs:
        async for frames in runs:
            if msgspec.json.decode(frames[-1])["type"] == "response.completed":
                recorded.append((await UsageRecord.objects.aget()).status)
    await written()

    assert recorded == ["completed"]
    assert "cannot be synced" in caplog.text


@pytest.mark.parametrize("why", ["budget", "fsync", "commit"])
async def test_what_others_look_for_is_in_the_database_from_its_first_output_on(
    principal: Principal, directory: Path, settings: Any, why: str
) -> None:
    if why == "budget":
        organization = await Organization.objects.aget(pk=principal.organization_id)
        await Budget.objects.acreate(organization=organization, limit_nano=10**12)
    elif why == "fsync":
        settings.RESPONSES_WS = {**settings.RESPONSES_WS, "JOURNAL_FSYNC": True}
    elif why == "commit":
        settings.RESPONSES_WS = {**settings.RESPONSES_WS, "DURABILITY": "commit"}
    seen: list[bool] = []

    async def look() -> None:
        seen.append(await is_recorded())

    async with aclosing(run_turn(asked(principal, "!tokens 2000 !rate 20000 once", store=False))) as runs:
        async for frames in runs:
            if msgspec.json.decode(frames[-1])["type"] == "response.output_text.delta":
                await look()
                break
    await written()

    assert seen == [True]
