"""Long contexts made short: asked for, in time, or at the end of an input."""

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from responses_ws.connection.chain import Chains
from responses_ws.connection.commands import Append
from responses_ws.engines.base import ChatRequest
from responses_ws.engines.registry import registry
from responses_ws.engines.script import Plan, pieces_of
from responses_ws.engines.scripted import Scripted
from responses_ws.models import StoredItem, UsageRecord
from responses_ws.protocol.compaction import INSTRUCTION, INTRODUCTION, CompactRequest
from responses_ws.protocol.errors import (
    InvalidEncryptedContent,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    PreviousResponseNotFound,
)
from responses_ws.protocol.steering import Steer
from responses_ws.runtime import background
from responses_ws.runtime.sealing import seal
from responses_ws.serving.admission import Principal
from responses_ws.serving.compaction import compact
from responses_ws.serving.mailbox import Mailbox
from responses_ws.serving.turns import run_turn
from responses_ws.stores.memory import hot_tier
from tests.protocol import grammar

from .turns import asked, events_of, response_of

LONG = "many words " * 1000
TRIGGER = {"type": "compaction_trigger"}
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


class Summariser(Scripted):
    """Answers as ever; asked for a summary it says ``summary``. Remembers its prompts as (role, text)."""

    def __init__(self) -> None:
        super().__init__("scripted", {"TOKEN_IDS": False})
        self.prompts: list[list[tuple[str, str]]] = []
        self.summary = "In short: cobalt."
        self.plan_summary: dict[str, Any] = {}
        self.most_bytes = 1_000_000

    def plan(self, request: ChatRequest) -> Plan:
        prompt = [(message["role"], str(message.get("content"))) for message in request.prompt.newest_first()][::-1]
        if request.prompt.byte_length > self.most_bytes:
            return Plan(fail="context_length")
        self.prompts.append(prompt)
        if prompt[-1] != ("user", INSTRUCTION):
            return super().plan(request)
        assert (request.tool_choice, request.response_format) in ((None, None), ("none", None))
        return Plan(text=pieces_of(self.summary), **self.plan_summary)


@pytest.fixture
def engine() -> Iterator[Summariser]:
    engine = Summariser()
    registry.install("scripted", engine)
    yield engine


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": text}


SUMMARY = ("user", f"{INTRODUCTION}\n\nIn short: cobalt.")


def told(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events, found legal."""
    return grammar.read([msgspec.json.encode(event).decode() for event in events])


# POST /v1/responses/compact


async def test_a_short_context_is_sealed_as_it_is(principal: Principal, engine: Summariser) -> None:
    history = [user("Remember cobalt."), assistant("I do."), user("Thanks."), assistant("Well.")]

    answer = await compact(principal, CompactRequest(model="scripted", input=history))

    assert [item["type"] for item in answer["output"]] == ["message", "message", "compaction"]
    assert answer["usage"]["total_tokens"] == 0
    assert engine.prompts == []
    await events_of(asked(principal, [*answer["output"], user("What was it?")], store=False))
    assert engine.prompts == [
        [
            ("user", "Remember cobalt."),
            ("assistant", "I do."),
            ("user", "Thanks."),
            ("assistant", "Well."),
            ("user", "What was it?"),
        ]
    ]


async def test_a_long_context_is_summed_up_by_the_model_and_billed(principal: Principal, engine: Summariser) -> None:
    history = [{"role": "developer", "content": "Be brief."}, user("Remember cobalt."), assistant(LONG)]

    answer = await compact(principal, CompactRequest(model="scripted", input=history, instructions="You are kind."))

    assert engine.prompts[0][0] == ("system", "You are kind.")
    assert engine.prompts[0][-1] == ("user", INSTRUCTION)
    record = await UsageRecord.objects.aget()
    assert (record.response_id, record.transport, record.status) == (answer["id"], "compact", "completed")
    assert record.input_tokens == answer["usage"]["input_tokens"] > 2000
    assert record.output_tokens == answer["usage"]["output_tokens"] == len(pieces_of(engine.summary))
    assert not await StoredItem.objects.aexists()

    await events_of(asked(principal, [*answer["output"], user("What was it?")], store=False))
    assert engine.prompts[1] == [
        ("system", "Be brief."),
        ("user", "Remember cobalt."),
        SUMMARY,
        ("user", "What was it?"),
    ]


@pytest.mark.parametrize("text", ["x", LONG], ids=["short", "long"])
async def test_tools_that_came_as_an_item_are_still_offered(
    principal: Principal, engine: Summariser, text: str
) -> None:
    tools = {"type": "additional_tools", "role": "developer", "tools": [WEATHER]}
    history = [tools, user("One"), assistant(text)]
    answer = await compact(principal, CompactRequest(model="scripted", input=history))

    response = await response_of(asked(principal, [*answer["output"], user("Weather in Oslo?")], store=False))

    assert [item["type"] for item in response["output"]] == ["function_call"]


async def test_a_compacted_context_is_compacted_again(principal: Principal, engine: Summariser) -> None:
    first = await compact(principal, CompactRequest(model="scripted", input=[user("One"), assistant(LONG)]))
    engine.summary = "In short: both."

    again = [*first["output"], user("Two"), assistant(LONG)]
    second = await compact(principal, CompactRequest(model="scripted", input=again))
    await events_of(asked(principal, [*second["output"], user("Three")], store=False))

    assert SUMMARY in engine.prompts[1]
    assert [item["type"] for item in second["output"]] == ["message", "message", "compaction"]
    assert engine.prompts[2] == [
        ("user", "One"),
        ("user", "Two"),
        ("user", f"{INTRODUCTION}\n\nIn short: both."),
        ("user", "Three"),
    ]


async def test_a_stored_response_is_compacted_and_an_unstored_one_is_not_found(principal: Principal) -> None:
    stored = await response_of(asked(principal, "Remember cobalt", store=True))
    unstored = await response_of(asked(principal, "A secret", store=False, chains=Chains()))

    answer = await compact(principal, CompactRequest(model="scripted", previous_response_id=stored["id"]))
    with pytest.raises(PreviousResponseNotFound):
        await compact(principal, CompactRequest(model="scripted", previous_response_id=unstored["id"]))

    assert answer["output"][0]["content"] == [{"type": "input_text", "text": "Remember cobalt"}]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        pytest.param({"model": None, "input": "hi"}, InvalidRequest, id="no model"),
        pytest.param({"model": "nobody", "input": "hi"}, ModelNotFound, id="unknown model"),
        pytest.param({"input": [{"type": "compaction", "encrypted_content": "x"}]}, InvalidEncryptedContent, id="seal"),
        pytest.param({"input": [TRIGGER, user("hi")]}, InvalidRequest, id="a trigger before the end"),
    ],
)
async def test_a_compaction_that_cannot_be_is_refused(
    principal: Principal, fields: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        await compact(principal, CompactRequest(**{"model": "scripted", **fields}))


@pytest.mark.parametrize(
    ("plan", "error"),
    [({"fail": "overloaded"}, Overloaded), ({"break_after": 1}, Exception)],
    ids=["refused", "broken"],
)
async def test_a_summary_that_fails_is_an_error_with_a_status(
    principal: Principal, engine: Summariser, plan: dict[str, Any], error: type[Exception]
) -> None:
    engine.plan_summary = plan

    with pytest.raises(error) as caught:
        await compact(principal, CompactRequest(model="scripted", input=[user(LONG), assistant("x")]))

    assert getattr(caught.value, "status", None) in (500, 503)
    assert (await UsageRecord.objects.aget()).status == "failed"


# An item that comes back


async def test_a_compaction_opens_for_its_project_only_and_is_kept_sealed(
    principal: Principal, other_principal: Principal, engine: Summariser
) -> None:
    answer = await compact(principal, CompactRequest(model="scripted", input=[user("One"), assistant(LONG)]))
    item = answer["output"][-1]

    with pytest.raises(InvalidEncryptedContent) as caught:
        await events_of(asked(other_principal, [user("x"), item], store=False))
    await response_of(asked(principal, [*answer["output"], user("Two")], store=True))

    assert caught.value.param == "input[1].encrypted_content"
    kept = [msgspec.json.decode(row.body) async for row in StoredItem.objects.order_by("position")]
    assert kept[:2] == answer["output"]


async def test_what_is_no_context_does_not_open(principal: Principal) -> None:
    sealed = seal(b"5", purpose="compaction", project_id=principal.project_id)

    with pytest.raises(InvalidEncryptedContent):
        await events_of(asked(principal, [{"type": "compaction", "encrypted_content": sealed}], store=False))


async def test_a_compaction_in_the_middle_of_a_chain_counts_for_what_was_before(
    principal: Principal, engine: Summariser
) -> None:
    chains = Chains()
    first = await response_of(asked(principal, "One", store=False, chains=chains))
    answer = await compact(principal, CompactRequest(model="scripted", input=[user("One"), assistant(LONG)]))

    given = [answer["output"][-1], user("Two")]
    await response_of(asked(principal, given, previous_response_id=first["id"], store=False, chains=chains))

    assert engine.prompts[-1] == [("user", "One"), SUMMARY, ("user", "Two")]


# In time: context_management


def in_time(threshold: float | None, **fields: Any) -> dict[str, Any]:
    return {"context_management": [{"type": "compaction", "compact_threshold": threshold}], **fields}


@pytest.mark.parametrize("store", [False, True], ids=["memory", "database"])
async def test_a_context_above_the_threshold_is_compacted_before_the_answer(
    principal: Principal, engine: Summariser, store: bool
) -> None:
    ask = "!tokens 3000 Remember cobalt"
    chains = Chains()
    first = await response_of(asked(principal, ask, store=store, chains=chains))
    more = {"store": store, "chains": chains, **in_time(50)}

    events = told(
        await events_of(
            asked(principal, f"Now {LONG}", previous_response_id=first["id"], instructions="Be nice.", **more)
        )
    )
    response = events[-1]["response"]
    if store:
        hot_tier.clear()
        more["chains"] = Chains()
    summed_up = len(engine.prompts)
    after = await response_of(
        asked(principal, "On", previous_response_id=response["id"], **{**more, "context_management": None})
    )

    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[:5] == ["created", "in_progress", "output_item.added", "compaction.compacting", "output_item.done"]
    assert [item["type"] for item in response["output"]] == ["compaction", "message"]
    assert engine.prompts[summed_up - 1] == [
        ("system", "Be nice."),
        ("user", ask),
        SUMMARY,
        ("user", f"Now {LONG}"),
    ]
    assert engine.prompts[-1][:2] == [("user", ask), SUMMARY]
    assert engine.prompts[-1][-1] == ("user", "On")
    assert after["output"][0]["type"] == "message"


async def test_the_usage_of_both_calls_is_in_the_one_response(principal: Principal, engine: Summariser) -> None:
    history = [user("One"), assistant(LONG), user("Two")]

    response = await response_of(asked(principal, history, store=False, **in_time(100)))

    record = await UsageRecord.objects.aget()
    usage = response["usage"]
    answer = response["output"][1]["content"][0]["text"]
    assert (record.transport, record.status) == ("websocket", "completed")
    assert record.output_tokens == usage["output_tokens"] == len(pieces_of(engine.summary)) + len(pieces_of(answer))
    assert record.input_tokens == usage["input_tokens"] > 2700


@pytest.mark.parametrize(
    ("given", "threshold"),
    [
        pytest.param([user("One"), assistant(LONG), user("Two")], 100_000, id="below"),
        pytest.param([user("One"), assistant(LONG), user("Two")], None, id="nobody knows how long it may be"),
        pytest.param([user(LONG)], 100, id="nothing to fold"),
        # It stays above the threshold whatever is folded: each turn of the chain was charged for a summary of its own.
        pytest.param([user(LONG), assistant("Yes."), user("Two")], 100, id="hardly anything to fold"),
    ],
)
async def test_a_context_is_left_alone_otherwise(
    principal: Principal, engine: Summariser, given: list[Any], threshold: int | None
) -> None:
    response = await response_of(asked(principal, given, store=False, **in_time(threshold)))

    assert [item["type"] for item in response["output"]] == ["message"]
    assert len(engine.prompts) == 1


async def test_without_a_threshold_the_model_s_own_context_counts(
    principal: Principal, engine: Summariser, settings: Any
) -> None:
    models = {"scripted": {"ENGINE": "scripted", "CONTEXT": 3000}}
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "MODELS": models}
    registry.install("scripted", engine)
    history = [user("One"), assistant(LONG), user("Two")]

    response = await response_of(asked(principal, history, store=False, **in_time(None)))

    assert [item["type"] for item in response["output"]] == ["compaction", "message"]


async def test_a_client_that_sends_everything_again_is_not_charged_for_it(
    principal: Principal, engine: Summariser
) -> None:
    history = [user("One"), assistant(LONG), user("Two")]
    first = await response_of(asked(principal, history, store=False, **in_time(100)))

    again = [*history, *first["output"], user("Three")]
    second = await response_of(asked(principal, again, store=False, **in_time(100)))

    assert [item["type"] for item in second["output"]] == ["message"]
    assert engine.prompts[-1][:3] == [("user", "One"), SUMMARY, ("user", "Two")]


async def test_turns_after_a_compaction_cost_what_is_new(principal: Principal, engine: Summariser, monkeypatch) -> None:
    from responses_ws.rendering import chat

    chains = Chains()
    history = [user("One"), assistant(LONG), user("Two")]
    response = await response_of(asked(principal, history, store=False, chains=chains, **in_time(500)))
    rendered: list[int] = []
    original = chat.messages_from
    monkeypatch.setattr(
        chat, "messages_from", lambda items, takes: (rendered.append(len(items)), original(items, takes))[1]
    )

    for _ in range(3):
        response = await response_of(
            asked(principal, "more", previous_response_id=response["id"], store=False, chains=chains, **in_time(500))
        )

    assert rendered == [1] * 6


@pytest.mark.parametrize("plan", [{"fail": "rate_limited"}, {"fail": "context_length"}], ids=str)
async def test_a_refused_summary_is_an_error_before_anything_is_said(
    principal: Principal, engine: Summariser, plan: dict[str, Any]
) -> None:
    engine.plan_summary = plan

    with pytest.raises(Exception) as caught:
        await events_of(asked(principal, [user("One"), assistant(LONG)], store=False, **in_time(100)))

    assert getattr(caught.value, "status", None) in (400, 429)


async def test_a_context_that_is_too_long_to_be_summed_up_loses_its_oldest_turns_first(
    principal: Principal, engine: Summariser
) -> None:
    """With ``truncation: auto``, where the engine refuses even the summary."""
    engine.most_bytes = 20_000
    history = [user("One"), assistant(LONG), user("Two"), assistant(LONG), user("Three")]

    response = await response_of(asked(principal, history, store=False, truncation="auto", **in_time(100)))

    assert [item["type"] for item in response["output"]] == ["compaction", "message"]
    assert ("user", "One") not in engine.prompts[-2]
    assert engine.prompts[-1] == [("user", "One"), ("user", "Two"), SUMMARY, ("user", "Three")]


async def test_what_the_answer_may_cost_is_not_spent_on_the_summary(principal: Principal, engine: Summariser) -> None:
    engine.summary = "many words " * 20
    history = [user("One"), assistant(LONG), user("!tokens 30")]

    response = await response_of(asked(principal, history, store=False, max_output_tokens=5, **in_time(100)))

    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["usage"]["output_tokens"] == len(pieces_of(engine.summary)) + 5


async def test_a_summary_is_plain_text_and_calls_no_tool(principal: Principal, engine: Summariser) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    text = {"format": {"type": "json_schema", "name": "city", "schema": schema, "strict": True}}
    history = [user("One"), assistant(LONG), user("Oslo")]

    response = await response_of(
        asked(principal, history, store=False, tools=[WEATHER], text=text, tool_choice="required", **in_time(100))
    )

    assert [item["type"] for item in response["output"]] == ["compaction", "function_call"]


@pytest.mark.parametrize("summary", ["", " "], ids=["nothing", "a blank"])
async def test_a_summary_that_says_nothing_fails_the_turn(
    principal: Principal, engine: Summariser, summary: str
) -> None:
    engine.summary = summary

    events = told(await events_of(asked(principal, [user("One"), assistant(LONG)], store=False, **in_time(100))))

    assert events[-1]["type"] == "response.failed"
    assert (await UsageRecord.objects.aget()).status == "failed"


async def test_a_client_that_leaves_during_the_summary_is_billed_for_it(
    principal: Principal, engine: Summariser
) -> None:
    engine.plan_summary = {"tokens_per_second": 200.0}
    engine.summary = LONG
    ask = asked(principal, [user("One"), assistant(LONG)], store=False, **in_time(100))

    async with aclosing(run_turn(ask)) as runs:
        begun = await anext(runs)
    await background.settle()

    record = await UsageRecord.objects.aget()
    response_id = msgspec.json.decode(begun[0])["response"]["id"]
    assert "compaction.compacting" in begun[-1]
    assert (record.response_id, record.status) == (response_id, "cancelled")


async def test_a_steer_waits_for_the_summary_and_its_successor_has_it(principal: Principal, engine: Summariser) -> None:
    mailbox: Mailbox[Any] = Mailbox()
    engine.plan_summary = {"tokens_per_second": 50.0}
    chains = Chains()
    ask = asked(principal, [user("One"), assistant(LONG)], store=False, chains=chains, **in_time(100))
    ask.mailbox = mailbox
    events: list[dict[str, Any]] = []

    async with aclosing(run_turn(ask)) as runs:
        async for frames in runs:
            if not events:
                response_id = msgspec.json.decode(frames[0])["response"]["id"]
                mailbox.put(Steer(response_id, "rather this"))
            events += map(msgspec.json.decode, frames)

    (steered, successor) = [event["response"] for event in events if event["type"] in grammar.TERMINAL]
    assert (steered["status"], steered["incomplete_details"]) == ("incomplete", {"reason": "steered"})
    assert [item["type"] for item in steered["output"]] == ["compaction"]
    assert successor["status"] == "completed"
    assert engine.prompts[-1] == [("user", "One"), SUMMARY, ("user", "rather this")]


async def test_one_long_response_is_compacted_between_its_steps(principal: Principal, engine: Summariser) -> None:
    mailbox: Mailbox[Any] = Mailbox()
    ask = asked(principal, "Weather in Oslo?", tools=[WEATHER], store=True, chains=Chains(), **in_time(500))
    ask.mailbox, ask.may_append = mailbox, True
    events: list[dict[str, Any]] = []

    outputs = [LONG, "sunny"]
    async with aclosing(run_turn(ask)) as runs:
        async for frames in runs:
            events += map(msgspec.json.decode, frames)
            if events[-1]["type"] == "response.done":
                call_id = events[-1]["required"][0]["call_id"]
                output = {"type": "function_call_output", "call_id": call_id, "output": outputs.pop(0)}
                mailbox.put(Append([output]))

    response = events[-1]["response"]
    assert [item["type"] for item in response["output"]] == [
        "function_call",
        "function_call_output",
        "compaction",
        "function_call",
        "function_call_output",
        "message",
    ]
    assert engine.prompts[2] == [("user", "Weather in Oslo?"), SUMMARY]
    hot_tier.clear()
    await response_of(asked(principal, "On", previous_response_id=response["id"]))
    assert engine.prompts[-1][:2] == [("user", "Weather in Oslo?"), SUMMARY]
    assert [role for role, _ in engine.prompts[-1][2:]] == ["assistant", "tool", "assistant", "user"]


# At the end of an input: compaction_trigger


@pytest.mark.parametrize("text", ["x", LONG], ids=["short", "long"])
async def test_a_trigger_is_answered_with_one_compaction_and_nothing_else(
    principal: Principal, engine: Summariser, text: str
) -> None:
    chains = Chains()
    events = told(
        await events_of(asked(principal, [user("One"), assistant(text), TRIGGER], store=False, chains=chains))
    )
    response = events[-1]["response"]

    assert response["status"] == "completed"
    assert [item["type"] for item in response["output"]] == ["compaction"]
    assert ("response.compaction.compacting" in [event["type"] for event in events]) == (text == LONG)
    assert (await UsageRecord.objects.aget()).status == "completed"
    await response_of(asked(principal, "Two", previous_response_id=response["id"], store=False, chains=chains))
    expected = SUMMARY if text == LONG else ("assistant", "x")
    assert engine.prompts[-1] == [("user", "One"), expected, ("user", "Two")]


async def test_a_summary_that_was_cut_off_still_completes_the_trigger(principal: Principal, engine: Summariser) -> None:
    engine.plan_summary = {"finish": "length"}

    response = await response_of(asked(principal, [user("One"), assistant(LONG), TRIGGER], store=False))

    assert (response["status"], response["incomplete_details"]) == ("completed", None)


async def test_a_trigger_has_nothing_to_do_with_the_form_of_answers(principal: Principal) -> None:
    schema = {"type": "object", "properties": {}, "required": ["x"]}
    text = {"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}}

    response = await response_of(asked(principal, [user("One"), TRIGGER], store=False, text=text))

    assert response["status"] == "completed"


async def test_a_trigger_continues_a_stored_chain(principal: Principal, engine: Summariser) -> None:
    first = await response_of(asked(principal, f"One {LONG}", store=True))

    second = await response_of(asked(principal, [TRIGGER], previous_response_id=first["id"], store=True))
    hot_tier.clear()
    await response_of(asked(principal, "Two", previous_response_id=second["id"], store=True))

    assert [item["type"] for item in second["output"]] == ["compaction"]
    assert engine.prompts[-1] == [("user", f"One {LONG}"), SUMMARY, ("user", "Two")]


async def test_forks_of_a_compacted_response_share_its_past(principal: Principal, engine: Summariser) -> None:
    chains = Chains()
    history = [user("One"), assistant(LONG), user("Two")]
    root = await response_of(asked(principal, history, store=False, chains=chains, **in_time(100)))

    await asyncio.gather(
        *(
            response_of(
                asked(principal, name, previous_response_id=root["id"], store=False, chains=chains, stream_id=name)
            )
            for name in ("left", "right")
        )
    )

    assert {prompt[-1][1] for prompt in engine.prompts[-2:]} == {"left", "right"}
    assert engine.prompts[-1][:3] == engine.prompts[-2][:3] == [("user", "One"), SUMMARY, ("user", "Two")]
