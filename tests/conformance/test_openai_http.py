"""The official `openai` client over HTTP and SSE."""

from collections.abc import AsyncIterator, Iterator

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from tests.live import Server

from .grammar import check_turn
from .tools import WEATHER

pytestmark = pytest.mark.conformance

ASK = "What is the weather in Paris?"


@pytest.fixture
def client(server: Server, key: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.base_url, api_key=key, max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(server: Server, key: str) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=server.base_url, api_key=key, max_retries=0) as client:
        yield client


def outputs(response: openai.types.responses.Response) -> list[dict]:
    return [
        {"type": "function_call_output", "call_id": item.call_id, "output": "sunny, 21 degrees"}
        for item in response.output
        if item.type == "function_call"
    ]


def test_the_models_of_both_engines_are_listed(client: OpenAI) -> None:
    names = [model.id for model in client.models.list()]

    assert {"scripted", "fake-chat"} <= set(names)
    assert [client.models.retrieve(name).id for name in ("scripted", "fake-chat")] == ["scripted", "fake-chat"]


def test_an_unknown_model_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as retrieved:
        client.models.retrieve("gpt-nobody")
    with pytest.raises(openai.NotFoundError) as created:
        client.responses.create(model="gpt-nobody", input="hello")

    assert retrieved.value.code == created.value.code == "model_not_found"


def test_a_tool_loop_by_previous_response_id(client: OpenAI, model: str) -> None:
    response = client.responses.create(model=model, input=ASK, tools=[WEATHER])
    assert len(outputs(response)) == 1

    answer = client.responses.create(
        model=model, previous_response_id=response.id, input=outputs(response), tools=[WEATHER]
    )

    assert answer.previous_response_id == response.id
    assert answer.output_text == 'The tool returned "sunny, 21 degrees".'
    assert answer.usage is not None and response.usage is not None
    assert answer.usage.input_tokens > response.usage.input_tokens


def test_a_tool_loop_that_sends_everything_again(client: OpenAI, model: str) -> None:
    history: list = [{"role": "user", "content": ASK}]
    response = client.responses.create(model=model, input=history, tools=[WEATHER], store=False)
    history += [item.model_dump(exclude_none=True) for item in response.output] + outputs(response)

    answer = client.responses.create(model=model, input=history, tools=[WEATHER], store=False)

    assert answer.output_text == 'The tool returned "sunny, 21 degrees".'


def test_a_stream_of_events(client: OpenAI, model: str) -> None:
    with client.responses.create(model=model, input="Say hello.", stream=True) as stream:
        events = list(stream)

    final = check_turn([event.model_dump(exclude_unset=True) for event in events])
    assert final["output"][0]["content"][0]["text"] == 'You said: "Say hello."'


def test_the_streaming_helper(client: OpenAI, model: str) -> None:
    with client.responses.stream(model=model, input="Say hello.") as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()

    assert text == final.output_text == 'You said: "Say hello."'


def test_the_streaming_helper_reads_calls(client: OpenAI, model: str) -> None:
    with client.responses.stream(model=model, input=ASK, tools=[WEATHER]) as stream:
        stream.until_done()
        final = stream.get_final_response()

    assert [(call.name, call.arguments) for call in final.output if call.type == "function_call"] == [
        ("get_weather", '{"city":"Paris"}')
    ]


class Weather(BaseModel):
    city: str
    degrees: int


def test_an_answer_parsed_into_a_model(client: OpenAI, model: str) -> None:
    response = client.responses.parse(model=model, input='It has 7 degrees in "Oslo".', text_format=Weather)

    assert response.output_parsed == Weather(city="Oslo", degrees=7)


def test_a_stored_response_is_retrieved_listed_and_deleted(client: OpenAI, model: str) -> None:
    first = client.responses.create(model=model, instructions="Be brief.", input="One.", metadata={"a": "b"})
    second = client.responses.create(model=model, previous_response_id=first.id, input="Two.")

    assert client.responses.retrieve(first.id) == first
    assert client.responses.retrieve(second.id) == second
    items = list(client.responses.input_items.list(second.id, order="asc", limit=1))
    assert [item.role for item in items] == ["user", "assistant", "user"]
    assert [item.content[0].text for item in items] == ["One.", first.output_text, "Two."]
    newest_first = list(client.responses.input_items.list(second.id))
    assert [item.id for item in newest_first] == [item.id for item in reversed(items)]

    client.responses.delete(second.id)

    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(second.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.input_items.list(second.id)
    assert client.responses.retrieve(first.id) == first


def test_an_unstored_response_is_not_found(client: OpenAI, model: str) -> None:
    response = client.responses.create(model=model, input="hello", store=False)

    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    with pytest.raises(openai.BadRequestError) as continued:
        client.responses.create(model=model, previous_response_id=response.id, input="more")
    assert continued.value.code == "previous_response_not_found"


def test_what_an_engine_refuses_has_a_status(client: OpenAI, model: str) -> None:
    with pytest.raises(openai.RateLimitError) as limited:
        client.responses.create(model=model, input="!fail rate_limited")
    with pytest.raises(openai.InternalServerError) as overloaded:
        client.responses.create(model=model, input="!fail overloaded", stream=True)

    assert limited.value.response.headers["retry-after"] == "1"
    assert overloaded.value.status_code == 503
    assert overloaded.value.code == "server_is_overloaded"


def test_what_breaks_midway_ends_as_failed(client: OpenAI, model: str) -> None:
    with client.responses.create(model=model, input="!tokens 40 !break 20", stream=True) as stream:
        events = list(stream)

    final = check_turn([event.model_dump(exclude_unset=True) for event in events])
    assert final["status"] == "failed"
    assert final["error"]["code"] == "server_error"


def test_an_answer_cut_by_its_limit_is_incomplete(client: OpenAI, model: str) -> None:
    response = client.responses.create(model=model, input="!tokens 100", max_output_tokens=20)

    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage is not None and response.usage.output_tokens == 20


def test_a_refusal_is_a_part_of_a_completed_response(client: OpenAI) -> None:
    """Of chat completions: a token engine cannot tell it from other text."""
    response = client.responses.create(model="fake-chat", input="!refuse")

    assert response.status == "completed"
    assert response.output[0].content[0].refusal == "I cannot help with that."


def test_a_wrong_key_is_unauthorized(server: Server) -> None:
    with OpenAI(base_url=server.base_url, api_key="sk-nobody", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            client.models.list()

    assert caught.value.code == "invalid_api_key"


async def test_the_asynchronous_client(async_client: AsyncOpenAI, model: str) -> None:
    client = async_client
    names = [one.id async for one in client.models.list()]
    whole = await client.responses.create(model=model, input="Say hello.")
    async with await client.responses.create(model=model, input="Say hello.", stream=True) as stream:
        events = [event async for event in stream]
    async with client.responses.stream(model=model, input='It has 7 degrees in "Oslo".', text_format=Weather) as helper:
        parsed = await helper.get_final_response()

    assert model in names
    assert check_turn([event.model_dump(exclude_unset=True) for event in events])["status"] == "completed"
    assert whole.output_text == 'You said: "Say hello."'
    assert parsed.output_parsed == Weather(city="Oslo", degrees=7)
