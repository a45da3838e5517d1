"""Checkpoints: by pace and by time, one batch on its way, the newest counts only."""

import asyncio
import time
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from responses_ws.models import UsageRecord
from responses_ws.protocol.usage import Usage
from responses_ws.serving.checkpoints import TOKENS_BETWEEN, Checkpointer
from tests.billing.rows import NOON, make_record


class Running:
    """A turn that makes so many tokens a second."""

    def __init__(self, response_id: str, pace: float) -> None:
        self.response_id = response_id
        self.began = time.monotonic()
        self.pace = pace
        self.calls = 0
        self.is_absent = False
        self.row: dict[str, Any] = {}

    def count_calls(self) -> int:
        return self.calls

    def count(self) -> Usage:
        return Usage(input_tokens=3, output_tokens=int((time.monotonic() - self.began) * self.pace))


@pytest.fixture
def checkpointer() -> Checkpointer:
    return Checkpointer()


async def written(response_id: str) -> UsageRecord:
    return await UsageRecord.objects.aget(response_id=response_id)


async def opened(checkpointer: Checkpointer, pace: float) -> Running:
    record = await sync_to_async(make_record)(status="in_progress", lease_until=NOON, output_tokens=0, input_tokens=0)
    running = Running(record.response_id, pace)
    checkpointer.watch(running)
    return running


@pytest.mark.parametrize("pace", [20, 400], ids=["by time", "by pace"])
async def test_counts_follow_a_turn_and_renew_its_lease(
    transactional_db: None, checkpointer: Checkpointer, pace: float
) -> None:
    running = await opened(checkpointer, pace)
    running.calls = 2

    async with asyncio.timeout(30):
        while not (record := await written(running.response_id)).output_tokens:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    checkpointer.forget(running)

    assert (record.input_tokens, record.tool_calls) == (3, 2)
    assert record.lease_until > NOON
    assert record.output_tokens >= (TOKENS_BETWEEN if pace > 100 else 1)


async def test_batches_do_not_queue_up_behind_a_slow_database(
    transactional_db: None, checkpointer: Checkpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from responses_ws.serving import checkpoints

    batches: list[dict[str, dict[str, Any]]] = []

    class SlowWriter:
        def submit(self, write: Any) -> Any:
            from concurrent.futures import Future

            batches.append(write.args[1])
            return Future()

    monkeypatch.setattr(checkpoints, "writer", SlowWriter())
    turns = [await opened(checkpointer, 2000) for _ in range(8)]

    async with asyncio.timeout(30):
        while not (batches and len(checkpointer._changed) == len(turns)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        first = {**checkpointer._changed}
        while any(checkpointer._changed[response_id] == columns for response_id, columns in first.items()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    for turn in turns:
        checkpointer.forget(turn)

    # One is on its way; what has changed since is one entry a turn, which grows.
    assert len(batches) == 1


async def test_a_record_that_has_ended_is_left_as_it_is(transactional_db: None, checkpointer: Checkpointer) -> None:
    running = await opened(checkpointer, 2000)
    await UsageRecord.objects.filter(response_id=running.response_id).aupdate(status="completed", output_tokens=7)
    other = await opened(checkpointer, 2000)

    async with asyncio.timeout(30):
        while not (await written(other.response_id)).output_tokens:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    checkpointer.forget(running)
    checkpointer.forget(other)

    assert (await written(running.response_id)).output_tokens == 7
