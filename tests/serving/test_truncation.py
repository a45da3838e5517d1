"""Contexts that are too long for their model."""

import logging
from typing import Any

import pytest

from responses_ws.connection.chain import Chains
from responses_ws.engines.base import ChatRequest, EngineModel
from responses_ws.engines.registry import registry
from responses_ws.models import UsageRecord
from responses_ws.protocol.errors import InvalidRequest
from responses_ws.serving.admission import Principal
from responses_ws.stores.memory import hot_tier
from responses_ws.testing import Plan, ScriptedEngine

from .turns import asked, events_of, response_of

LONG = "x" * 400


class Narrow(ScriptedEngine):
    """Finds more than so many messages too long."""

    def __init__(self, *answers: str | Plan, messages: int) -> None:
        super().__init__(*answers)
        self.messages = messages

    def plan(self, request: ChatRequest) -> Plan:
        plan = super().plan(request)
        if len(request.prompt.log) > self.messages:
            plan.fail = "context_length"
        return plan


def said(request: ChatRequest) -> list[str]:
    """What the engine was told, by its beginnings."""
    return [str(message["content"])[:4] for message in [*request.prompt.newest_first()][::-1]]


def known(settings: Any, tokens: int) -> ScriptedEngine:
    """The scripted model, known to have that little context."""
    models = {"scripted": {"ENGINE": "scripted", "CONTEXT": tokens}}
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "MODELS": models}
    engine = ScriptedEngine(*["fine"] * 20)
    registry.install("scripted", engine)
    return engine


async def test_what_is_certainly_too_long_is_refused_before_the_engine_is_asked(
    principal: Principal, settings: Any
) -> None:
    engine = known(settings, 50)

    with pytest.raises(InvalidRequest) as caught:
        await events_of(asked(principal, LONG * 3))

    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
    assert engine.requests == []
    assert not await UsageRecord.objects.aexists()


async def test_what_may_fit_the_engine_decides(principal: Principal, settings: Any) -> None:
    known(settings, 110)

    response = await response_of(asked(principal, LONG * 2, store=False))

    assert response["status"] == "completed"


async def test_auto_leaves_out_the_oldest_turns_and_goes_on_from_there(principal: Principal, settings: Any) -> None:
    engine = known(settings, 500)
    chains, previous = Chains(), None
    for number in range(6):
        response = await response_of(
            asked(
                principal,
                f"{number}   {LONG}",
                previous_response_id=previous,
                instructions="Be brief.",
                truncation="auto",
                store=False,
                chains=chains,
            )
        )
        previous = response["id"]

    told = [said(request) for request in engine.requests]
    assert [turn[0] for turn in told] == ["Be b"] * 6
    assert [turn[1] for turn in told] == ["0   ", "0   ", "0   ", "0   ", "2   ", "2   "]
    # Between two cuts each turn extends the one before, as caches like it.
    assert told[5] == [*told[4], "fine", "5   "]
    # Nothing is forgotten: who asks for the whole gets it.
    link = chains.find(str(previous))
    assert link is not None and len(link.items) == 12


async def test_a_turn_that_allows_nothing_left_out_gets_the_whole_again(principal: Principal, settings: Any) -> None:
    engine = known(settings, 300)
    chains = Chains()
    first = await response_of(asked(principal, f"a   {LONG}", store=False, chains=chains))
    second = await response_of(
        asked(
            principal,
            f"b   {LONG * 2}",
            previous_response_id=first["id"],
            truncation="auto",
            store=False,
            chains=chains,
        )
    )

    await events_of(asked(principal, "c   ", previous_response_id=second["id"], store=False, chains=chains))

    assert [said(request) for request in engine.requests[1:]] == [["b   "], ["a   ", "fine", "b   ", "fine", "c   "]]


async def test_what_must_stay_is_too_long_for_auto_as_well(principal: Principal, settings: Any) -> None:
    engine = known(settings, 50)

    with pytest.raises(InvalidRequest) as caught:
        await events_of(asked(principal, LONG, truncation="auto"))

    assert caught.value.code == "context_length_exceeded"
    assert engine.requests == []


async def test_the_answer_needs_room_too(principal: Principal, settings: Any) -> None:
    engine = known(settings, 350)
    chains = Chains()
    first = await response_of(asked(principal, f"a   {LONG}", store=False, chains=chains))

    await events_of(
        asked(
            principal,
            f"b   {LONG}",
            previous_response_id=first["id"],
            max_output_tokens=160,
            truncation="auto",
            store=False,
            chains=chains,
        )
    )

    assert said(engine.requests[1]) == ["b   "]


async def test_the_context_that_an_engine_lists_counts(principal: Principal, settings: Any) -> None:
    class Listing(ScriptedEngine):
        async def models(self) -> list[EngineModel]:
            return [EngineModel(id="small", context_tokens=50)]

    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "MODELS": {"*": {"ENGINE": "scripted"}}}
    registry.install("scripted", Listing())

    with pytest.raises(InvalidRequest, match="context window"):
        await events_of(asked(principal, LONG * 3, model="small"))


HISTORY = [
    {"role": "user", "content": "a   "},
    {"role": "assistant", "content": "fine"},
    {"role": "user", "content": "b   "},
]


async def test_an_engine_that_refuses_is_asked_again_with_less(principal: Principal, caplog: Any) -> None:
    engine = Narrow(messages=1)
    registry.install("scripted", engine)

    with caplog.at_level(logging.INFO, "responses_ws.serving.run"):
        response = await response_of(asked(principal, HISTORY, truncation="auto"))
    hot_tier.clear()
    engine.messages = 9
    await events_of(asked(principal, "c   ", previous_response_id=response["id"]))

    assert response["status"] == "completed"
    assert [said(request) for request in engine.requests[:2]] == [["a   ", "fine", "b   "], ["b   "]]
    assert f"Response {response['id']}: 2 old items are left out of its context" in caplog.messages
    # What is stored is the whole.
    assert said(engine.requests[2])[:3] == ["a   ", "fine", "b   "]
    records = [record async for record in UsageRecord.objects.order_by("id")]
    assert [record.status for record in records] == ["completed", "completed"]


async def test_and_not_when_nothing_more_can_be_left_out(principal: Principal) -> None:
    engine = Narrow(messages=0)
    registry.install("scripted", engine)

    with pytest.raises(InvalidRequest) as caught:
        await events_of(asked(principal, HISTORY, truncation="auto"))

    assert caught.value.code == "context_length_exceeded"
    assert len(engine.requests) == 2


@pytest.mark.parametrize("truncation", ["disabled", None], ids=str)
async def test_without_auto_the_refusal_stands(principal: Principal, truncation: str | None) -> None:
    engine = Narrow(messages=1)
    registry.install("scripted", engine)

    with pytest.raises(InvalidRequest) as caught:
        await events_of(asked(principal, HISTORY, truncation=truncation))

    assert caught.value.code == "context_length_exceeded"
    assert len(engine.requests) == 1
