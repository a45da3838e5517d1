"""Ends that run ahead of the database: what the client was told comes true, whoever dies and whoever asks."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from responses_ws.billing import ledger
from responses_ws.billing.reconcile import reconcile
from responses_ws.connection.chain import Chains
from responses_ws.models import Journal, StoredResponse, UsageRecord
from responses_ws.protocol.errors import Overloaded, PreviousResponseNotFound
from responses_ws.runtime import background, redis
from responses_ws.runtime.journal import File, journal, legacies
from responses_ws.runtime.writer import writer
from responses_ws.serving.admission import Principal
from responses_ws.serving.replay import replay
from responses_ws.serving.turns import run_turn
from responses_ws.stores import rows
from responses_ws.stores.memory import hot_tier
from tests.billing.rows import make_prices

from .turns import asked, response_of


@pytest.fixture
def directory(tmp_path: Path, settings: Any) -> Path:
    settings.RESPONSES_WS = {
        **settings.RESPONSES_WS,
        "DURABILITY": "journal",
        "JOURNAL_DIR": str(tmp_path / "journal"),
        "LIMITS": {"arrival_seconds": 60},
    }
    return tmp_path / "journal"


class SlowDatabase:
    """The group writer as it is while a commit takes its time."""

    def __init__(self) -> None:
        self._busy, self._go_on = threading.Event(), threading.Event()

    def begin(self) -> None:
        self._busy.clear()
        self._go_on.clear()

        def wait(_done: object) -> None:
            self._busy.set()
            self._go_on.wait(30)

        # Between two commits, so that it holds no lock meanwhile.
        is_waited_for = threading.Event()
        writer.submit(lambda: is_waited_for.wait(10)).add_done_callback(wait)
        is_waited_for.set()
        assert self._busy.wait(10)

    def end(self) -> None:
        self._go_on.set()


@pytest.fixture
def slow() -> Iterator[SlowDatabase]:
    database = SlowDatabase()
    yield database
    database.end()


async def told(principal: Principal, slow: SlowDatabase, given: str, **fields: Any) -> dict[str, Any]:
    """The Response of a turn whose end the database does not take until the test lets it."""
    async with aclosing(run_turn(asked(principal, given, **fields))) as runs:
        async for frames in runs:
            event = msgspec.json.decode(frames[-1])
            if event["type"] == "response.output_text.delta":
                # Its record is open, or this would not be here.
                await asyncio.to_thread(slow.begin)
                break
        async for frames in runs:
            event = msgspec.json.decode(frames[-1])
    assert event["type"] == "response.completed"
    response: dict[str, Any] = event["response"]
    return response


def a_process_dies(directory: Path) -> None:
    """Its promises are in its journal, and no thread of it will keep them any more."""
    for path in list(directory.glob("*.journal")):
        left = File(directory)
        data = path.read_bytes()
        left.release()
        path.with_name(f"dead-{path.name}").write_bytes(data)


TEXT = "!tokens 30 !rate 2000 once"


async def test_the_client_is_told_before_the_database_and_others_wait_for_it(
    principal: Principal, directory: Path, slow: SlowDatabase
) -> None:
    response = await told(principal, slow, TEXT)
    # Another process has no memory of it.
    hot_tier.clear()

    elsewhere = asyncio.create_task(
        response_of(asked(principal, "and then?", previous_response_id=response["id"], store=False))
    )
    await asyncio.sleep(0)
    before = await UsageRecord.objects.aget(response_id=response["id"])
    slow.end()
    continued = await elsewhere

    assert before.status == "in_progress"
    assert continued["status"] == "completed"
    assert continued["usage"]["input_tokens"] > response["usage"]["total_tokens"]


async def test_where_it_does_not_come_in_time_nobody_is_told_that_it_is_not_there(
    principal: Principal, directory: Path, slow: SlowDatabase, settings: Any
) -> None:
    response = await told(principal, slow, TEXT)
    hot_tier.clear()
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "LIMITS": {"arrival_seconds": 0.1}}

    with pytest.raises(Overloaded) as still_to_come:
        await response_of(asked(principal, "and?", previous_response_id=response["id"], store=False))
    with pytest.raises(PreviousResponseNotFound):
        await response_of(asked(principal, "and?", previous_response_id="resp_unknown", store=False))

    assert still_to_come.value.headers["retry-after"] == "1"


async def test_its_own_connection_goes_on_at_once(principal: Principal, directory: Path, slow: SlowDatabase) -> None:
    chains = Chains()
    first = await told(principal, slow, TEXT, chains=chains)
    run = asyncio.create_task(
        response_of(asked(principal, "!tokens 5 more", previous_response_id=first["id"], chains=chains))
    )
    slow.end()
    second = await run
    stored = await sync_to_async(rows.load)(principal.project_id, second["id"])

    # What is written behind a promise stands behind what was promised, in one chain.
    assert stored is not None
    assert await StoredResponse.objects.values_list("chain_id").distinct().acount() == 1
    assert [item["type"] for item in stored.items] == ["message"] * 4
    await background.settle()
    journal.close()
    assert list(directory.iterdir()) == []


async def test_a_turn_that_ends_before_its_beginning_is_written_goes_on_from_a_promise(
    principal: Principal, directory: Path, slow: SlowDatabase, settings: Any, redis_url: str
) -> None:
    """Redis was told of a parent whose place was still a promise, and the turn failed when all of it was written."""
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "REDIS_URL": redis_url}
    first = await told(principal, slow, TEXT)
    run = asyncio.create_task(response_of(asked(principal, "!tokens 5 more", previous_response_id=first["id"])))
    async with asyncio.timeout(30):
        # The promise, the beginning and the end of the second turn.
        while writer.waiting < 3:
            assert not run.done(), run
            await asyncio.sleep(0.01)
    slow.end()
    second = await run
    hot_tier.clear()

    found = await response_of(asked(principal, "and?", previous_response_id=second["id"], store=False))

    # From Redis, or where its copy came before its parent's and found no place, from the database.
    assert (second["status"], found["status"]) == ("completed", "completed")
    await redis.aclose()


async def test_what_a_killed_process_has_promised_is_replayed_once(
    principal: Principal, directory: Path, slow: SlowDatabase
) -> None:
    response = await told(principal, slow, TEXT)
    a_process_dies(directory)
    hot_tier.clear()

    replayed = [await sync_to_async(replay)() for _ in range(2)]
    stored = await sync_to_async(rows.load)(principal.project_id, response["id"])
    # Its own thread comes back to life and does the same.
    slow.end()
    await background.settle()

    record = await UsageRecord.objects.aget(response_id=response["id"])
    assert replayed == [1, 0]
    assert stored is not None and stored.response["output"] == response["output"]
    assert (record.status, record.output_tokens) == ("completed", response["usage"]["output_tokens"])
    assert await StoredResponse.objects.acount() == 1


async def test_whoever_misses_a_response_of_the_dead_replays_it(
    principal: Principal, directory: Path, slow: SlowDatabase
) -> None:
    response = await told(principal, slow, TEXT)
    a_process_dies(directory)
    hot_tier.clear()

    # Its writer is still stopped: nobody but the journal knows.
    found = asyncio.create_task(response_of(asked(principal, "and?", previous_response_id=response["id"], store=False)))
    async with asyncio.timeout(30):
        while await sync_to_async(rows.load)(principal.project_id, response["id"]) is None:
            assert not found.done(), found
            await asyncio.sleep(0.01)
    slow.end()

    assert (await found)["status"] == "completed"


async def test_a_chain_is_replayed_in_its_order(principal: Principal, directory: Path, slow: SlowDatabase) -> None:
    first = await told(principal, slow, TEXT)
    slow.end()
    second = await told(principal, slow, "!tokens 30 !rate 2000 twice", previous_response_id=first["id"])
    a_process_dies(directory)

    await sync_to_async(replay)()
    stored = await sync_to_async(rows.load)(principal.project_id, second["id"])

    assert stored is not None and len(stored.items) == 4
    assert stored.place.path == ()


async def test_what_the_reaper_and_billing_have_made_of_it_is_corrected(
    principal: Principal, directory: Path, slow: SlowDatabase
) -> None:
    """Its process died, and nobody started another on that machine for an hour."""
    await sync_to_async(make_prices)("scripted")
    response = await told(principal, slow, TEXT)
    a_process_dies(directory)
    await sync_to_async(ledger.reap)(timezone.now() + timedelta(hours=1))
    await sync_to_async(ledger.bill_all)()

    await sync_to_async(replay)()
    await sync_to_async(ledger.bill_all)()

    record = await UsageRecord.objects.aget(response_id=response["id"])
    entries = [entry async for entry in Journal.objects.order_by("id").values_list("kind", "idempotency_key")]
    assert (record.status, record.output_tokens) == ("completed", response["usage"]["output_tokens"])
    assert entries == [
        ("usage", f"usage:{record.response_id}:1"),
        ("reversal", f"reversal:usage:{record.response_id}:1"),
        ("usage", f"usage:{record.response_id}:2"),
    ]
    assert await sync_to_async(reconcile)() == []
    assert await sync_to_async(rows.load)(principal.project_id, response["id"]) is not None


async def test_what_is_not_stored_leaves_numbers_in_the_journal_and_no_word(
    principal: Principal, directory: Path, slow: SlowDatabase
) -> None:
    canaries = ["canary-in", "canary-instructions", "canary-metadata"]
    fields = {"instructions": canaries[1], "metadata": {"name": canaries[2]}}

    stored = await told(principal, slow, f"!tokens 30 !rate 2000 {canaries[0]}", store=True, **fields)
    [path] = directory.iterdir()
    with_content = path.read_bytes()
    slow.end()
    await background.settle()
    unstored = await told(principal, slow, f"!tokens 30 !rate 2000 {canaries[0]}", store=False, **fields)
    without = b"".join(path.read_bytes() for path in directory.iterdir())

    assert all(canary.encode() in with_content for canary in canaries)
    assert unstored["id"].encode() in without
    words = unstored["output"][0]["content"][0]["text"].encode()
    assert stored["output"][0]["content"][0]["text"].encode() in with_content
    assert not [word for word in [*map(str.encode, canaries), words] if word in without]


async def test_a_parent_that_is_deleted_meanwhile_takes_what_was_promised_with_it(
    principal: Principal, directory: Path, slow: SlowDatabase
) -> None:
    parent = await response_of(asked(principal, "first"))
    chains = Chains()
    child = await told(principal, slow, TEXT, previous_response_id=parent["id"], chains=chains)
    await sync_to_async(rows.delete)(principal.project_id, parent["id"])
    slow.end()
    await background.settle()

    record = await UsageRecord.objects.aget(response_id=child["id"])
    assert record.status == "completed"
    assert await sync_to_async(rows.load)(principal.project_id, child["id"]) is None
    assert hot_tier.get(principal.project_id, child["id"]) is None


async def test_a_directory_that_cannot_be_written_makes_ends_wait_for_the_database(
    principal: Principal, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory.write_text("not a directory")

    response = await response_of(asked(principal, TEXT))

    record = await UsageRecord.objects.aget(response_id=response["id"])
    assert record.status == "completed"
    assert "The journal cannot be written" in caplog.text


def test_a_record_that_cannot_be_replayed_is_set_aside_and_holds_back_no_other(
    db: None, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = File(directory)
    file.append(b"no msgpack at all: canary")
    file.release()

    assert replay() == 0

    [path] = directory.iterdir()
    assert path.suffix == ".broken"
    assert list(legacies(directory)) == []
    assert "cannot be replayed" in caplog.text and "canary" not in caplog.text
