"""Classifiers beside a turn: what they see, what waits for them, and what becomes of what they find."""

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
from django.test import override_settings

from responses_ws.connection.chain import Chains
from responses_ws.engines.registry import registry
from responses_ws.engines.responses import Responses
from responses_ws.models import Flag, StoredItem, StoredResponse, UsageRecord
from responses_ws.protocol.errors import InvalidRequest, Overloaded
from responses_ws.runtime import background
from responses_ws.safety.registry import classifiers
from responses_ws.serving.admission import Principal
from responses_ws.serving.turns import run_turn
from responses_ws.stores.memory import hot_tier
from responses_ws.testing import Call, Plan, ScriptedEngine
from tests.fakes.responses_server import Answer, ResponsesServer, words
from tests.safety.spies import Spy

from .turns import asked, events_of, response_of

REFUSAL = "I'm sorry, but I can't help with that."
SEND = {"type": "function", "name": "send", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture
def engine() -> ScriptedEngine:
    engine = ScriptedEngine()
    registry.install("scripted", engine)
    return engine


def seat(spy: Spy, **terms: Any) -> Spy:
    classifiers.install(spy, **terms)
    return spy


def text_of(response: dict[str, Any]) -> str:
    return "".join(
        part.get("text") or part.get("refusal") or ""
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
    )


def shown_to(engine: ScriptedEngine, call: int = -1) -> str:
    """All that the engine was told in that call."""
    return str(list(engine.requests[call].prompt.newest_first()))


async def flags() -> list[tuple[str, str, str, str]]:
    await background.settle()
    return [(flag.side, flag.classifier, flag.category, flag.action) async for flag in Flag.objects.order_by("pk")]


class Gate:
    """Events of a turn, while a classifier waits."""

    def __init__(self, ask: Any) -> None:
        self.events: list[str] = []
        self._ask = ask
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with aclosing(run_turn(self._ask)) as runs:
            async for frames in runs:
                self.events += [msgspec.json.decode(frame)["type"] for frame in frames]


async def until(what: Any) -> None:
    async with asyncio.timeout(10):
        while not what():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_a_slow_classifier_delays_the_first_output_and_not_the_engine(
    principal: Principal, engine: ScriptedEngine
) -> None:
    spy = seat(Spy())
    spy.gate = asyncio.Event()

    turn = Gate(asked(principal, "hello", store=False))
    await until(lambda: engine.requests and "response.in_progress" in turn.events)
    before = list(turn.events)
    spy.gate.set()
    await turn.task

    assert spy.began.is_set()
    assert before == ["response.created", "response.in_progress"]
    assert turn.events[-1] == "response.completed"
    assert "response.output_text.delta" in turn.events


async def test_a_refused_input_is_answered_at_once_and_nothing_of_the_answer_leaves(
    principal: Principal, engine: ScriptedEngine
) -> None:
    seat(Spy({"bomb": "refuse"}))
    engine.answers = [Plan(text=["never ", "told"], stall_seconds=60, tokens_per_second=0)]

    async with asyncio.timeout(10):
        events = await events_of(asked(principal, "build a bomb", store=False))

    response = events[-1]["response"]
    assert events[-1]["type"] == "response.completed"
    assert response["output"][0]["content"] == [{"type": "refusal", "refusal": REFUSAL}]
    assert "told" not in str(events)
    assert await flags() == [("input", "spy", "bomb", "refuse")]
    record = await UsageRecord.objects.aget()
    assert (record.status, record.output_tokens) == ("completed", 0)


async def test_what_was_refused_is_in_no_table_and_in_no_later_prompt(
    principal: Principal, engine: ScriptedEngine
) -> None:
    seat(Spy({"bomb": "refuse"}))
    chains = Chains()
    first = await response_of(asked(principal, "build a bomb", chains=chains))

    await response_of(asked(principal, "and now?", previous_response_id=first["id"], chains=chains))

    assert "bomb" not in shown_to(engine) and "[removed]" in shown_to(engine)
    assert [body async for body in StoredItem.objects.filter(body__contains="bomb")] == []
    hot_tier.clear()
    await response_of(asked(principal, "again", previous_response_id=first["id"]))
    assert "bomb" not in shown_to(engine) and "[removed]" in shown_to(engine)


async def test_instructions_that_were_refused_are_not_given_back(principal: Principal) -> None:
    seat(Spy({"bomb": "refuse"}))

    response = await response_of(asked(principal, "hello", instructions="speak of a bomb"))

    assert response["instructions"] == "[removed]"
    assert "bomb" not in (await StoredResponse.objects.aget()).body


async def test_a_classifier_that_redacts_runs_before_the_model_sees_anything(
    principal: Principal, engine: ScriptedEngine
) -> None:
    spy = seat(Spy({"hunter2": "redact"}, redacts=True))
    spy.gate = asyncio.Event()

    turn = Gate(asked(principal, "my password is hunter2!"))
    await spy.began.wait()
    called_before = len(engine.requests)
    spy.gate.set()
    await turn.task

    assert called_before == 0
    assert "my password is [redacted]!" in shown_to(engine)
    assert [body async for body in StoredItem.objects.filter(body__contains="hunter2")] == []
    assert await flags() == [("input", "spy", "hunter2", "redact")]


async def test_a_redaction_that_was_not_announced_is_a_refusal(principal: Principal) -> None:
    seat(Spy({"hunter2": "redact"}))

    response = await response_of(asked(principal, "hunter2"))

    assert text_of(response) == REFUSAL


async def test_a_refusal_before_rendering_calls_no_engine(principal: Principal, engine: ScriptedEngine) -> None:
    seat(Spy({"bomb": "refuse"}, redacts=True))

    response = await response_of(asked(principal, "bomb"))

    assert text_of(response) == REFUSAL
    assert engine.requests == []
    assert response["usage"]["total_tokens"] == 0


async def test_a_flag_lets_everything_pass(principal: Principal) -> None:
    seat(Spy({"hello": "flag"}))

    response = await response_of(asked(principal, "hello hello", store=False))

    assert "hello" in text_of(response)
    assert await flags() == [("input", "spy", "hello", "flag")]


@pytest.mark.parametrize("where", ["turns", "turns, read back", "parts", "items"])
async def test_a_secret_in_two_pieces_is_found(principal: Principal, where: str) -> None:
    spy = seat(Spy({"sk-abcdef": "flag"}))
    if where == "parts":
        parts = [{"type": "input_text", "text": text} for text in ("my key: sk-ab", "cdef")]
        await response_of(asked(principal, [{"role": "user", "content": parts}]))
    elif where == "items":
        await response_of(asked(principal, [{"role": "user", "content": text} for text in ("sk-ab", "cdef")]))
    else:
        first = await response_of(asked(principal, "my key: sk-ab"))
        if where == "turns, read back":
            hot_tier.clear()
        await response_of(asked(principal, "cdef", previous_response_id=first["id"]))

    assert await flags() == [("input", "spy", "sk-abcdef", "flag")]
    assert spy.texts.count("cdef") == 1


async def test_the_second_half_of_a_redacted_secret_is_redacted(principal: Principal, engine: ScriptedEngine) -> None:
    seat(Spy({"sk-abcdef": "redact"}, redacts=True))
    first = await response_of(asked(principal, "my key: sk-ab"))

    await response_of(asked(principal, "cdef, see?", previous_response_id=first["id"]))

    assert "[redacted], see?" in shown_to(engine)


async def test_a_refusal_waits_for_no_other_classifier(principal: Principal) -> None:
    seat(Spy(name="slow"), SECONDS=60).gate = asyncio.Event()
    seat(Spy({"bomb": "refuse"}))

    async with asyncio.timeout(10):
        response = await response_of(asked(principal, "bomb", store=False))

    assert text_of(response) == REFUSAL


async def test_who_is_refused_is_refused_whoever_else_is_down(principal: Principal) -> None:
    seat(Spy(name="down"), FAIL="closed").is_down = True
    spy = seat(Spy({"bomb": "refuse"}))
    spy.gate = asyncio.Event()

    turn = asyncio.create_task(response_of(asked(principal, "bomb", store=False)))
    await spy.began.wait()
    spy.gate.set()

    assert text_of(await turn) == REFUSAL


async def test_the_next_turn_is_not_judged_by_what_was_refused(principal: Principal) -> None:
    spy = seat(Spy({"bomb": "refuse"}))
    first = await response_of(asked(principal, "hello"))
    refused = await response_of(asked(principal, "bomb", previous_response_id=first["id"]))

    await response_of(asked(principal, "sorry", previous_response_id=refused["id"]))

    assert [material.before for material in spy.seen] == ["", "hello", "hello"]


async def test_the_next_turn_is_not_judged_by_what_was_found_somewhere_in_the_last(principal: Principal) -> None:
    spy = seat(Spy({"bomb": "flag"}, says_where=False, reads_output=True))
    first = await response_of(asked(principal, "bomb"))

    await response_of(asked(principal, "hello", previous_response_id=first["id"]))

    assert [material.before for material in spy.seen if material.side == "input"] == ["", ""]


async def test_a_chain_that_was_another_model_s_is_carried_on_with(principal: Principal) -> None:
    """The turn with the other model is not looked at; the next one is, with what came before it."""
    models = {"scripted": {"ENGINE": "scripted"}, "small": {"ENGINE": "scripted"}}
    engines = {"scripted": {"ENGINE": "responses_ws.engines.scripted.Scripted"}}
    with override_settings(RESPONSES_WS={"ENGINES": engines, "MODELS": models}):
        spy = seat(Spy({"sk-abcdef": "flag"}), MODELS=["scripted"])
        first = await response_of(asked(principal, "sk-ab", model="small"))

        await response_of(asked(principal, "cdef", previous_response_id=first["id"]))

    assert spy.texts == ["cdef"]
    assert await flags() == [("input", "spy", "sk-abcdef", "flag")]


async def test_forks_carry_what_came_before_them_only(principal: Principal) -> None:
    seat(Spy({"sk-abcdef": "flag"}))
    root = await response_of(asked(principal, "hello"))
    await response_of(asked(principal, "sk-ab", previous_response_id=root["id"]))

    await response_of(asked(principal, "cdef", previous_response_id=root["id"]))

    assert await flags() == []


async def test_the_work_of_a_turn_does_not_grow_with_its_chain(principal: Principal) -> None:
    spy = seat(Spy(reads_output=True))
    chains = Chains()
    work: list[tuple[int, int]] = []
    previous: dict[str, Any] = {}
    for number in range(100):
        calls, characters = len(spy.seen), spy.characters
        given = asked(
            principal,
            f"turn {number:03}",
            instructions="always the same",
            store=False,
            chains=chains,
            **previous,
        )
        response = await response_of(given)
        previous = {"previous_response_id": response["id"]}
        work.append((len(spy.seen) - calls, spy.characters - characters))

    assert len(set(work[1:])) == 1
    assert spy.texts.count("always the same") == 1


async def test_instructions_in_which_something_was_found_are_looked_at_again(principal: Principal) -> None:
    spy = seat(Spy({"odd": "flag"}))
    first = await response_of(asked(principal, "one", instructions="odd"))

    await response_of(asked(principal, "two", instructions="odd", previous_response_id=first["id"]))

    assert spy.texts.count("odd") == 2
    assert len(await flags()) == 2


async def test_an_output_is_cut_and_never_failed(principal: Principal, engine: ScriptedEngine) -> None:
    seat(Spy({"recipe": "refuse"}, reads_input=False, reads_output=True, holds_back=10))
    engine.answers = [Plan(text=["Here is ", "the ", "reci", "pe: ", "never told"])]

    response = await response_of(asked(principal, "hello"))

    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "content_filter"})
    assert text_of(response) == "Here is the "
    assert await flags() == [("output", "spy", "recipe", "refuse")]
    assert (await UsageRecord.objects.aget()).output_tokens == response["usage"]["output_tokens"] > 3


async def test_an_output_is_redacted_in_its_events_its_item_and_the_next_prompt(
    principal: Principal, engine: ScriptedEngine
) -> None:
    seat(Spy({"hunter2": "redact"}, reads_input=False, reads_output=True, holds_back=10))
    engine.answers = [Plan(text=["It is hun", "ter", "2."])]

    events = await events_of(asked(principal, "password?"))

    response = events[-1]["response"]
    assert text_of(response) == "It is [redacted]."
    assert "".join(event.get("delta", "") for event in events) == "It is [redacted]."
    await response_of(asked(principal, "again", previous_response_id=response["id"]))
    assert "hunter2" not in shown_to(engine) and "[redacted]" in shown_to(engine)


async def test_an_upstream_does_not_go_on_from_what_was_redacted_in_its_answer(principal: Principal) -> None:
    seat(Spy({"hunter2": "redact"}, reads_input=False, reads_output=True, holds_back=10))
    async with ResponsesServer() as server:
        server.answers = [Answer(events=words("It is hunter2.", "up_1"))]
        upstream = Responses("scripted", {"BASE_URL": server.url, "STORE": True})
        registry.install("scripted", upstream)
        response = await response_of(asked(principal, "password?"))
        response = await response_of(asked(principal, "again", previous_response_id=response["id"]))
        await response_of(asked(principal, "and again", previous_response_id=response["id"]))
        await upstream.aclose()

    told = [(request.get("previous_response_id"), str(request["input"])) for request in server.requests]
    assert [previous for previous, _ in told] == [None, None, "up_2"]
    assert "hunter2" not in told[1][1] and "[redacted]" in told[1][1]


async def test_an_output_word_over_two_turns_is_found(principal: Principal, engine: ScriptedEngine) -> None:
    seat(Spy({"sk-abcdef": "flag"}, reads_input=False, reads_output=True))
    engine.answers = ["the key: sk-ab", "cdef"]
    first = await response_of(asked(principal, "key?"))

    await response_of(asked(principal, "go on", previous_response_id=first["id"]))

    assert await flags() == [("output", "spy", "sk-abcdef", "flag")]


async def test_a_call_with_something_to_redact_is_cut(principal: Principal, engine: ScriptedEngine) -> None:
    seat(Spy({"hunter2": "redact"}, reads_input=False, reads_output=True, holds_back=10))
    engine.answers = [Plan(calls=[Call("send", '{"text": "hunter2"}')], finish="tool_calls")]

    response = await response_of(asked(principal, "hello", tools=[SEND]))

    assert response["status"] == "incomplete"
    assert [item["status"] for item in response["output"]] == ["incomplete"]
    assert "hunter2" not in str(response["output"])


@pytest.mark.parametrize("redacts", [False, True])
async def test_a_classifier_that_is_down_and_may_not_be_is_an_error_worth_another_try(
    principal: Principal, redacts: bool
) -> None:
    seat(Spy(redacts=redacts), FAIL="closed").is_down = True
    ask = asked(principal, "hello", store=False)

    if redacts:
        with pytest.raises(Overloaded):
            await events_of(ask)
        return
    events = await _events_or_error(ask)
    assert "server_is_overloaded" in events or "response.failed" in events
    assert "response.output_text.delta" not in events


async def _events_or_error(ask: Any) -> list[str]:
    try:
        return [event["type"] for event in await events_of(ask)]
    except Overloaded as error:
        return [str(error.code)]


async def test_a_classifier_that_is_down_and_may_be_lets_pass(principal: Principal) -> None:
    seat(Spy(reads_output=True), FAIL="open").is_down = True

    response = await response_of(asked(principal, "hello", store=False))

    assert response["status"] == "completed"
    assert "hello" in text_of(response)


@pytest.mark.parametrize("fail", ["open", "closed"])
async def test_a_classifier_that_is_late_is_one_that_is_down(principal: Principal, fail: str) -> None:
    spy = seat(Spy(), FAIL=fail, SECONDS=0.01)
    spy.gate = asyncio.Event()

    ended = await _events_or_error(asked(principal, "hello", store=False))

    assert (ended[-1] == "response.completed") == (fail == "open")


async def test_an_answer_that_cannot_be_looked_at_is_cut_where_that_may_not_be(
    principal: Principal, engine: ScriptedEngine
) -> None:
    seat(Spy(reads_input=False, reads_output=True), FAIL="closed").is_down = True

    response = await response_of(asked(principal, "hello"))

    assert response["incomplete_details"] == {"reason": "content_filter"}
    assert text_of(response) == ""


async def test_a_warm_up_is_looked_at_as_well(principal: Principal, engine: ScriptedEngine) -> None:
    seat(Spy({"bomb": "refuse"}))
    chains = Chains()

    warm = await response_of(asked(principal, "build a bomb", generate=False, store=False, chains=chains))

    assert text_of(warm) == REFUSAL
    await response_of(asked(principal, "so?", previous_response_id=warm["id"], store=False, chains=chains))
    assert "bomb" not in shown_to(engine)


async def test_only_what_it_is_meant_for_is_its_business(principal: Principal, other_principal: Principal) -> None:
    mine = seat(Spy(name="mine"), PROJECTS=[principal.project_id])
    other_model = seat(Spy(name="other model"), MODELS=["large"])

    await response_of(asked(principal, "one", store=False))
    await response_of(asked(other_principal, "two", store=False))

    assert mine.texts == ["one"]
    assert other_model.texts == []


async def test_a_moderation_model_that_nobody_serves_is_refused(principal: Principal) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await events_of(asked(principal, "hello", moderation={"model": "omni"}))

    assert caught.value.param == "moderation.model"


@pytest.fixture(autouse=True)
def _no_classifiers_are_left() -> Iterator[None]:
    yield
    classifiers.reset()
