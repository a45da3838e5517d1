"""The ledger is what was seen on the wire; where nobody saw the end, what the engine itself says it made."""

from typing import Any

import pytest

from tests.conformance.raw import Door, outputs_for
from tests.live import until

from .rig import Rig, Web

pytestmark = pytest.mark.stack

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
KICKS = "from responses_ws.tasks import bill_batch; [bill_batch.delay() for _ in range(3)]"


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
async def test_the_ledger_is_what_was_seen_or_what_the_engine_made(rig: Rig, well: Web, model: str) -> None:
    server, earlier = well, rig.postings()
    door = Door(server, rig.create_key(f"day of {model}"))

    seen, cut_off = await a_working_day(door, model)
    records = {response_id: server.usage(response_id) for response_id in cut_off + [one["id"] for one in seen]}
    assert rig.postings() == earlier, "billing ran without a worker"
    with rig.working(pool="prefork"):
        until(lambda: not rig.unbilled(), "all to be billed", seconds=30)
        booked = rig.postings()
        rig.run(KICKS)
        until(lambda: not rig.queued(), "the kicks to be taken")
    assert not rig.books()["differences"]

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
    engine_log = rig.scripted_tokens if model == "scripted" else rig.engine.tokens
    for response_id in cut_off:
        record = records[response_id]
        assert (record["status"], bool(record["estimated"])) == ("cancelled", model != "scripted")
        assert amounts[response_id] == money(record) > 0
        if model == "scripted":
            made = engine_log.call(response_id)
            assert made["outcome"] == "aborted"
            assert (record["input_tokens"], record["output_tokens"]) == (made["prompt_tokens"], made["output_tokens"])
    assert rig.postings() == booked, "a second delivery changed the books"
    assert booked != earlier
    rig.forget()
