"""The official `openai` client on conversations."""

from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response

from tests.live import Server, until

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

    with OpenAI(base_url=second.base_url, api_key=key, max_retries=0) as other:

        def say(text: str) -> Response | None:
            """The answer; None: somebody else is writing."""
            try:
                return other.responses.create(model="scripted", input=text, conversation=conversation.id)
            except openai.BadRequestError as exc:
                assert (exc.code, exc.param) == ("conversation_locked", "conversation")
                return None

        endless = "!tokens 100000 !rate 100 hello"
        with client.responses.create(
            model="scripted", input=endless, conversation=conversation.id, stream=True
        ) as stream:
            next(iter(stream))
            refused = say("me too")
        after = until(lambda: say("now"), "the conversation to be free")

    assert refused is None
    assert after is not None and texts(client, conversation.id) == ["now", after.output_text]


def test_input_tokens_are_those_of_the_turn(client: OpenAI) -> None:
    counted = client.responses.input_tokens.count(model="scripted", input="Hello there", instructions="Be brief.")
    response = client.responses.create(model="scripted", input="Hello there", instructions="Be brief.")

    assert response.usage is not None and counted.input_tokens == response.usage.input_tokens
