"""Every way in is looked at; what clients are told of it, and what is kept."""

import asyncio
import queue
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
from asgiref.sync import sync_to_async
from django.apps import apps
from django.test import override_settings
from openai.types.responses import Response

from responses_ws.connection.chain import Chains
from responses_ws.connection.commands import Append
from responses_ws.engines.registry import registry
from responses_ws.models import ConversationItem, Flag, Project, StoredItem
from responses_ws.protocol.compaction import CompactRequest
from responses_ws.protocol.errors import InvalidRequest, Overloaded
from responses_ws.protocol.steering import Steer
from responses_ws.runtime import background
from responses_ws.safety.moderation import ModerationEndpoint
from responses_ws.safety.registry import classifiers
from responses_ws.serving import background as jobs
from responses_ws.serving.admission import Principal
from responses_ws.serving.compaction import compact
from responses_ws.serving.mailbox import Mailbox
from responses_ws.serving.safety import screened
from responses_ws.serving.sampling import Word
from responses_ws.serving.turns import run_turn
from responses_ws.signals import content_flagged
from responses_ws.stores import conversations, rows
from responses_ws.stores.memory import hot_tier
from responses_ws.testing import Call, Plan, ScriptedEngine
from tests.fakes.moderation_server import ModerationServer
from tests.safety.spies import Spy

from .bytes_model import BytesEngine, spelled
from .test_compaction import LONG, Summariser
from .test_safety import REFUSAL, SEND, engine, flags, seat, shown_to, text_of
from .turns import asked, events_of, response_of

__all__ = ["engine"]


@pytest.fixture
async def endpoint() -> AsyncIterator[ModerationServer]:
    """A moderation endpoint that clients may ask for as ``omni``."""
    async with ModerationServer().running() as server:
        classifier = ModerationEndpoint("omni", {"BASE_URL": server.url, "MODEL": "omni"})
        classifiers.install(classifier, FAIL="open", WHEN_ASKED=True, SECONDS=5)
        yield server
        await classifier.aclose()


def moderation(**modes: str) -> dict[str, Any]:
    return {"model": "omni", "policy": {side: {"mode": mode} for side, mode in modes.items()}}


async def test_a_client_is_told_the_scores_of_both_sides(
    principal: Principal, engine: ScriptedEngine, endpoint: ModerationServer
) -> None:
    engine.answers = ["You should buy it."]

    events = await events_of(asked(principal, "kill", moderation={"model": "omni"}))

    told = events[-1]["response"]["moderation"]
    assert events[0]["response"]["moderation"] is None
    assert (told["input"]["type"], told["input"]["model"]) == ("moderation_result", "omni")
    assert told["input"]["flagged"] and told["input"]["categories"] == {"violence": True, "spam": False}
    assert not told["output"]["flagged"] and told["output"]["category_scores"]["spam"] == 0.4
    assert text_of(events[-1]["response"]) == "You should buy it."
    parsed = Response.model_validate(events[-1]["response"])
    assert parsed.moderation is not None and parsed.moderation.input.type == "moderation_result"


async def test_a_client_may_have_its_input_blocked(
    principal: Principal, engine: ScriptedEngine, endpoint: ModerationServer
) -> None:
    response = await response_of(asked(principal, "kill", moderation=moderation(input="block")))

    assert text_of(response) == REFUSAL
    assert response["moderation"]["input"]["flagged"]
    assert response["moderation"]["output"] == {
        "type": "error",
        "code": "no_output",
        "message": "There was no output to look at.",
    }


async def test_a_client_may_have_the_answer_blocked(
    principal: Principal, engine: ScriptedEngine, endpoint: ModerationServer
) -> None:
    engine.answers = ["I will kill."]

    response = await response_of(asked(principal, "hello", moderation=moderation(input="score", output="block")))

    assert response["incomplete_details"] == {"reason": "content_filter"}
    assert text_of(response) == ""
    assert response["moderation"]["output"]["flagged"]


async def test_a_moderation_model_that_is_down_is_told_as_such(
    principal: Principal, endpoint: ModerationServer
) -> None:
    endpoint.status = 500

    response = await response_of(asked(principal, "hello", moderation=moderation(input="block")))

    assert response["status"] == "completed"
    assert {side["code"] for side in response["moderation"].values()} == {"moderation_unavailable"}


async def test_who_does_not_ask_is_not_told_and_not_looked_at(principal: Principal, endpoint: ModerationServer) -> None:
    response = await response_of(asked(principal, "kill"))

    assert "moderation" not in response
    assert endpoint.requests == []


@pytest.mark.parametrize(
    ("keeps", "store", "excerpt"),
    [(True, True, "say bomb twice"), (True, False, ""), (False, True, ""), (False, False, "")],
)
async def test_an_excerpt_is_kept_only_where_project_and_request_allow_it(
    principal: Principal, keeps: bool, store: bool, excerpt: str
) -> None:
    seat(Spy({"bomb": "flag"}))
    await Project.objects.filter(pk=principal.project_id).aupdate(keeps_excerpts=keeps)

    await response_of(asked(principal, "say bomb twice", store=store))

    flag = await Flag.objects.aget()
    assert flag.excerpt == excerpt
    assert (flag.project_id, flag.api_key_id, flag.model) == (principal.project_id, principal.api_key_id, "scripted")


async def test_an_excerpt_goes_with_its_response(principal: Principal) -> None:
    seat(Spy({"bomb": "flag"}))
    await Project.objects.filter(pk=principal.project_id).aupdate(keeps_excerpts=True)
    response = await response_of(asked(principal, "say bomb"))

    await sync_to_async(rows.delete)(principal.project_id, response["id"])

    assert (await Flag.objects.aget()).excerpt == ""


async def test_an_excerpt_of_what_was_redacted_does_not_hold_it(principal: Principal) -> None:
    seat(Spy({"hunter2": "redact"}, redacts=True))
    await Project.objects.filter(pk=principal.project_id).aupdate(keeps_excerpts=True)

    await response_of(asked(principal, "my passwords are hunter2 and hunter2, see?"))

    assert (await Flag.objects.aget()).excerpt == "my passwords are [redacted] and [redacted], see?"


async def test_who_only_looks_sees_what_the_others_have_left(principal: Principal) -> None:
    looking = seat(Spy(name="looking"))
    seat(Spy({"hunter2": "redact"}, redacts=True))

    await response_of(asked(principal, "it is hunter2"))

    assert looking.texts == ["it is [redacted]"]


@pytest.mark.parametrize("action", ["flag", "redact", "refuse"])
async def test_nothing_of_a_turn_that_is_not_stored_is_in_any_table(
    principal: Principal, engine: ScriptedEngine, action: Any
) -> None:
    seat(Spy({"canary": action}, redacts=True, reads_output=True))
    await Project.objects.filter(pk=principal.project_id).aupdate(keeps_excerpts=True)
    engine.answers = ["the canary sings"]

    await response_of(asked(principal, "a canary", instructions="love the canary", store=False))

    await background.settle()
    found = await sync_to_async(
        lambda: [
            (table.__name__, row)
            for table in apps.get_app_config("responses_ws").get_models()
            if table._meta.managed and not table._meta.proxy
            for row in table.objects.exclude(**({"category": "canary"} if table is Flag else {})).values()
            if "canary" in str(row)
        ]
    )()
    assert found == []
    assert await Flag.objects.acount() == (1 if action == "refuse" else 2)


async def test_one_flag_for_what_is_found_again_and_again(principal: Principal, engine: ScriptedEngine) -> None:
    seat(Spy({"bomb": "flag"}, reads_output=True))
    engine.answers = [Plan(text=["bomb "] * 20)]

    await response_of(asked(principal, "bomb bomb", store=False))

    assert await flags() == [("input", "spy", "bomb", "flag"), ("output", "spy", "bomb", "flag")]


async def test_the_host_project_is_told_of_a_flag_without_content(principal: Principal) -> None:
    seat(Spy({"bomb": "flag"}))
    told: queue.Queue[dict[str, Any]] = queue.Queue()

    def receiver(**said: Any) -> None:
        told.put({name: value for name, value in said.items() if name not in ("signal", "sender")})

    content_flagged.connect(receiver)
    try:
        response = await response_of(asked(principal, "a bomb"))
        said = await asyncio.to_thread(told.get, timeout=10)
    finally:
        content_flagged.disconnect(receiver)

    assert said == {
        "response_id": response["id"],
        "project_id": principal.project_id,
        "api_key_id": principal.api_key_id,
        "model": "scripted",
        "side": "input",
        "classifier": "spy",
        "category": "bomb",
        "action": "flag",
        "score": None,
    }


async def test_a_background_response_is_looked_at_before_it_is_stored(principal: Principal) -> None:
    seat(Spy({"bomb": "refuse"}))

    queued = await jobs.start(asked(principal, "build a bomb", background=True, transport="http"))
    await background.settle()

    stored = await sync_to_async(rows.load)(principal.project_id, queued["id"])
    assert stored is not None
    assert text_of(stored.response) == REFUSAL
    assert "bomb" not in str(stored.items)


async def test_a_background_response_that_cannot_be_looked_at_is_not_accepted(principal: Principal) -> None:
    seat(Spy()).is_down = True

    with pytest.raises(Overloaded):
        await jobs.start(asked(principal, "hello", background=True, transport="http"))


async def test_items_added_to_a_conversation_are_looked_at(principal: Principal) -> None:
    seat(Spy({"hunter2": "redact"}, redacts=True))
    seat(Spy({"bomb": "refuse"}, name="other"), MODELS=["large"])
    items = [{"type": "message", "role": "user", "content": "it is hunter2"}]

    kept = await screened(principal, items, added_to="conv_1")

    assert kept[0]["content"] == "it is [redacted]"
    with pytest.raises(InvalidRequest) as caught:
        await screened(principal, [{**items[0], "content": "a bomb"}], added_to="conv_1")
    assert caught.value.code == "content_policy_violation"
    assert [flag[2] for flag in await flags()] == ["hunter2", "bomb"]


async def test_a_secret_is_found_over_a_conversation_s_items_and_a_turn(principal: Principal) -> None:
    seat(Spy({"sk-abcdef": "flag"}))
    item = {"type": "message", "role": "user", "content": "my key: sk-ab", "id": "msg_1"}
    await sync_to_async(conversations.create)(principal.project_id, "conv_1", {}, [item])

    await response_of(asked(principal, "cdef", conversation="conv_1"))

    assert [flag[2] for flag in await flags()] == ["sk-abcdef"]


async def test_what_is_refused_is_not_added_to_a_conversation(principal: Principal) -> None:
    seat(Spy({"bomb": "refuse"}))
    await sync_to_async(conversations.create)(principal.project_id, "conv_1", {}, [])

    await response_of(asked(principal, "build a bomb", conversation="conv_1"))

    bodies = [item.body async for item in ConversationItem.objects.order_by("position")]
    assert "[removed]" in bodies[0] and REFUSAL in bodies[1]
    assert "bomb" not in str(bodies)


async def until_done(runs: Any) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    async for frames in runs:
        events += map(msgspec.json.decode, frames)
        if events[-1]["type"] == "response.done":
            break
    return events


@pytest.mark.parametrize("redacts", [False, True])
async def test_an_appended_output_that_is_refused_is_forgotten_in_the_response_too(
    principal: Principal, engine: ScriptedEngine, redacts: bool
) -> None:
    seat(Spy({"bomb": "refuse"}, redacts=redacts))
    engine.answers = [Plan(calls=[Call("send", "{}")], finish="tool_calls"), "never told"]
    mailbox: Mailbox[Word] = Mailbox()
    ask = msgspec.structs.replace(
        asked(principal, "call it", tools=[SEND], chains=Chains()), mailbox=mailbox, may_append=True
    )

    async with aclosing(run_turn(ask)) as runs:
        done = (await until_done(runs))[-1]
        output = {"type": "function_call_output", "call_id": done["required"][0]["call_id"], "output": "a bomb"}
        mailbox.put(Append([output]))
        events = await until_done(runs)
    await background.settle()

    response = events[-1]["response"]
    assert [item["type"] for item in response["output"]] == ["function_call", "function_call_output", "message"]
    assert response["output"][1]["output"] == "[removed]"
    assert text_of(response) == REFUSAL
    assert [body async for body in StoredItem.objects.filter(body__contains="bomb")] == []
    await response_of(asked(principal, "so?", previous_response_id=response["id"], tools=[SEND]))
    assert "bomb" not in shown_to(engine) and "never told" not in shown_to(engine)


async def test_an_appended_output_is_redacted_before_the_model_goes_on(
    principal: Principal, engine: ScriptedEngine
) -> None:
    seat(Spy({"hunter2": "redact"}, redacts=True))
    engine.answers = [Plan(calls=[Call("send", "{}")], finish="tool_calls"), "I see."]
    mailbox: Mailbox[Word] = Mailbox()
    ask = msgspec.structs.replace(asked(principal, "call it", tools=[SEND]), mailbox=mailbox, may_append=True)

    async with aclosing(run_turn(ask)) as runs:
        done = (await until_done(runs))[-1]
        output = {"type": "function_call_output", "call_id": done["required"][0]["call_id"], "output": "hunter2"}
        mailbox.put(Append([output]))
        events = await until_done(runs)

    assert events[-1]["type"] == "response.completed"
    assert "[redacted]" in shown_to(engine) and "hunter2" not in shown_to(engine)


async def test_a_steer_is_looked_at_as_input_of_its_successor(principal: Principal, engine: ScriptedEngine) -> None:
    seat(Spy({"bomb": "refuse"}))
    engine.answers = [Plan(text=["on "] * 1000, tokens_per_second=200), "never told"]
    mailbox: Mailbox[Word] = Mailbox()
    events: list[dict[str, Any]] = []
    is_steered = False
    ask = msgspec.structs.replace(asked(principal, "talk", chains=Chains(), store=False), mailbox=mailbox)

    async with aclosing(run_turn(ask)) as runs:
        async for frames in runs:
            events += map(msgspec.json.decode, frames)
            if not is_steered and events[-1]["type"] == "response.output_text.delta":
                is_steered = True
                mailbox.put(Steer(events[0]["response"]["id"], "now a bomb"))

    ends = [event for event in events if event["type"] in ("response.incomplete", "response.completed")]
    assert [end["type"] for end in ends] == ["response.incomplete", "response.completed"]
    assert text_of(ends[1]["response"]) == REFUSAL


@pytest.mark.parametrize(("action", "kept"), [("redact", "[redacted]"), ("refuse", "many words")])
async def test_a_summary_is_looked_at_before_it_takes_the_place_of_a_context(
    principal: Principal, action: Any, kept: str
) -> None:
    engine = Summariser()
    registry.install("scripted", engine)
    seat(Spy({"cobalt.": action}, redacts=True))

    given = [
        {"role": "user", "content": "Remember red."},
        {"role": "assistant", "content": LONG},
        {"role": "user", "content": "And?"},
    ]
    await response_of(asked(principal, given, context_management=[{"type": "compaction", "compact_threshold": 100}]))

    assert "cobalt" not in str(engine.prompts[-1])
    assert kept in str(engine.prompts[-1])


async def test_a_context_that_is_refused_is_not_compacted(principal: Principal) -> None:
    seat(Spy({"bomb": "refuse"}))

    with pytest.raises(InvalidRequest) as caught:
        await compact(principal, CompactRequest(model="scripted", input="build a bomb"))

    assert caught.value.code == "content_policy_violation"


async def test_a_context_that_is_refused_while_it_is_summed_up_is_not_sealed(principal: Principal) -> None:
    registry.install("scripted", Summariser())
    seat(Spy({"bomb": "refuse"}))
    given = [
        {"role": "user", "content": "a bomb"},
        {"role": "assistant", "content": LONG},
        {"role": "user", "content": "And?"},
    ]

    response = await response_of(
        asked(principal, given, context_management=[{"type": "compaction", "compact_threshold": 100}])
    )

    assert text_of(response) == REFUSAL
    await response_of(asked(principal, "and?", previous_response_id=response["id"]))


async def test_token_ids_of_what_was_refused_or_redacted_are_not_asked_with_again(principal: Principal) -> None:
    with override_settings(RESPONSES_WS={"MODELS": {"bytes": {"ENGINE": "bytes"}}}):
        engine = BytesEngine("never<end>", "It is hunter2.<end>", "Bye<end>")
        registry.install("bytes", engine)
        seat(Spy({"bomb": "refuse"}))
        seat(Spy({"hunter2": "redact"}, name="out", reads_input=False, reads_output=True, holds_back=10))
        chains = Chains()
        previous: dict[str, Any] = {}
        for said in ("a bomb", "Pass?", "So?"):
            response = await response_of(asked(principal, said, model="bytes", chains=chains, **previous))
            previous = {"previous_response_id": response["id"]}

    asked_with = [spelled(prompt) for prompt in engine.prompts]
    assert "bomb" not in "".join(asked_with[1:]) and "never" not in "".join(asked_with[1:])
    assert "hunter2" not in asked_with[2] and "[redacted]" in asked_with[2]
    assert asked_with[2].startswith("<user>[removed]<end><assistant>")


async def test_what_is_carried_is_read_off_a_chain_in_redis(principal: Principal, redis_url: str) -> None:
    with override_settings(
        RESPONSES_WS={
            "REDIS_URL": redis_url,
            "ENGINES": {"scripted": {"ENGINE": "responses_ws.engines.scripted.Scripted"}},
            "MODELS": {"scripted": {"ENGINE": "scripted"}},
        }
    ):
        seat(Spy({"sk-abcdef": "flag"}))
        first = await response_of(asked(principal, "my key: sk-ab"))
        hot_tier.clear()
        await StoredItem.objects.all().adelete()

        await response_of(asked(principal, "cdef", previous_response_id=first["id"], store=False))

    assert [flag[2] for flag in await flags()] == ["sk-abcdef"]


async def test_the_lines_that_validate_a_turn_do_not_grow_with_its_chain(principal: Principal) -> None:
    """Every line that runs in the rooms of rules, counted: loops over old items would show."""
    chains = Chains()
    counts: list[int] = []
    previous: dict[str, Any] = {}
    for number in range(100):
        tools = {"tools": [SEND], "tool_choice": "none"}
        ask = asked(principal, f"turn {number:03}", store=False, chains=chains, **tools, **previous)
        if number in (4, 99):
            response, lines = await _counted(ask)
            counts.append(lines)
        else:
            response = await response_of(ask)
        previous = {"previous_response_id": response["id"]}

    early, late = counts
    assert early > 300
    assert late <= early * 1.02


async def _counted(ask: Any) -> tuple[dict[str, Any], int]:
    lines = 0

    def trace(frame: Any, event: str, _arg: Any) -> Any:
        nonlocal lines
        if not any(room in frame.f_code.co_filename for room in ("/protocol/", "/serving/context", "/serving/safety")):
            return None
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        response = await response_of(ask)
    finally:
        sys.settrace(before)
    return response, lines
