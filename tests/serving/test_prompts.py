"""Requests that name a prompt template."""

from typing import Any

import msgspec
import pytest
from asgiref.sync import sync_to_async
from openai.types.responses import Response

from responses_ws.connection.chain import Chains
from responses_ws.engines.registry import registry
from responses_ws.models import Project, PromptTemplate, PromptVersion
from responses_ws.protocol.errors import InvalidRequest, ModelNotFound, PromptNotFound
from responses_ws.serving.admission import Principal
from responses_ws.testing import ScriptedEngine

from .turns import asked, events_of, response_of

TEXT = "Answer in {{language}}.\n[user]\nMy name is {{name}}."
PNG = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}


def publish(project_id: int, text: str, **fields: Any) -> str:
    template, _ = PromptTemplate.objects.get_or_create(project=Project.objects.get(pk=project_id), name="greeting")
    PromptVersion.objects.create(template=template, text=text, **fields)
    PromptVersion.objects.filter(template=template).publish()
    return template.pk


async def prompt(principal: Principal, text: str, **fields: Any) -> str:
    return str(await sync_to_async(publish)(principal.project_id, text, **fields))


@pytest.fixture
def engine() -> ScriptedEngine:
    engine = ScriptedEngine()
    registry.install("scripted", engine)
    return engine


def told(engine: ScriptedEngine) -> list[list[dict[str, Any]]]:
    return [msgspec.json.decode(b"[" + request.prompt.json() + b"]") for request in engine.requests]


async def test_a_prompt_supplies_what_the_request_does_not_say(principal: Principal, engine: ScriptedEngine) -> None:
    tools = [{"type": "function", "name": "f"}]
    name = await prompt(principal, TEXT, model="scripted", defaults={"temperature": 0.5, "top_p": 0.5, "tools": tools})
    given = {"id": name, "variables": {"language": "French", "name": "Ada"}}

    response = await response_of(asked(principal, "!tokens 1 Hi", model=None, prompt=given, top_p=0.25))

    Response.model_validate(response)
    assert response["model"] == "scripted"
    assert (response["temperature"], response["top_p"]) == (0.5, 0.25)
    assert response["tools"][0]["name"] == "f"
    assert response["prompt"] == {**given, "version": "1"}
    assert [(item["role"], item["content"][0]["text"]) for item in response["instructions"]] == [
        ("developer", "Answer in French."),
        ("user", "My name is Ada."),
    ]
    assert told(engine) == [
        [
            {"role": "system", "content": "Answer in French."},
            {"role": "user", "content": "My name is Ada."},
            {"role": "user", "content": "!tokens 1 Hi"},
        ]
    ]


async def test_instructions_alone_are_told_as_a_string(principal: Principal, engine: ScriptedEngine) -> None:
    name = await prompt(principal, "Be {{mood}}.")
    given = {"id": name, "variables": {"mood": "kind"}}

    response = await response_of(asked(principal, "Hi", prompt=given))
    own = await response_of(asked(principal, "Hi", prompt=given, instructions="Be brief."))

    assert (response["instructions"], own["instructions"]) == ("Be kind.", "Be brief.")
    assert [messages[0]["content"] for messages in told(engine)] == ["Be kind.", "Be brief."]


async def test_a_prompt_is_context_enough(principal: Principal, engine: ScriptedEngine) -> None:
    name = await prompt(principal, "[user]\nWhat is {{this}}?")

    response = await response_of(asked(principal, None, prompt={"id": name, "variables": {"this": PNG}}))

    assert response["status"] == "completed"
    assert told(engine)[0][0]["content"] == [
        {"type": "text", "text": "What is "},
        {"type": "image_url", "image_url": {"url": PNG["image_url"]}},
        {"type": "text", "text": "?"},
    ]


async def test_a_prompt_is_not_inherited(principal: Principal, engine: ScriptedEngine) -> None:
    name = await prompt(principal, TEXT)
    given = {"id": name, "variables": {"language": "French", "name": "Ada"}}
    chains = Chains()
    first = await response_of(asked(principal, "one", prompt=given, chains=chains, store=False))

    await response_of(asked(principal, "two", previous_response_id=first["id"], chains=chains, store=False))

    assert [len(messages) for messages in told(engine)] == [3, 3]
    assert all("French" not in str(message) for message in told(engine)[1])


async def test_the_default_version_serves_who_names_none(principal: Principal, engine: ScriptedEngine) -> None:
    name = await prompt(principal, "one")
    await prompt(principal, "two")

    answers = [
        await response_of(asked(principal, "Hi", prompt={"id": name, **more})) for more in ({}, {"version": "2"})
    ]
    await sync_to_async(lambda: PromptTemplate.objects.update(default_version=PromptVersion.objects.get(number=2)))()
    answers.append(await response_of(asked(principal, "Hi", prompt={"id": name})))

    assert [answer["instructions"] for answer in answers] == ["one", "two", "two"]
    assert [answer["prompt"]["version"] for answer in answers] == ["1", "2", "2"]


async def test_what_is_not_served_is_not_found(principal: Principal, other_principal: Principal) -> None:
    name = await prompt(principal, "mine")
    template = await PromptTemplate.objects.aget()
    await sync_to_async(PromptVersion.objects.create)(template=template, text="a draft")

    messages = set()
    for who, given in [
        (other_principal, {"id": name}),
        (principal, {"id": "pmpt_x"}),
        (principal, {"id": "no such"}),
    ]:
        with pytest.raises(PromptNotFound) as caught:
            await events_of(asked(who, "Hi", prompt=given))
        messages.add(caught.value.message.replace(given["id"], "ID"))
    for version in ("2", "3", "01", "-1", "x", "9" * 5000, ""):
        with pytest.raises(PromptNotFound):
            await events_of(asked(principal, "Hi", prompt={"id": name, "version": version}))

    assert messages == {"Prompt with id 'ID' not found."}


@pytest.mark.parametrize(
    ("variables", "param"),
    [({}, "prompt.variables"), ({"language": "a", "name": "b", "more": "c"}, "prompt.variables")],
    ids=["missing", "unknown"],
)
async def test_variables_must_fit(principal: Principal, variables: dict[str, str], param: str) -> None:
    name = await prompt(principal, TEXT)

    with pytest.raises(InvalidRequest) as caught:
        await events_of(asked(principal, "Hi", prompt={"id": name, "variables": variables}))

    assert caught.value.param == param


async def test_a_prompt_without_a_model_needs_one_in_the_request(principal: Principal) -> None:
    name = await prompt(principal, "hi")

    with pytest.raises(InvalidRequest) as caught:
        await events_of(asked(principal, "Hi", model=None, prompt={"id": name}))

    assert caught.value.param == "model"


async def test_a_prompt_s_model_is_held_to_the_rights_of_the_key(principal: Principal) -> None:
    name = await prompt(principal, "hi", model="scripted")
    confined = msgspec.structs.replace(principal, allowed_models=frozenset({"other"}))

    with pytest.raises(ModelNotFound):
        await events_of(asked(confined, "Hi", model=None, prompt={"id": name}))
