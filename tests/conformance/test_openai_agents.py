"""`openai-agents` over its WebSocket transport: it sends everything again, or chains when told to."""

from collections.abc import Iterator
from typing import Any

import pytest
from agents import (
    Agent,
    ModelSettings,
    ToolCallItem,
    function_tool,
    responses_websocket_session,
    set_tracing_disabled,
)
from agents.agent_output import AgentOutputSchemaBase
from pydantic import BaseModel

from tests.live import Server

pytestmark = pytest.mark.conformance


@pytest.fixture(autouse=True)
def _no_tracing() -> Iterator[None]:
    """Traces would be sent to their maker."""
    set_tracing_disabled(True)
    yield
    set_tracing_disabled(False)


@pytest.fixture
def cities() -> list[str]:
    """Cities that the tool was asked about."""
    return []


@pytest.fixture
def agent(model: str, cities: list[str]) -> Agent[Any]:
    @function_tool
    def get_weather(city: str) -> str:
        """The weather of a city."""
        cities.append(city)
        return f"sunny in {city}"

    return Agent(
        name="Weatherman",
        instructions="Use the tool.",
        model=model,
        tools=[get_weather],
        model_settings=ModelSettings(store=False, parallel_tool_calls=False),
    )


@pytest.mark.parametrize("chained", [False, True], ids=["resends", "chains"])
async def test_two_runs_with_tools_on_one_socket(
    server: Server, key: str, agent: Agent[Any], cities: list[str], chained: bool
) -> None:
    more: Any = {"auto_previous_response_id": True} if chained else {}

    async with responses_websocket_session(api_key=key, base_url=server.base_url) as session:
        first = await session.run(agent, "!rounds 3 The weather in Oslo?", **more)
        question: Any = {"role": "user", "content": "And in Rome?"}
        if chained:
            more["previous_response_id"] = first.last_response_id
            second = await session.run(agent, [question], **more)
        else:
            second = await session.run(agent, [*first.to_input_list(), question])

    assert cities == ["Oslo", "Oslo", "Oslo", "Rome"]
    assert first.final_output == 'The tool returned "sunny in Oslo".'
    assert second.final_output == 'The tool returned "sunny in Rome".'
    usages = [response.usage.input_tokens for result in (first, second) for response in result.raw_responses]
    assert len(usages) == 6
    assert usages == sorted(set(usages)), "the context only grows, however it is sent"


async def test_a_streamed_run(server: Server, key: str, agent: Agent[Any], cities: list[str]) -> None:
    async with responses_websocket_session(api_key=key, base_url=server.base_url) as session:
        result = session.run_streamed(agent, "The weather in Oslo?")
        events = [event async for event in result.stream_events()]

    deltas = [
        event.data.delta
        for event in events
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    assert "".join(deltas) == result.final_output == 'The tool returned "sunny in Oslo".'
    assert cities == ["Oslo"]
    assert len([item for item in result.new_items if isinstance(item, ToolCallItem)]) == 1


class Weather(BaseModel):
    city: str
    degrees: int


async def test_a_structured_answer(server: Server, key: str, model: str) -> None:
    output: type[Any] | AgentOutputSchemaBase = Weather
    agent = Agent(name="Reader", model=model, output_type=output)

    async with responses_websocket_session(api_key=key, base_url=server.base_url) as session:
        result = await session.run(agent, 'It has 7 degrees in "Oslo".')

    assert result.final_output == Weather(city="Oslo", degrees=7)


async def test_a_hand_off_to_another_agent(server: Server, key: str, model: str) -> None:
    specialist = Agent(name="Specialist", model=model)
    desk = Agent(name="Desk", model=model, handoffs=[specialist])

    async with responses_websocket_session(api_key=key, base_url=server.base_url) as session:
        result = await session.run(desk, "Please transfer me to the specialist.")

    assert result.last_agent is specialist
