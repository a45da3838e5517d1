"""Reasoning on its way through the client and back."""

from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from responses_ws.connection.chain import Chains
from responses_ws.engines.base import ChatRequest
from responses_ws.engines.registry import registry
from responses_ws.engines.script import Plan
from responses_ws.engines.scripted import Scripted
from responses_ws.protocol.errors import InvalidEncryptedContent
from responses_ws.runtime.sealing import seal
from responses_ws.serving.admission import Principal
from responses_ws.serving.sealed import seal_reasoning
from responses_ws.stores import rows
from responses_ws.stores.memory import hot_tier

from .turns import asked, events_of, response_of

INCLUDE = {"include": ["reasoning.encrypted_content"]}
THOUGHT = "This text"


class Listening(Scripted):
    """Remembers what it was asked, as messages."""

    def __init__(self) -> None:
        super().__init__("scripted", {})
        self.heard: list[list[dict[str, Any]]] = []

    def plan(self, request: ChatRequest) -> Plan:
        self.heard.append(list(request.prompt.newest_first())[::-1])
        return super().plan(request)

    @property
    def thoughts(self) -> list[str]:
        """The reasoning in the newest prompt."""
        return [message["reasoning_content"] for message in self.heard[-1] if "reasoning_content" in message]


@pytest.fixture
def engine() -> Iterator[Listening]:
    engine = Listening()
    registry.install("scripted", engine)
    yield engine


def with_text(text: str, encrypted_content: Any) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "summary": [], "content": content, "encrypted_content": encrypted_content}


@pytest.mark.parametrize(
    "summary",
    [{}, {"reasoning": {"summary": "auto"}}, {"reasoning": {"summary": "concise"}}],
    ids=["raw", "auto", "concise"],
)
async def test_a_stateless_client_that_sends_everything_again_loses_nothing(
    principal: Principal, engine: Listening, summary: dict[str, Any]
) -> None:
    events = await events_of(asked(principal, "!reason 2 One", store=False, **INCLUDE, **summary))
    output = events[-1]["response"]["output"]
    carried = [{name: value for name, value in output[0].items() if name not in ("id", "content")}, output[1]]

    await events_of(asked(principal, [{"role": "user", "content": "One"}, *carried, USER], store=False))

    done = next(event["item"] for event in events if event["type"] == "response.output_item.done")
    assert done == output[0]
    assert engine.thoughts == [THOUGHT]


USER = {"role": "user", "content": "Two"}


@pytest.mark.parametrize("include", [None, [], ["message.output_text.logprobs", "unheard.of"]])
async def test_nothing_is_sealed_for_who_has_not_asked(principal: Principal, include: list[str] | None) -> None:
    events = await events_of(asked(principal, "!reason 2 One", store=False, include=include))

    assert not [event for event in events if "encrypted_content" in str(event)]


@pytest.mark.parametrize("store", [False, True], ids=["memory", "database"])
async def test_hidden_reasoning_stays_in_its_chain(
    principal: Principal, engine: Listening, settings: Any, store: bool
) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "RAW_REASONING": False}
    registry.install("scripted", engine)
    chains = Chains()
    first = await response_of(asked(principal, "!reason 2 One", store=store, chains=chains))
    if store:
        hot_tier.clear()
        chains = Chains()

    await response_of(asked(principal, "Two", previous_response_id=first["id"], store=store, chains=chains))

    assert first["output"][0].keys() == {"id", "type", "summary"}
    assert engine.thoughts == [THOUGHT]


async def test_a_stored_chain_is_read_however_old_its_seals(
    principal: Principal, engine: Listening, settings: Any
) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "SEALED_DAYS": -1}
    registry.install("scripted", engine)
    first = await response_of(asked(principal, "!reason 2 One", store=True, **INCLUDE))
    hot_tier.clear()

    await response_of(asked(principal, "Two", previous_response_id=first["id"]))

    assert engine.thoughts == [THOUGHT]


@pytest.mark.parametrize("absent", [None, ""], ids=["null", "empty"])
async def test_reasoning_that_is_not_sealed_is_taken_as_it_is(
    principal: Principal, engine: Listening, absent: str | None
) -> None:
    await response_of(asked(principal, [with_text("plain", absent), USER], store=False))

    assert engine.thoughts == ["plain"]


async def test_what_is_sealed_counts_more_than_what_stands_beside_it(principal: Principal, engine: Listening) -> None:
    sealed = seal_reasoning("mine", project_id=principal.project_id, model="scripted")

    await response_of(asked(principal, [with_text("forged", sealed), USER], store=False))

    assert engine.thoughts == ["mine"]


async def test_another_model_is_not_shown_it(principal: Principal, engine: Listening) -> None:
    """Somebody who changes the model in the middle of a conversation is not locked out of it."""
    sealed = seal_reasoning("of another", project_id=principal.project_id, model="other")
    item = {"type": "reasoning", "summary": [], "encrypted_content": sealed}

    response = await response_of(asked(principal, [item, USER], store=False))

    assert response["status"] == "completed"
    assert engine.thoughts == []


async def test_what_does_not_open_is_refused_in_one_way(principal: Principal, other_principal: Principal) -> None:
    mine = seal_reasoning("x", project_id=principal.project_id, model="scripted")
    theirs = seal_reasoning("x", project_id=other_principal.project_id, model="scripted")
    no_json = seal(b"{", purpose="reasoning", project_id=principal.project_id)
    said = []

    for sealed in (f"{mine[:-8]}AAAAAAAA", theirs, no_json, "nonsense"):
        item = {"type": "reasoning", "summary": [], "encrypted_content": sealed}
        with pytest.raises(InvalidEncryptedContent) as caught:
            await events_of(asked(principal, [USER, item, USER], store=False))
        said.append(caught.value.body())

    assert said == [said[0]] * 4
    assert (said[0]["code"], said[0]["param"]) == ("invalid_encrypted_content", "input[1].encrypted_content")


async def test_a_stored_summary_keeps_its_reasoning_sealed(principal: Principal) -> None:
    response = await response_of(asked(principal, "!reason 2 One", store=True, reasoning={"summary": "concise"}))

    stored = await sync_to_async(rows.load)(principal.project_id, response["id"])
    assert stored is not None
    thought, answer = stored.response["output"]
    assert {key: value for key, value in thought.items() if key != "encrypted_content"} == response["output"][0]
    assert thought["encrypted_content"]
    assert answer == response["output"][1]
