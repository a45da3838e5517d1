"""A model whose prompts its engine renders itself."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from django.test import override_settings

from responses_ws.connection.chain import Chains
from responses_ws.engines.base import ChatRequest, TokenRequest
from responses_ws.engines.registry import registry
from responses_ws.engines.scripted import Scripted
from responses_ws.engines.scripted_tokens import TOKENIZER, vocabulary
from responses_ws.models import UsageRecord
from responses_ws.protocol.errors import ApiError
from responses_ws.rendering.base import Ask
from responses_ws.rendering.by_engine import ByEngine
from responses_ws.runtime import dbpool, renderers
from responses_ws.serving.admission import Principal
from responses_ws.serving.counting import count_input

from .turns import asked, response_of

WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
OPTIONS = {"TOKENIZER": str(TOKENIZER), "PARSER": "think-hermes", "STOP_TOKENS": ["<|im_end|>"]}


class Rendering(Scripted):
    """A token engine that has a chat template, and tells what it makes of messages."""

    def __init__(self) -> None:
        super().__init__("scripted", {})
        self.prompts: list[str] = []
        self.tells = True

    async def rendered(self, request: ChatRequest) -> Sequence[int] | None:
        assert request.model == "upstream-name"
        own = renderers.load(super().renderer_options("scripted"))
        draft = own.draft(request.prompt, Ask(tools=request.tools))
        draft.make()
        return list(draft.log()) if self.tells else None

    def generate(self, request: TokenRequest) -> Any:
        self.prompts.append(vocabulary().text(request.prompt.since(0)))
        return super().generate(request)


@pytest.fixture
def engine() -> Iterator[Rendering]:
    renderer = {"CLASS": "responses_ws.rendering.by_engine.ByEngine", **OPTIONS}
    models = {"scripted": {"ENGINE": "scripted", "UPSTREAM": "upstream-name", "RENDERER": renderer}}
    with override_settings(RESPONSES_WS={"MODELS": models}):
        engine = Rendering()
        registry.install("scripted", engine)
        yield engine


async def test_a_tool_loop_is_rendered_by_the_engine_and_parsed_by_us(principal: Principal, engine: Rendering) -> None:
    chains = Chains()
    first = await response_of(asked(principal, "!reason 5 Weather?", chains=chains, tools=[WEATHER]))
    call = first["output"][1]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}

    second = await response_of(
        asked(principal, [output], chains=chains, tools=[WEATHER], previous_response_id=first["id"])
    )

    assert [item["type"] for item in first["output"]] == ["reasoning", "function_call"]
    assert first["usage"]["output_tokens_details"]["reasoning_tokens"] == 5
    assert second["output"][-1]["content"][0]["text"] == 'The tool returned "sunny".'
    assert engine.prompts[1].endswith("sunny\n</tool_response><|im_end|>\n<|im_start|>assistant\n")
    records = await dbpool.run(lambda: list(UsageRecord.objects.order_by("id")))
    assert [record.render_path for record in records] == ["full", "full"]
    assert [record.rendered_tokens for record in records] == [record.input_tokens for record in records]


async def test_a_forced_call_is_begun_by_us(principal: Principal, engine: Rendering) -> None:
    forced = {"type": "function", "name": "weather"}

    response = await response_of(asked(principal, "Hello", tools=[WEATHER], tool_choice=forced))

    assert [(item["type"], item["name"]) for item in response["output"]] == [("function_call", "weather")]


async def test_input_is_counted_as_the_engine_renders_it(principal: Principal, engine: Rendering) -> None:
    counted = await count_input(asked(principal, "Hello"))

    response = await response_of(asked(principal, "Hello"))
    assert counted == response["usage"]["input_tokens"]


async def test_an_engine_that_does_not_tell_is_no_engine_for_it(principal: Principal, engine: Rendering) -> None:
    engine.tells = False

    with pytest.raises(ApiError) as refused:
        await response_of(asked(principal, "Hello"))

    assert refused.value.status >= 500


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"PARSER": "plain"}, "tokenizer"),
        ({**OPTIONS, "TEMPLATE": "hermes"}, "TEMPLATE"),
        ({**OPTIONS, "PARSER": "nobody's"}, "PARSER"),
    ],
    ids=["no tokenizer", "a template", "unknown family"],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"(?i){message}"):
        ByEngine.check_options(options)
