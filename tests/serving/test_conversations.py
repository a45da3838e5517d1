"""Turns on a conversation: what it brings, what it keeps, and who may write it."""

import asyncio
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from responses_ws.connection.chain import Chains
from responses_ws.models import Conversation, ConversationItem, StoredItem, StoredResponse, UsageRecord
from responses_ws.protocol.errors import ConversationLocked, ConversationNotFound, InvalidRequest, Overloaded
from responses_ws.runtime import background
from responses_ws.runtime.writer import writer
from responses_ws.serving import background as serving_background
from responses_ws.serving.admission import Principal
from responses_ws.serving.conversations import LEASE, hold
from responses_ws.serving.turns import run_turn
from responses_ws.stores import conversations, rows
from responses_ws.stores.memory import hot_tier

from .turns import asked, events_of, response_of

WEATHER = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}


async def make(principal: Principal, *texts: str) -> str:
    items = [{"type": "message", "role": "user", "content": text, "id": f"msg_{text}"} for text in texts]
    made = await sync_to_async(conversations.create)(principal.project_id, "conv_1", {}, items)
    return str(made.pk)


async def texts_of(conversation_id: str) -> list[str]:
    found = ConversationItem.objects.filter(conversation_id=conversation_id).order_by("position")
    items = [msgspec.json.decode(item.body) async for item in found]
    return [item["content"] if isinstance(item["content"], str) else item["content"][0]["text"] for item in items]


async def is_free(conversation_id: str) -> bool:
    return await Conversation.objects.free(timezone.now()).filter(pk=conversation_id, holder="").aexists()


@pytest.mark.parametrize("store", [True, False])
async def test_a_turn_continues_a_conversation_and_adds_to_it(principal: Principal, store: bool) -> None:
    conversation = await make(principal, "before")

    first = await response_of(asked(principal, "one", conversation=conversation, store=store))
    second = await response_of(asked(principal, "two", conversation={"id": conversation}, store=store))

    assert first["conversation"] == second["conversation"] == {"id": conversation}
    assert await texts_of(conversation) == ["before", "one", 'You said: "one"', "two", 'You said: "two"']
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    assert await is_free(conversation)
    assert await StoredResponse.objects.acount() == (2 if store else 0)


async def test_a_tool_loop_on_a_conversation_sends_only_the_output(principal: Principal) -> None:
    conversation = await make(principal)
    first = await response_of(asked(principal, "weather", conversation=conversation, tools=[WEATHER]))
    hot_tier.clear()
    output = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "clear"}

    with pytest.raises(InvalidRequest, match="No tool output found"):
        await events_of(asked(principal, "and?", conversation=conversation, tools=[WEATHER]))
    second = await response_of(asked(principal, [output], conversation=conversation, tools=[WEATHER]))

    assert "clear" in second["output"][0]["content"][0]["text"]


async def test_two_turns_at_once_are_one_too_many(principal: Principal) -> None:
    conversation = await make(principal)
    async with aclosing(run_turn(asked(principal, "!rate 100 !tokens 500 hi", conversation=conversation))) as runs:
        await anext(runs)

        with pytest.raises(ConversationLocked) as caught:
            await events_of(asked(principal, "me too", conversation=conversation))

    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "conversation_locked", "conversation")
    assert (await response_of(asked(principal, "now?", conversation=conversation)))["status"] == "completed"


ENDS = {
    "refused before the engine": ("hi", {"model": "nobody"}),
    "refused for its input": ([{"type": "function_call_output", "call_id": "x", "output": ""}], {}),
    "refused by the engine": ("!fail overloaded", {}),
    "broken by the engine": ("!tokens 9 !break 3", {}),
}


@pytest.mark.parametrize(("given", "fields"), ENDS.values(), ids=ENDS)
async def test_a_turn_that_does_not_finish_lets_go_and_adds_nothing(
    principal: Principal, given: Any, fields: dict[str, Any]
) -> None:
    conversation = await make(principal, "before")

    try:
        events = await events_of(asked(principal, given, conversation=conversation, **fields))
    except Exception:
        events = []

    assert not events or events[-1]["type"] == "response.failed"
    assert await is_free(conversation)
    assert await texts_of(conversation) == ["before"]


async def test_a_client_that_leaves_lets_go(principal: Principal) -> None:
    conversation = await make(principal)
    begun = asyncio.Event()

    async def serve() -> None:
        async with aclosing(run_turn(asked(principal, "!rate 100 !tokens 500 hi", conversation=conversation))) as runs:
            async for _ in runs:
                begun.set()

    task = asyncio.create_task(serve())
    await begun.wait()
    task.cancel()
    await asyncio.wait([task])
    await background.settle()

    assert await is_free(conversation)
    assert await texts_of(conversation) == []


async def test_a_failure_is_told_when_the_conversation_is_free_again(principal: Principal) -> None:
    conversation = await make(principal)
    async with aclosing(run_turn(asked(principal, "!tokens 9 !break 3", conversation=conversation))) as runs:
        async for frames in runs:
            if '"response.failed"' in frames[-1][:30]:
                assert await is_free(conversation)
                break
        else:
            pytest.fail("it did not fail")


async def test_the_lock_of_a_dead_process_runs_out(principal: Principal) -> None:
    conversation = await make(principal)
    dead = await hold(principal.project_id, conversation)
    dead._timer.cancel()
    await Conversation.objects.aupdate(locked_until=timezone.now() - timedelta(seconds=1))

    assert (await response_of(asked(principal, "hi", conversation=conversation)))["status"] == "completed"


async def test_a_lock_is_held_for_as_long_as_the_turn_runs(principal: Principal) -> None:
    conversation = await make(principal)
    held = await hold(principal.project_id, conversation)
    await Conversation.objects.aupdate(locked_until=timezone.now() + timedelta(seconds=1))

    held._renew()
    await writer.write(lambda: None)
    locked_until = (await Conversation.objects.aget()).locked_until

    assert locked_until is not None and locked_until > timezone.now() + LEASE / 2
    await held.release()
    await held.release()
    assert await is_free(conversation)


async def test_who_was_thought_dead_adds_nothing_and_fails(principal: Principal) -> None:
    conversation = await make(principal)
    events = []
    async with aclosing(run_turn(asked(principal, "!tokens 3 hi", conversation=conversation))) as runs:
        async for frames in runs:
            events += map(msgspec.json.decode, frames)
            await Conversation.objects.aupdate(holder="another")

    record = await UsageRecord.objects.aget()
    assert events[-1]["type"] == "response.failed"
    assert (record.status, record.reason) == ("failed", "conversation_locked")
    assert await texts_of(conversation) == []
    assert not await StoredResponse.objects.aexists()


@pytest.mark.parametrize("conversation", ["conv_x", "no such", "c" * 5000, ""])
async def test_an_unknown_conversation_is_not_found(principal: Principal, conversation: str) -> None:
    with pytest.raises(ConversationNotFound) as caught:
        await events_of(asked(principal, "hi", conversation=conversation))

    assert len(caught.value.message) < 200


async def test_a_foreign_conversation_looks_like_none(principal: Principal, other_principal: Principal) -> None:
    conversation = await make(principal)

    with pytest.raises(ConversationNotFound):
        await events_of(asked(other_principal, "hi", conversation=conversation))


async def test_a_hundred_turns_render_every_item_once(principal: Principal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost of a turn is the cost of what is new: counted, not timed."""
    from responses_ws.rendering import chat

    rendered: list[int] = []
    original = chat.messages_from
    monkeypatch.setattr(chat, "messages_from", lambda items, *a: (rendered.append(len(items)), original(items, *a))[1])
    conversation = await make(principal)
    for _ in range(100):
        await response_of(asked(principal, "more", conversation=conversation))

    assert sum(rendered) == 200
    assert await StoredItem.objects.acount() == await ConversationItem.objects.acount() == 200


async def test_what_another_process_added_is_read_and_no_more(
    principal: Principal, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = await make(principal)
    await response_of(asked(principal, "one", conversation=conversation))
    item = {"type": "message", "role": "user", "content": "from elsewhere", "id": "msg_e"}
    await sync_to_async(conversations.add)(principal.project_id, conversation, [item])
    read: list[int] = []
    original = conversations.items_from
    monkeypatch.setattr(
        conversations, "items_from", lambda *where: (items := original(*where), read.append(len(items)))[0]
    )

    await response_of(asked(principal, "two", conversation=conversation))

    assert read == [1]
    assert (await texts_of(conversation))[2:4] == ["from elsewhere", "two"]


async def test_stored_responses_on_a_conversation_share_a_chain_across_processes(principal: Principal) -> None:
    """Without the chain remembered, two processes in turn would write the whole context at every turn."""
    conversation = await make(principal, "before")
    for _ in range(5):
        hot_tier.clear()
        response = await response_of(asked(principal, "more", conversation=conversation))

    stored = await sync_to_async(rows.load)(principal.project_id, response["id"])
    assert await StoredItem.objects.acount() == 11
    assert stored is not None and len(stored.items) == 11


async def test_turns_that_are_not_stored_are_in_the_conversation_and_in_the_next_stored_one(
    principal: Principal,
) -> None:
    conversation = await make(principal)
    await response_of(asked(principal, "one", conversation=conversation, store=True))
    unstored = await response_of(asked(principal, "two", conversation=conversation, store=False))
    third = await response_of(asked(principal, "three", conversation=conversation, store=True))

    load = sync_to_async(rows.load)
    stored = await load(principal.project_id, third["id"])
    assert await load(principal.project_id, unstored["id"]) is None
    assert stored is not None
    assert [item["content"][0]["text"] for item in stored.items] == await texts_of(conversation)


async def test_a_conversation_outlives_the_responses_made_on_it(principal: Principal) -> None:
    conversation = await make(principal)
    first = await response_of(asked(principal, "one", conversation=conversation))
    await sync_to_async(rows.delete)(principal.project_id, first["id"])

    second = await response_of(asked(principal, "two", conversation=conversation))

    stored = await sync_to_async(rows.load)(principal.project_id, second["id"])
    assert stored is not None and len(stored.items) == 4
    assert len(await texts_of(conversation)) == 4


async def test_a_response_deleted_while_the_next_one_runs_changes_nothing(principal: Principal) -> None:
    conversation = await make(principal)
    first = await response_of(asked(principal, "one", conversation=conversation))
    async with aclosing(run_turn(asked(principal, "two", conversation=conversation))) as runs:
        events = [msgspec.json.decode(frame) for frame in await anext(runs)]
        await sync_to_async(rows.delete)(principal.project_id, first["id"])
        async for frames in runs:
            events += map(msgspec.json.decode, frames)

    stored = await sync_to_async(rows.load)(principal.project_id, events[0]["response"]["id"])
    assert events[-1]["type"] == "response.completed"
    assert stored is not None and len(stored.items) == 4


async def test_a_deleted_item_is_no_longer_told(principal: Principal) -> None:
    conversation = await make(principal, "secret", "hello")
    before = await response_of(asked(principal, "one", conversation=conversation))
    await sync_to_async(conversations.delete_item)(principal.project_id, conversation, "msg_secret")

    after = await response_of(asked(principal, "two", conversation=conversation))

    stored = await sync_to_async(rows.load)(principal.project_id, after["id"])
    assert stored is not None
    assert [item["id"] for item in stored.items[:1]] == ["msg_hello"]
    assert len(stored.items) == 5
    assert (await sync_to_async(rows.load)(principal.project_id, before["id"])) is not None


async def test_a_response_on_a_conversation_can_be_continued_by_its_id(principal: Principal) -> None:
    conversation = await make(principal)
    chains = Chains()
    first = await response_of(asked(principal, "one", conversation=conversation, store=False, chains=chains))

    second = await response_of(asked(principal, "two", previous_response_id=first["id"], store=False, chains=chains))

    assert second["status"] == "completed" and "conversation" not in second
    assert len(await texts_of(conversation)) == 2


async def test_a_warm_up_on_a_conversation_adds_its_input(principal: Principal) -> None:
    conversation = await make(principal)

    await response_of(asked(principal, "ready?", conversation=conversation, generate=False))

    assert await texts_of(conversation) == ["ready?"]
    assert await is_free(conversation)


async def test_no_response_id_finds_a_conversation_in_memory(principal: Principal) -> None:
    conversation = await make(principal)
    await response_of(asked(principal, "one", conversation=conversation, store=False))

    for response_id in (conversation, f"{conversation}:0"):
        with pytest.raises(InvalidRequest, match="Previous response"):
            await events_of(asked(principal, "on", previous_response_id=response_id))


async def background_response(principal: Principal, given: str, conversation: str) -> str:
    """Start one and give its id."""
    ask = asked(principal, given, conversation=conversation, background=True, transport="http")
    return str((await serving_background.start(ask))["id"])


async def test_a_background_response_holds_its_conversation_until_its_end(principal: Principal) -> None:
    conversation = await make(principal)
    response_id = await background_response(principal, "!tokens 50 !rate 500 one", conversation)

    with pytest.raises(ConversationLocked):
        await background_response(principal, "me too", conversation)
    await background.settle()

    stored = await sync_to_async(rows.load)(principal.project_id, response_id)
    assert stored is not None and stored.response["status"] == "completed"
    assert await is_free(conversation)
    assert len(await texts_of(conversation)) == 2


async def test_a_cancelled_response_adds_nothing_to_its_conversation(principal: Principal) -> None:
    conversation = await make(principal)
    response_id = await background_response(principal, "!tokens 5000 !rate 100 one", conversation)

    cancelled = await serving_background.cancel(principal.project_id, response_id)
    await background.settle()

    assert cancelled is not None and cancelled["status"] == "cancelled"
    assert await is_free(conversation)
    assert await texts_of(conversation) == []


@pytest.mark.parametrize("given", ["!fail overloaded", "!tokens 9 !break 3"], ids=["refused", "broken"])
async def test_a_background_response_that_fails_lets_go(principal: Principal, given: str) -> None:
    conversation = await make(principal)

    await background_response(principal, given, conversation)
    await background.settle()

    assert await is_free(conversation)
    assert await texts_of(conversation) == []


async def test_one_background_response_too_many_lets_go(principal: Principal, settings: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "LIMITS": {"background_turns": 0}}
    conversation = await make(principal)

    with pytest.raises(Overloaded):
        await background_response(principal, "hi", conversation)

    assert await is_free(conversation)


@pytest.mark.parametrize("forget", [False, True], ids=["memory", "database"])
async def test_a_compacted_conversation_goes_on_from_its_compaction(principal: Principal, forget: bool) -> None:
    conversation = await make(principal)
    await response_of(asked(principal, "Remember cobalt", conversation=conversation))
    trigger = [{"type": "compaction_trigger"}]
    compacted = await response_of(asked(principal, trigger, conversation=conversation))
    if forget:
        hot_tier.clear()

    after = await response_of(asked(principal, "What now?", conversation=conversation))

    assert [item["type"] for item in compacted["output"]] == ["compaction"]
    assert after["output"][0]["content"][0]["text"] == 'You said: "What now?"'
    # What was compacted counts once.
    assert after["usage"]["input_tokens"] < 2 * compacted["usage"]["input_tokens"] + 100
