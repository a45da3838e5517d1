"""The ledger is what was seen on the wire; where nobody saw the end, what the engine itself says it made."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.raw import Door, outputs_for
from tests.live import ModelServer, Process, Server, until

pytestmark = pytest.mark.stack

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
PRICES = """
from responses_ws.models import Price
for model in ("scripted", "fake-chat"):
    for component, nano in (("input", 2_500_000_001), ("cached_input", 250_000_003), ("output", 10_000_000_007)):
        Price.objects.create(model=model, component=component, nano_per_million=nano)
"""
KICKS = "from responses_ws.tasks import bill_batch; [bill_batch.delay() for _ in range(3)]"


class Worker(Process):
    """A real Celery worker with two processes."""

    def __init__(self, server: Server) -> None:
        command = [sys.executable, "-m", "celery", "-A", "project", "worker", "-c", "2", "-Q", "responses_ws.billing"]
        super().__init__(
            [*command, "--without-gossip", "--without-mingle"],
            directory=server.directory.parent / "worker",
            environment=server.environment,
        )

    def wait_until_ready(self) -> None:
        self.said(r"\[queues\]")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("books")


@pytest.fixture(scope="module")
def model_server(directory: Path) -> Iterator[ModelServer]:
    with ModelServer(directory=directory / "model_server") as running:
        yield running


@pytest.fixture(scope="module")
def server(directory: Path, model_server: ModelServer, redis_url: str) -> Iterator[Server]:
    server = Server(directory=directory, engine_url=model_server.url)
    server.environment["CELERY_BROKER_URL"] = redis_url
    server.migrate()
    server.manage("shell", "-v", "0", "-c", PRICES)
    with server:
        yield server


async def a_working_day(door: Door, model: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Turns of every outcome. Gives the Responses in their terminal events, and the ids of those cut off."""
    seen: list[dict[str, Any]] = []
    async with door.socket() as socket:
        await socket.turn(model, input=[{"role": "developer", "content": "Be brief."}], generate=False, store=False)
        events = await socket.turn(model, input="Weather in Oslo?", tools=[WEATHER], store=False)
        for _ in range(4):
            seen.append(events[-1]["response"])
            given = outputs_for(seen[-1]) or "And in Rome?"
            previous = {"previous_response_id": seen[-1]["id"], "tools": [WEATHER], "store": False}
            events = await socket.turn(model, input=given, **previous)
        seen.append(events[-1]["response"])
        for said in ("!cut one two three four", "!reason 7 think", "!refuse please", "!tokens 500 hello"):
            seen.append((await socket.turn(model, input=said))[-1]["response"])
        seen.append((await socket.turn(model, input="!tokens 9 !break 4 broken"))[-1]["response"])
    cut_off = []
    for _ in range(3):
        async with door.socket() as socket:
            await socket.create(model, input="!tokens 5000 !rate 500 a long answer", store=False)
            cut_off.append((await socket.wait_for("response.created"))["response"]["id"])
            await socket.wait_for("response.output_text.delta")
            await socket.drop()
    return seen, cut_off


def money(usage: dict[str, int]) -> int:
    """nano-USD by the prices above: rounded half to even, once a line."""

    def line(tokens: int, nano_per_million: int) -> int:
        whole, rest = divmod(tokens * nano_per_million, 1_000_000)
        return whole + (rest > 500_000 or (rest == 500_000 and whole % 2))

    fresh = usage["input_tokens"] - usage["cached_tokens"]
    return (
        line(fresh, 2_500_000_001)
        + line(usage["cached_tokens"], 250_000_003)
        + line(usage["output_tokens"], 10_000_000_007)
    )


@pytest.mark.parametrize("model", ["scripted", "fake-chat"])
async def test_the_ledger_is_what_was_seen_or_what_the_engine_made(
    server: Server, model_server: ModelServer, model: str
) -> None:
    door = Door(server, server.create_key(f"day of {model}"))

    seen, cut_off = await a_working_day(door, model)
    records = {response_id: server.usage(response_id) for response_id in cut_off + [one["id"] for one in seen]}
    assert not server.rows(
        "SELECT * FROM responses_ws_journal JOIN responses_ws_usagerecord usage ON usage.id = usage_id WHERE model = ?",
        model,
    ), "billing ran without a worker"
    with Worker(server):
        until(
            lambda: not server.rows("SELECT * FROM responses_ws_usagerecord WHERE billed_at IS NULL"),
            "all to be billed",
        )
        booked = server.rows("SELECT * FROM responses_ws_posting ORDER BY id")
        server.manage("shell", "-v", "0", "-c", KICKS)
    server.manage("responses_ws_reconcile")

    amounts = {
        row["response_id"]: row["amount_nano"]
        for row in server.rows(
            "SELECT response_id, amount_nano FROM responses_ws_posting posting"
            " JOIN responses_ws_journal journal ON journal.id = posting.journal_id"
            " JOIN responses_ws_account account ON account.id = posting.account_id AND account.kind = 'receivable'"
            " JOIN responses_ws_usagerecord usage ON usage.id = journal.usage_id"
        )
    }
    statuses = {one["status"] for one in seen}
    assert statuses == {"completed", "incomplete", "failed"}
    for response in seen:
        record = records[response["id"]]
        if response["status"] == "failed":
            assert (record["status"], amounts[response["id"]]) == ("failed", 0)
            continue
        wire = response["usage"]
        assert record["input_tokens"] == wire["input_tokens"]
        assert record["cached_tokens"] == wire["input_tokens_details"]["cached_tokens"]
        assert record["output_tokens"] == wire["output_tokens"]
        assert record["reasoning_tokens"] == wire["output_tokens_details"]["reasoning_tokens"]
        assert amounts[response["id"]] == money(record)
    engine_log = server.tokens if model == "scripted" else model_server.tokens
    for response_id in cut_off:
        record = records[response_id]
        assert (record["status"], bool(record["estimated"])) == ("cancelled", model != "scripted")
        assert amounts[response_id] == money(record) > 0
        if model == "scripted":
            made = engine_log.call(response_id)
            assert made["outcome"] == "aborted"
            assert (record["input_tokens"], record["output_tokens"]) == (made["prompt_tokens"], made["output_tokens"])
    assert server.rows("SELECT * FROM responses_ws_posting ORDER BY id") == booked, (
        "a second delivery changed the books"
    )
