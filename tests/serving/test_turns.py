import asyncio
from contextlib import aclosing

import msgspec
import pytest
from asgiref.sync import sync_to_async

from responses_ws.connection.chain import Chains
from responses_ws.models import StoredItem, StoredResponse, UsageRecord
from responses_ws.protocol.errors import InvalidRequest, ModelNotFound, Overloaded, PreviousResponseNotFound
from responses_ws.runtime import background, dbpool, faults
from responses_ws.serving.admission import Principal
from responses_ws.serving.turns import run_turn
from responses_ws.stores import rows
from responses_ws.stores.memory import hot_tier

from .turns import asked, events_of, response_of

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


async def record_of(response_id: str) -> UsageRecord:
    return await UsageRecord.objects.aget(response_id=response_id)


async def test_a_turn_answers_and_its_usage_is_recorded_before_the_terminal_event(principal: Principal) -> None:
    statuses = []
    async with aclosing(run_turn(asked(principal, "Hello there", store=False))) as runs:
        async for frames in runs:
            if frames[-1].startswith('{"type":"response.completed"'):
                response = msgspec.json.decode(frames[-1])["response"]
                statuses.append((await record_of(response["id"])).status)

    record = await record_of(response["id"])
    usage = response["usage"]
    assert statuses == ["completed"]
    assert (record.input_tokens, record.output_tokens) == (usage["input_tokens"], usage["output_tokens"])
    assert (record.model, record.transport, record.estimated) == ("scripted", "websocket", False)
    assert record.first_token_ms is not None and record.duration_ms >= record.first_token_ms


async def test_the_first_output_waits_for_the_opened_record(principal: Principal) -> None:
    async with aclosing(run_turn(asked(principal, "!tokens 5 hello", store=False))) as runs:
        begun = await anext(runs)
        response_id = msgspec.json.decode(begun[0])["response"]["id"]
        await anext(runs)
        record = await record_of(response_id)

    assert record.status == "in_progress"


async def test_output_that_finds_no_record_leaves_no_gap_behind(principal: Principal) -> None:
    faults.arm("row.written:1:raise")
    try:
        events = await events_of(asked(principal, "!tokens 5 hello", store=False))
    finally:
        faults.arm("")

    assert [event["type"] for event in events] == ["response.created", "response.in_progress", "response.failed"]
    assert [event["sequence_number"] for event in events] == [0, 1, 2]


async def test_a_tool_loop_sends_only_the_output(principal: Principal) -> None:
    chains = Chains()
    first = await response_of(asked(principal, "Weather in Oslo?", tools=[WEATHER], store=False, chains=chains))
    call = first["output"][0]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "clear"}

    second = await response_of(
        asked(principal, [output], previous_response_id=first["id"], tools=[WEATHER], store=False, chains=chains)
    )

    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "get_weather", '{"city":"Oslo"}')
    assert "clear" in second["output"][0]["content"][0]["text"]
    assert second["previous_response_id"] == first["id"]


@pytest.mark.parametrize(
    ("given", "fields", "error"),
    [
        pytest.param("hi", {"model": "nobody"}, ModelNotFound, id="unknown model"),
        pytest.param("hi", {"previous_response_id": "resp_x"}, PreviousResponseNotFound, id="unknown parent"),
        pytest.param(
            [{"type": "function_call_output", "call_id": "call_x", "output": ""}], {}, InvalidRequest, id="orphan"
        ),
        pytest.param("!fail overloaded", {}, Overloaded, id="engine refuses"),
    ],
)
async def test_a_refusal_comes_before_any_event(
    principal: Principal, given: object, fields: dict[str, str], error: type[Exception]
) -> None:
    with pytest.raises(error):
        await events_of(asked(principal, given, store=False, **fields))


async def test_a_model_outside_the_key_s_list_looks_unknown(principal: Principal) -> None:
    confined = msgspec.structs.replace(principal, allowed_models=frozenset({"other"}))

    with pytest.raises(ModelNotFound):
        await events_of(asked(confined, "hi"))


async def test_an_engine_that_breaks_ends_in_failed_and_is_recorded_as_such(principal: Principal) -> None:
    events = await events_of(asked(principal, "!tokens 9 !break 3 hello", store=True))

    record = await record_of(events[0]["response"]["id"])
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["code"] == "server_error"
    assert record.status == "failed"
    assert record.output_tokens == 3
    assert not await StoredResponse.objects.aexists()


async def test_a_client_that_leaves_mid_turn_is_still_recorded(principal: Principal) -> None:
    async with aclosing(run_turn(asked(principal, "!tokens 1000 !rate 200 hello", store=False))) as runs:
        begun = await anext(runs)
        response_id = msgspec.json.decode(begun[0])["response"]["id"]
        seen = 0
        while seen < 3:
            seen += sum("output_text.delta" in frame for frame in await anext(runs))
    await background.settle()

    record = await record_of(response_id)
    assert (record.status, record.reason) == ("cancelled", "client_left")
    assert seen <= record.output_tokens < 1000
    assert not record.estimated


async def test_a_cancelled_task_is_recorded_too(principal: Principal) -> None:
    begun: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def serve() -> None:
        async with aclosing(run_turn(asked(principal, "!tokens 1000 !rate 200 hello", store=False))) as runs:
            async for frames in runs:
                if not begun.done():
                    begun.set_result(msgspec.json.decode(frames[0])["response"]["id"])

    task = asyncio.create_task(serve())
    response_id = await begun
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await background.settle()

    assert (await record_of(response_id)).status == "cancelled"


async def test_a_record_that_the_reaper_has_closed_stays_as_it_is(principal: Principal) -> None:
    events = []
    async with aclosing(run_turn(asked(principal, "!tokens 5 hello", store=True))) as runs:
        async for frames in runs:
            events += map(msgspec.json.decode, frames)
            if any(event["type"] == "response.output_text.delta" for event in events):
                await UsageRecord.objects.filter(status="in_progress").aupdate(status="abandoned")

    record = await record_of(events[0]["response"]["id"])
    assert events[-1]["type"] == "response.failed"
    assert (record.status, record.output_tokens) == ("abandoned", 0)
    assert not await StoredResponse.objects.aexists()


async def test_a_silent_engine_runs_into_its_deadline(principal: Principal, settings) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "LIMITS": {"engine_next_delta_seconds": 0.1}}

    events = await events_of(asked(principal, "!tokens 3 !stall 30 hello", store=False))

    assert events[-1]["type"] == "response.failed"


async def test_created_does_not_wait_for_a_slow_engine(principal: Principal) -> None:
    async with aclosing(run_turn(asked(principal, "!ttft 60000 hello", store=False))) as runs:
        begun = await anext(runs)

    assert [msgspec.json.decode(frame)["type"] for frame in begun] == ["response.created", "response.in_progress"]


async def test_a_warm_up_is_a_full_response_without_the_engine(principal: Principal) -> None:
    chains = Chains()
    developer = [{"role": "developer", "content": "Be brief."}]
    events = await events_of(asked(principal, developer, generate=False, store=False, chains=chains))

    warm = events[-1]["response"]
    following = await response_of(
        asked(principal, "Hello", previous_response_id=warm["id"], store=False, chains=chains)
    )

    record = await record_of(warm["id"])
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.completed",
    ]
    assert warm["output"] == [] and warm["usage"]["output_tokens"] == 0 < warm["usage"]["input_tokens"]
    assert record.is_warmup and record.status == "completed"
    assert following["usage"]["input_tokens"] > warm["usage"]["input_tokens"]


async def test_a_failed_continuation_evicts_its_parent_in_the_same_lane_only(principal: Principal) -> None:
    chains = Chains()
    first = await response_of(asked(principal, "one", store=False, chains=chains))
    orphan = [{"type": "function_call_output", "call_id": "call_x", "output": ""}]
    again = {"previous_response_id": first["id"], "store": False, "chains": chains}

    with pytest.raises(InvalidRequest):
        await events_of(asked(principal, orphan, stream_id="fork", **again))
    assert (await response_of(asked(principal, "still here", stream_id="fork", **again)))["status"] == "completed"
    with pytest.raises(InvalidRequest):
        await events_of(asked(principal, orphan, **again))
    with pytest.raises(PreviousResponseNotFound):
        await events_of(asked(principal, "gone", **again))


async def test_an_unstored_response_is_found_by_nobody_else(principal: Principal) -> None:
    first = await response_of(asked(principal, "a secret", store=False, chains=Chains()))

    for chains in (Chains(), None):
        with pytest.raises(PreviousResponseNotFound):
            await events_of(asked(principal, "go on", previous_response_id=first["id"], chains=chains))
    assert not await StoredItem.objects.aexists()
    assert len(hot_tier) == 0


@pytest.mark.parametrize("forget", [pytest.param(False, id="hot tier"), pytest.param(True, id="database")])
async def test_a_stored_response_is_continued_from_any_door(principal: Principal, forget: bool) -> None:
    first = await response_of(asked(principal, "Remember cobalt", store=True, chains=Chains()))
    if forget:
        hot_tier.clear()

    second = await response_of(asked(principal, "Go on", previous_response_id=first["id"], transport="http"))

    assert second["status"] == "completed"
    bodies = [item.body async for item in StoredItem.objects.order_by("position")]
    texts = [msgspec.json.decode(body)["content"][0]["text"] for body in bodies]
    assert texts == ["Remember cobalt", 'You said: "Remember cobalt"', "Go on", 'You said: "Go on"']


async def test_another_project_gets_the_same_answer_as_for_an_unknown_id(
    principal: Principal, other_principal: Principal
) -> None:
    first = await response_of(asked(principal, "mine", store=True))

    messages = []
    for response_id in (first["id"], "resp_" + "0" * 48):
        with pytest.raises(PreviousResponseNotFound) as caught:
            await events_of(asked(other_principal, "yours?", previous_response_id=response_id))
        messages.append(caught.value.message.replace(response_id, "ID"))

    assert messages[0] == messages[1]


async def test_a_stored_child_of_an_unstored_parent_keeps_its_whole_context(principal: Principal) -> None:
    chains = Chains()
    first = await response_of(asked(principal, "one", store=False, chains=chains))
    second = await response_of(asked(principal, "two", previous_response_id=first["id"], store=True, chains=chains))

    assert await StoredItem.objects.acount() == 4
    assert (await StoredResponse.objects.aget()).id == second["id"]


async def test_a_turn_writes_only_what_is_new(principal: Principal, django_assert_max_num_queries) -> None:
    previous, sizes = None, []
    for _ in range(20):
        response = await response_of(asked(principal, "x" * 2048, previous_response_id=previous, store=True))
        previous = response["id"]
        rows = [item async for item in StoredItem.objects.filter(item_id=response["output"][0]["id"])]
        body = (await StoredResponse.objects.aget(id=previous)).body
        sizes.append(len(body) + sum(len(row.body) for row in rows))

    assert await StoredItem.objects.acount() == 40
    assert max(sizes[1:]) - min(sizes[1:]) <= 8


async def test_a_hundred_turns_render_every_item_once(principal: Principal, monkeypatch) -> None:
    """The cost of a turn is the cost of what is new: counted, not timed."""
    from responses_ws.rendering import chat

    rendered: list[int] = []
    original = chat.messages_from
    monkeypatch.setattr(chat, "messages_from", lambda items, *a: (rendered.append(len(items)), original(items, *a))[1])
    chains, previous = Chains(), None
    for _ in range(100):
        response = await response_of(
            asked(principal, "more", previous_response_id=previous, store=False, chains=chains)
        )
        previous = response["id"]

    assert rendered == [1] * 200


async def test_forks_of_one_parent_go_separate_ways(principal: Principal) -> None:
    chains = Chains()
    root = await response_of(asked(principal, "root", store=True, chains=chains))

    left, right = await asyncio.gather(
        *(
            response_of(
                asked(principal, name, previous_response_id=root["id"], store=True, chains=chains, stream_id=name)
            )
            for name in ("left", "right")
        )
    )
    hot_tier.clear()
    after = await response_of(asked(principal, "on", previous_response_id=right["id"], store=True))

    stored = await StoredResponse.objects.select_related("chain").aget(id=after["id"])
    assert left["id"] != right["id"]
    assert stored.input_end == 5
    assert await StoredItem.objects.acount() == 2 + 2 + 2 + 2


async def test_a_silent_engine_is_kept_alive_by_a_repeated_event(principal: Principal, settings) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "LIMITS": {"keep_alive_seconds": 0.05}}

    events = await events_of(asked(principal, "!ttft 300 !tokens 2 hello", store=False))

    types = [event["type"] for event in events]
    assert types.count("response.in_progress") >= 3
    assert types[-1] == "response.completed"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


async def test_a_parent_deleted_elsewhere_is_noticed_at_the_latest_when_its_child_is_stored(
    principal: Principal,
) -> None:
    """Another process holds the parent in its hot tier: what it makes from it must not look stored."""
    first = await response_of(asked(principal, "one", store=True))
    link = hot_tier.get(principal.project_id, first["id"])
    assert link is not None
    await sync_to_async(rows.delete)(principal.project_id, first["id"])

    events = await events_of(asked(principal, "two", previous_response_id=first["id"], store=True))

    record = await record_of(events[0]["response"]["id"])
    assert events[-1]["type"] == "response.failed"
    assert (record.status, record.reason) == ("failed", "previous_response_not_found")
    assert not await StoredItem.objects.aexists()


async def test_a_record_times_a_turn_from_its_request_on(principal: Principal) -> None:
    ask = asked(principal, "Hello")
    ask.received_at -= 100

    response = await response_of(ask)
    record = await dbpool.run(lambda: UsageRecord.objects.get(response_id=response["id"]))

    assert record.first_token_ms is not None and record.duration_ms is not None
    assert 100_000 <= record.first_token_ms <= record.duration_ms
