"""A database that neither takes the end of a turn nor refuses it: the client is told in time, and the books agree."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from responses_ws.billing.reconcile import reconcile
from responses_ws.models import StoredResponse, UsageRecord
from responses_ws.runtime import background
from responses_ws.runtime import writer as writers
from responses_ws.runtime.writer import Stalled, durable, writer
from responses_ws.serving import ending
from responses_ws.serving.admission import Principal
from responses_ws.serving.turns import run_turn

from .turns import asked

pytestmark = pytest.mark.django_db(transaction=True)


class Stall:
    """Holds the commit of a turn's end up, behind its last statement."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on = threading.Event()
        commit = ending.commit

        def held(one: ending.Ending) -> Any:
            result = commit(one)
            self.go_on.wait(30)
            return result

        monkeypatch.setattr(ending, "commit", held)


@pytest.fixture
def stall(monkeypatch: pytest.MonkeyPatch, settings: Any, tmp_path: Path) -> Iterator[Stall]:
    settings.RESPONSES_WS = {
        **settings.RESPONSES_WS,
        "JOURNAL_DIR": str(tmp_path / "journal"),
        "LIMITS": {"database_seconds": 0.2},
    }
    monkeypatch.setattr(writers, "PATIENCE_SECONDS", 0.1)
    stall = Stall(monkeypatch)
    yield stall
    stall.go_on.set()


async def last_event(principal: Principal, **fields: Any) -> dict[str, Any]:
    async with aclosing(run_turn(asked(principal, "!tokens 5", **fields))) as runs:
        async for frames in runs:
            event: dict[str, Any] = msgspec.json.decode(frames[-1])
    return event


async def when_it_answers_again(stall: Stall) -> None:
    stall.go_on.set()
    await background.settle()
    # Behind everything that waits.
    await asyncio.wrap_future(writer.submit(lambda: None))


async def test_what_could_not_be_stored_has_failed_also_when_the_commit_comes_through_later(
    principal: Principal, stall: Stall
) -> None:
    event = await last_event(principal, store=True)
    await when_it_answers_again(stall)

    assert (event["type"], event["response"]["error"]["code"]) == ("response.failed", "server_error")
    record = await UsageRecord.objects.aget()
    assert (record.status, record.reason) == ("failed", "database_unavailable")
    assert not await StoredResponse.objects.filter(status="completed", deleted_at=None).aexists()
    assert await asyncio.to_thread(reconcile) == []


async def test_what_is_not_stored_ends_well_and_is_counted_once(principal: Principal, stall: Stall) -> None:
    event = await last_event(principal, store=False)
    await when_it_answers_again(stall)

    assert event["type"] == "response.completed"
    record = await UsageRecord.objects.aget()
    assert (record.status, record.output_tokens) == ("completed", 5)


async def test_who_stops_waiting_leaves_the_write_where_it_is(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "LIMITS": {"database_seconds": 0.1}}
    monkeypatch.setattr(writers, "PATIENCE_SECONDS", 0.0)
    go_on = threading.Event()
    written = writer.submit(lambda: go_on.wait(30))

    with pytest.raises(Stalled, match="has not answered"):
        await durable(written)
    go_on.set()

    assert await durable(written)
