"""Input that is only counted."""

from typing import Any

import pytest
from asgiref.sync import sync_to_async

from responses_ws.engines.registry import registry
from responses_ws.models import Conversation, StoredItem, UsageRecord
from responses_ws.protocol.errors import InvalidRequest, ModelNotFound, PreviousResponseNotFound
from responses_ws.serving.admission import Principal
from responses_ws.serving.conversations import hold
from responses_ws.serving.counting import count_input
from responses_ws.stores import conversations
from responses_ws.testing import ScriptedEngine

from .turns import asked, response_of

TOOL = {"type": "function", "name": "f", "description": "Does something."}
FIELDS: dict[str, dict[str, Any]] = {
    "input": {},
    "instructions": {"instructions": "Be brief, and say no more than is needed."},
    "tools": {"tools": [TOOL]},
    "additional tools": {"input": [{"type": "additional_tools", "tools": [TOOL]}, {"role": "user", "content": "hi"}]},
}


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
async def test_the_count_is_what_the_turn_will_say(principal: Principal, fields: dict[str, Any]) -> None:
    fields = {"input": "Hello there", **fields}

    counted = await count_input(asked(principal, fields["input"], **{**fields}))
    response = await response_of(asked(principal, fields["input"], **{**fields}))

    assert counted == response["usage"]["input_tokens"]


async def test_the_context_counts_too_and_nothing_is_written(principal: Principal) -> None:
    first = await response_of(asked(principal, "one"))
    made = await sync_to_async(conversations.create)(
        principal.project_id, "conv_1", {}, [{"role": "user", "content": "hi", "id": "msg_1"}]
    )
    held = await hold(principal.project_id, made.pk)
    before = (await UsageRecord.objects.acount(), await StoredItem.objects.acount())

    alone = await count_input(asked(principal, "two"))
    continued = await count_input(asked(principal, "two", previous_response_id=first["id"]))
    on_conversation = await count_input(asked(principal, "two", conversation="conv_1"))
    only_conversation = await count_input(asked(principal, None, conversation="conv_1"))
    await held.release()

    assert continued > alone < on_conversation > only_conversation > 0
    assert (await UsageRecord.objects.acount(), await StoredItem.objects.acount()) == before
    assert (await Conversation.objects.aget()).length == 1


async def test_an_engine_that_cannot_count_is_not_called(principal: Principal) -> None:
    class Mute(ScriptedEngine):
        async def count(self, request: Any) -> None:
            return None

    engine = Mute()
    registry.install("scripted", engine)

    assert await count_input(asked(principal, "x" * 400)) > 100
    assert engine.requests == []


async def test_neither_model_nor_input_is_needed(principal: Principal) -> None:
    assert await count_input(asked(principal, None, model=None)) == 0
    assert await count_input(asked(principal, "x" * 400, model=None)) > 100


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"model": "nobody"}, ModelNotFound),
        ({"previous_response_id": "resp_x"}, PreviousResponseNotFound),
        ({"input": [{"type": "function_call_output", "call_id": "x", "output": ""}]}, InvalidRequest),
    ],
    ids=["model", "previous", "orphan"],
)
async def test_what_a_turn_would_refuse_is_refused(
    principal: Principal, fields: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        await count_input(asked(principal, fields.pop("input", "hi"), **fields))
