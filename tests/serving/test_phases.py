"""Where a turn's time goes, in its usage record and in what is counted: at every ending."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from typing import Any

import pytest

from responses_ws.connection.chain import Chains
from responses_ws.engines.registry import registry
from responses_ws.models import UsageRecord
from responses_ws.protocol.errors import ApiError
from responses_ws.protocol.steering import Steer
from responses_ws.rendering.base import Ask, Draft
from responses_ws.rendering.chat import ChatPrompt
from responses_ws.runtime import background, metrics
from responses_ws.serving.admission import Principal
from responses_ws.serving.mailbox import Mailbox
from responses_ws.serving.turns import run_turn
from tests.safety.spies import Spy

from .bytes_model import BytesDraft, BytesEngine, BytesRenderer
from .hosted import NOTES, Notebook, calls, note, run_here, script
from .test_safety import seat
from .turns import asked, events_of, response_of

__all__ = ["run_here"]


async def records() -> list[UsageRecord]:
    await background.settle()
    return [record async for record in UsageRecord.objects.order_by("id")]


async def left_at_once(principal: Principal) -> None:
    async with aclosing(run_turn(asked(principal, "!tokens 1000 !rate 50"))) as runs:
        await anext(runs)


async def refused_by_a_classifier(principal: Principal) -> None:
    seat(Spy({"Hello": "block"}))
    await events_of(asked(principal, "Hello"))


async def broken_by_its_engine(principal: Principal) -> None:
    with suppress(ApiError):
        await events_of(asked(principal, "!fail 500"))


def turn(given: str, **fields: Any) -> Callable[[Principal], Any]:
    return lambda principal: events_of(asked(principal, given, **fields))


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(turn("Hello"), id="completed"),
        pytest.param(turn("!tokens 9", max_output_tokens=2), id="incomplete"),
        pytest.param(turn("Hello", generate=False), id="warmed up"),
        pytest.param(broken_by_its_engine, id="failed"),
        pytest.param(left_at_once, id="left"),
        pytest.param(refused_by_a_classifier, id="refused"),
    ],
)
async def test_the_parts_of_a_turn_add_up_to_its_duration(
    principal: Principal, end: Callable[[Principal], Any]
) -> None:
    await end(principal)

    (record,) = await records()
    assert record.checks_ms is not None and record.duration_ms is not None
    spoke = record.duration_ms if record.first_token_ms is None else record.first_token_ms
    assert 0 < record.checks_ms <= record.checks_ms + (record.render_ms or 0) <= spoke <= record.duration_ms
    told = metrics.means(metrics.families(()), "responses_ws_turn_phase_seconds")
    assert list(told) == ["checks", "render", "first_token", "rest", "settle"]
    assert sum(told.values()) - told["settle"] == pytest.approx(record.duration_ms / 1000)
    assert told["settle"] > 0


async def test_what_comes_before_the_prompt_is_checks_and_not_render(principal: Principal) -> None:
    ask = asked(principal, "Hello")
    ask.received_at -= 100

    await response_of(ask)

    (record,) = await records()
    assert record.checks_ms is not None and record.checks_ms >= 100_000
    assert record.render_ms is not None and record.render_ms < 100_000


async def test_a_steered_response_and_its_successor_have_each_their_own_times(principal: Principal) -> None:
    mailbox: Mailbox[Any] = Mailbox()
    ask = asked(principal, "!tokens 1000 !rate 200", chains=Chains())
    ask.received_at -= 100
    ask.mailbox = mailbox

    async with aclosing(run_turn(ask)) as runs:
        async for frames in runs:
            if "output_text.delta" in frames[-1] and not mailbox.drain():
                mailbox.put(Steer("resp_of_mine", "!tokens 1"))
                break
        async for _ in runs:
            pass

    first, second = await records()
    assert first.checks_ms is not None and second.checks_ms is not None and second.duration_ms is not None
    assert first.checks_ms >= 100_000
    assert second.checks_ms <= second.duration_ms < 100_000


SECONDS = 0.03


class SlowDraft(BytesDraft):
    def make(self) -> None:
        time.sleep(SECONDS)
        super().make()


class SlowRenderer(BytesRenderer):
    def draft(self, prompt: ChatPrompt, ask: Ask) -> Draft:
        return SlowDraft(prompt, ask)


class SlowlyRendered(BytesEngine):
    def renderer_options(self, model: str) -> dict[str, Any]:
        return {"CLASS": f"{__name__}.SlowRenderer"}


@pytest.fixture
async def slowly_rendered(settings: Any) -> AsyncIterator[BytesEngine]:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "MODELS": {"bytes": {"ENGINE": "bytes"}}}
    engine = SlowlyRendered('So<call>notes__note:{ "text": "a"}<end>', "Done.<end>")
    registry.install("bytes", engine)
    yield engine


async def test_the_first_prompt_is_rendered_before_the_first_token_and_later_ones_belong_to_the_rest(
    principal: Principal, slowly_rendered: BytesEngine
) -> None:
    await response_of(asked(principal, "Note.", model="bytes", tools=[NOTES], store=False))

    (record,) = await records()
    assert len(slowly_rendered.prompts) == 2
    assert record.render_ms is not None and record.first_token_ms is not None and record.duration_ms is not None
    assert SECONDS * 1000 <= record.render_ms <= record.first_token_ms
    assert record.duration_ms - record.first_token_ms >= SECONDS * 1000


async def test_a_warm_up_has_rendered_its_prompt(principal: Principal, slowly_rendered: BytesEngine) -> None:
    await response_of(asked(principal, "Hello", model="bytes", generate=False))

    (record,) = await records()
    assert record.render_ms is not None and record.render_ms >= SECONDS * 1000


@pytest.mark.parametrize(
    ("made", "most", "count"),
    [
        pytest.param([], None, 0, id="none"),
        pytest.param([note("a"), note("b")], None, 2, id="each once"),
        pytest.param([("web_search", {"query": "x"}), note("a")], None, 2, id="of all kinds"),
        pytest.param([note("fail"), note("a")], None, 1, id="not what failed"),
        pytest.param([note("break")], None, 0, id="not what broke"),
        pytest.param([note("a"), note("b"), note("c")], 2, 2, id="not what was refused"),
    ],
)
async def test_hosted_tools_that_were_run_are_on_the_record(
    principal: Principal, made: list[Any], most: int | None, count: int
) -> None:
    script(*([calls(*made)] if made else []), "Done.")
    tools = [NOTES, {"type": "web_search"}]

    await response_of(asked(principal, "Note.", tools=tools, max_tool_calls=most, store=False))

    (record,) = await records()
    assert record.tool_calls == count


async def test_a_call_whose_client_left_before_it_ended_is_on_the_record(principal: Principal) -> None:
    script(calls(note("a"), note("wait")))
    running = asyncio.ensure_future(events_of(asked(principal, "Note.", tools=[NOTES], store=False)))
    await asyncio.wait_for(Notebook.began.wait(), 5)

    running.cancel()
    await asyncio.wait({running})

    (record,) = await records()
    assert (record.status, record.tool_calls) == ("cancelled", 2)
