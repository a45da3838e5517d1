"""Turns with a model that is asked in token ids: what it is sent, what is kept, what is counted."""

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import pytest
from django.test import override_settings

from responses_ws.connection.chain import Chains
from responses_ws.engines.registry import registry
from responses_ws.models import UsageRecord
from responses_ws.protocol.steering import Steer
from responses_ws.runtime import background, dbpool
from responses_ws.serving.admission import Principal
from responses_ws.serving.counting import count_input
from responses_ws.serving.mailbox import Mailbox
from responses_ws.serving.sampling import Word
from responses_ws.serving.turns import run_turn
from responses_ws.stores.memory import hot_tier

from .bytes_model import BytesEngine, spelled
from .turns import asked, events_of, response_of

WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}}


@pytest.fixture(autouse=True)
def _bytes_model() -> Iterator[None]:
    with override_settings(RESPONSES_WS={"MODELS": {"bytes": {"ENGINE": "bytes"}}}):
        yield


def engine_with(*answers: str, **options: Any) -> BytesEngine:
    engine = BytesEngine(*answers, **options)
    registry.install("bytes", engine)
    return engine


async def record_of(response_id: str) -> UsageRecord:
    return await dbpool.run(lambda: UsageRecord.objects.get(response_id=response_id))


async def test_a_tool_loop_sends_what_it_has_sent_and_what_the_model_has_said(principal: Principal) -> None:
    engine = engine_with('Wait<call>weather:{ "city": "Oslo" }<end>', "Cold.<end>")
    chains = Chains()
    first = await response_of(asked(principal, "Oslo?", model="bytes", chains=chains, tools=[WEATHER]))
    call_id = first["output"][1]["call_id"]

    second = await response_of(
        asked(
            principal,
            [{"type": "function_call_output", "call_id": call_id, "output": "-3"}],
            model="bytes",
            chains=chains,
            tools=[WEATHER],
            previous_response_id=first["id"],
        )
    )

    assert [item["type"] for item in first["output"]] == ["message", "function_call"]
    assert first["output"][1]["arguments"] == '{ "city": "Oslo" }'
    assert [spelled(prompt) for prompt in engine.prompts] == [
        "<user>Oslo?<end><assistant>",
        # The model's own spaces: its call is not written again.
        '<user>Oslo?<end><assistant>Wait<call>weather:{ "city": "Oslo" }<end><tool>-3<end><assistant>',
    ]
    assert second["output"][0]["content"][0]["text"] == "Cold."


async def test_a_call_that_cannot_be_read_is_text_and_told_to_the_operator(
    principal: Principal, caplog: pytest.LogCaptureFixture
) -> None:
    engine_with("<call>weather<end>")

    response = await response_of(asked(principal, "Oslo?", model="bytes", tools=[WEATHER]))

    assert response["output"][0]["content"][0]["text"] == "<call>weather"
    assert "model bytes wrote 1 calls that could not be read" in caplog.text
    assert "weather" not in caplog.text


async def test_every_token_is_counted_and_the_record_says_how_the_prompt_was_made(principal: Principal) -> None:
    engine_with("Hello<end>", "Bye<end>")
    chains = Chains()

    first = await response_of(asked(principal, "Hi", model="bytes", chains=chains))
    second = await response_of(asked(principal, "So?", model="bytes", chains=chains, previous_response_id=first["id"]))

    # <user>Hi<end><assistant> is five; its answer, with its end, six.
    assert first["usage"]["input_tokens"] == 5
    assert first["usage"]["output_tokens"] == 6
    assert second["usage"]["input_tokens"] == 5 + 6 + 6
    assert second["usage"]["input_tokens_details"]["cached_tokens"] == 7
    records = [await record_of(response["id"]) for response in (first, second)]
    assert [(record.render_path, record.rendered_tokens) for record in records] == [("full", 5), ("append", 6)]
    assert not any(record.estimated for record in records)


async def test_tokens_that_the_engine_cannot_tell_are_counted_all_the_same(principal: Principal) -> None:
    """A limit within a character: llama.cpp has sampled its first bytes and keeps them to itself."""
    engine = engine_with("Hello")
    engine.untold = 2

    response = await response_of(asked(principal, "Hi", model="bytes"))

    assert response["usage"]["output_tokens"] == 7


async def test_other_instructions_render_the_whole_prompt_again(principal: Principal) -> None:
    engine = engine_with("A<end>", "B<end>")
    chains = Chains()
    first = await response_of(asked(principal, "Hi", model="bytes", chains=chains, instructions="One"))

    second = await response_of(
        asked(principal, "So?", model="bytes", chains=chains, instructions="Two", previous_response_id=first["id"])
    )

    assert spelled(engine.prompts[1]) == "<system>Two<end><user>Hi<end><assistant>A<end><user>So?<end><assistant>"
    assert (await record_of(second["id"])).render_path == "full"


async def test_forks_share_their_past_and_do_not_see_each_other(principal: Principal) -> None:
    engine = engine_with("A<end>", "B<end>", "C<end>")
    first = await response_of(asked(principal, "Hi", model="bytes"))

    for question in ("left", "right"):
        await response_of(asked(principal, question, model="bytes", previous_response_id=first["id"]))

    assert [spelled(prompt) for prompt in engine.prompts[1:]] == [
        f"<user>Hi<end><assistant>A<end><user>{question}<end><assistant>" for question in ("left", "right")
    ]


async def test_a_cut_answer_stays_and_is_ended_before_what_follows(principal: Principal) -> None:
    engine = engine_with("Hello world<end>", "B<end>")
    first = await response_of(asked(principal, "Hi", model="bytes", max_output_tokens=5))

    await response_of(asked(principal, "So?", model="bytes", previous_response_id=first["id"]))

    assert first["incomplete_details"] == {"reason": "max_output_tokens"}
    assert first["usage"]["output_tokens"] == 5
    assert engine.requests[0].max_tokens == 5
    assert spelled(engine.prompts[1]) == "<user>Hi<end><assistant>Hello<end><user>So?<end><assistant>"


async def test_an_answer_without_any_output_is_not_in_the_prompt_either(principal: Principal) -> None:
    """Reasoning that was cut right behind its marker left the marker open in every later prompt of the chain, which
    a prompt rendered anew did not have."""
    engine = engine_with("<end>", "B<end>")
    first = await response_of(asked(principal, "Hi", model="bytes"))

    await response_of(asked(principal, "So?", model="bytes", previous_response_id=first["id"]))

    assert first["output"] == []
    assert spelled(engine.prompts[1]) == "<user>Hi<end><user>So?<end><assistant>"


async def test_a_second_call_that_was_dropped_is_not_in_the_prompt_either(principal: Principal) -> None:
    engine = engine_with("<call>weather:{}<call>weather:{}<end>", "B<end>")
    first = await response_of(asked(principal, "Hi", model="bytes", tools=[WEATHER], parallel_tool_calls=False))
    output = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "-3"}

    await response_of(asked(principal, [output], model="bytes", tools=[WEATHER], previous_response_id=first["id"]))

    assert len(first["output"]) == 1
    assert spelled(engine.prompts[1]) == ("<user>Hi<end><assistant><call>weather:{}<end><tool>-3<end><assistant>")


@pytest.mark.parametrize("end", ["", "<end>"], ids=["closed in its stead", "ended by the constraint"])
async def test_a_forced_call_begins_in_the_models_stead(principal: Principal, end: str) -> None:
    engine = engine_with('{"a": 1}' + end, "B<end>")
    forced = {"type": "function", "name": "weather"}

    first = await response_of(asked(principal, "Hi", model="bytes", tools=[WEATHER], tool_choice=forced))
    output = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "-3"}
    await response_of(asked(principal, [output], model="bytes", tools=[WEATHER], previous_response_id=first["id"]))

    assert first["output"][0]["arguments"] == '{"a": 1}'
    assert first["usage"]["output_tokens"] == 8 + bool(end)
    assert spelled(engine.prompts[0]) == "<user>Hi<end><assistant><call>weather:"
    assert spelled(engine.prompts[1]) == ('<user>Hi<end><assistant><call>weather:{"a": 1}<end><tool>-3<end><assistant>')


async def test_a_steered_answer_goes_on_from_what_was_heard(principal: Principal) -> None:
    pause = asyncio.Event()
    engine = engine_with("abcdefghi<end>", "B<end>", pause=pause)
    ask = asked(principal, "Hi", model="bytes", chains=Chains())
    ask.mailbox = mailbox = Mailbox[Word]()
    events: list[str] = []

    async with aclosing(run_turn(ask)) as runs:
        async for frames in runs:
            events += frames
            if '"delta":"c"' in events[-1] and not pause.is_set():
                mailbox.put(Steer(previous_response_id="", input=[{"role": "user", "content": "Stop"}]))
                pause.set()
    await background.settle()

    assert spelled(engine.prompts[1]).startswith("<user>Hi<end><assistant>abc")
    assert spelled(engine.prompts[1]).endswith("<end><user>Stop<end><assistant>")


async def test_a_warm_up_reads_the_prompt_and_the_next_turn_appends_to_it(principal: Principal) -> None:
    engine = engine_with("B<end>")
    chains = Chains()
    warm = await response_of(asked(principal, "Hi", model="bytes", chains=chains, generate=False))

    second = await response_of(asked(principal, "So?", model="bytes", chains=chains, previous_response_id=warm["id"]))

    assert warm["usage"]["input_tokens"] == 5
    assert warm["usage"]["input_tokens_details"]["cached_tokens"] == 1
    assert [spelled(prompt) for prompt in engine.prompts] == [
        "<user>Hi<end><assistant>",
        "<user>Hi<end><user>So?<end><assistant>",
    ]
    assert (await record_of(second["id"])).render_path == "append"


async def test_a_stored_chain_is_rendered_whole_where_nobody_remembers_it(principal: Principal) -> None:
    engine = engine_with("A<end>", "B<end>")
    first = await response_of(asked(principal, "Hi", model="bytes"))
    hot_tier.clear()

    second = await response_of(asked(principal, "So?", model="bytes", previous_response_id=first["id"]))

    assert spelled(engine.prompts[1]) == "<user>Hi<end><assistant>A<end><user>So?<end><assistant>"
    assert (await record_of(second["id"])).render_path == "full"


async def test_input_is_counted_in_the_models_own_tokens(principal: Principal) -> None:
    engine_with()

    assert await count_input(asked(principal, "Hi", model="bytes")) == len("<Hi><")


async def test_a_prompt_that_leaves_no_room_is_refused(principal: Principal) -> None:
    engine_with("A<end>")
    with override_settings(RESPONSES_WS={"MODELS": {"bytes": {"ENGINE": "bytes", "CONTEXT": 20}}}):
        registry.install("bytes", BytesEngine("A<end>"))
        events = await events_of(asked(principal, "x" * 14, model="bytes"))
        assert events[-1]["type"] == "response.completed"

        with pytest.raises(Exception, match="context") as refused:
            await events_of(asked(principal, "x" * 18, model="bytes"))

    assert refused.value.code == "context_length_exceeded"


async def test_a_warm_up_that_the_template_refuses_warms_up_the_rest(principal: Principal) -> None:
    """Codex begins with tools, and no message."""
    engine = engine_with("B<end>")
    chains = Chains()
    warm = await response_of(asked(principal, [], model="bytes", chains=chains, generate=False, tools=[WEATHER]))

    second = await response_of(
        asked(principal, "So?", model="bytes", chains=chains, tools=[WEATHER], previous_response_id=warm["id"])
    )

    assert warm["status"] == second["status"] == "completed"
    assert [spelled(prompt) for prompt in engine.prompts] == ["<user>So?<end><assistant>"]


async def test_old_turns_are_left_out_until_the_rest_fits(principal: Principal) -> None:
    """Four bytes a token is our estimate; of this model they are four tokens."""
    engine = engine_with("fine<end>")
    history = [
        {"role": role, "content": f"{number:02}" + "x" * 38} for number in range(8) for role in ("user", "assistant")
    ]
    with override_settings(RESPONSES_WS={"MODELS": {"bytes": {"ENGINE": "bytes", "CONTEXT": 250}}}):
        registry.install("bytes", engine)

        response = await response_of(
            asked(principal, [*history, {"role": "user", "content": "And?"}], model="bytes", truncation="auto")
        )

    assert response["status"] == "completed"
    assert len(engine.prompts) == 1
    assert 0 < response["usage"]["input_tokens"] < 250
    assert spelled(engine.prompts[0]).endswith("<user>And?<end><assistant>")
