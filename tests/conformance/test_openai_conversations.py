"""The official `openai` client on conversations."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from openai import OpenAI

from tests.live import Server

pytestmark = pytest.mark.conformance


@pytest.fixture
def client(server: Server, key: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.base_url, api_key=key, max_retries=0) as client:
        yield client


def texts(client: OpenAI, conversation_id: str) -> list[str]:
    items = client.conversations.items.list(conversation_id, order="asc", limit=2)
    return [item.content[0].text for item in items]  # pages are turned by the client


def test_a_conversation_from_its_beginning_to_its_end(client: OpenAI, model: str) -> None:
    conversation = client.conversations.create(
        items=[{"type": "message", "role": "user", "content": "before"}], metadata={"topic": "demo"}
    )
    first = client.responses.create(model=model, input="one", conversation=conversation.id)
    second = client.responses.create(model=model, input="two", conversation={"id": conversation.id}, store=False)
    added = client.conversations.items.create(
        conversation.id, items=[{"type": "message", "role": "user", "content": "by hand"}]
    )
    listed = texts(client, conversation.id)
    updated = client.conversations.update(conversation.id, metadata={"topic": "done"})
    item = client.conversations.items.retrieve(added.data[0].id, conversation_id=conversation.id)
    left = client.conversations.items.delete(item.id, conversation_id=conversation.id)
    deleted = client.conversations.delete(conversation.id)

    assert second.conversation is not None and second.conversation.id == conversation.id
    assert listed == ["before", "one", first.output_text, "two", second.output_text, "by hand"]
    assert updated.metadata == {"topic": "done"} and left.id == conversation.id
    assert deleted.deleted and deleted.object == "conversation.deleted"
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(conversation.id)


def test_a_conversation_is_locked_for_all_processes(client: OpenAI, second: Server, key: str) -> None:
    conversation = client.conversations.create()
    begun, go_on = threading.Event(), threading.Event()

    def hold() -> str:
        slow = "!tokens 2000 !rate 500 hello"
        with client.responses.create(model="scripted", input=slow, conversation=conversation.id, stream=True) as stream:
            kinds = []
            for event in stream:
                kinds.append(event.type)
                begun.set()
                go_on.wait(10)
        return kinds[-1]

    with OpenAI(base_url=second.base_url, api_key=key, max_retries=0) as other, ThreadPoolExecutor() as pool:
        holding = pool.submit(hold)
        assert begun.wait(10)
        with pytest.raises(openai.BadRequestError) as caught:
            other.responses.create(model="scripted", input="me too", conversation=conversation.id)
        go_on.set()
        ended = holding.result(30)
        after = other.responses.create(model="scripted", input="now", conversation=conversation.id)

    assert (caught.value.code, caught.value.param) == ("conversation_locked", "conversation")
    assert ended == "response.completed"
    assert after.status == "completed"
    assert len(texts(client, conversation.id)) == 4


def test_input_tokens_are_those_of_the_turn(client: OpenAI) -> None:
    counted = client.responses.input_tokens.count(model="scripted", input="Hello there", instructions="Be brief.")
    response = client.responses.create(model="scripted", input="Hello there", instructions="Be brief.")

    assert response.usage is not None and counted.input_tokens == response.usage.input_tokens
