"""The same promises through a chat engine, to a server that does not keep them by itself."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from responses_ws.engines.openai_chat import OpenAIChat
from responses_ws.engines.registry import registry
from responses_ws.serving.admission import Principal
from tests.fakes.chat_server import MODEL, ChatServer

from .turns import asked, response_of

A = {"type": "function", "name": "a", "parameters": {"type": "object", "properties": {}}}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
PNG = "data:image/png;base64,iVBORw0KGgo="

Connect = Callable[..., ChatServer]


@pytest.fixture
async def connect(settings: Any) -> AsyncIterator[Connect]:
    """Puts a chat engine with these options, and the fake server behind it, behind the model ``scripted``."""
    models = {"scripted": {"ENGINE": "scripted", "UPSTREAM": MODEL}}
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "MODELS": models}
    engines = []
    async with asyncio.timeout(20), ChatServer() as server:

        def connected(**options: Any) -> ChatServer:
            engines.append(OpenAIChat("scripted", {"BASE_URL": server.url, **options}))
            registry.install("scripted", engines[-1])
            return server

        yield connected
        for engine in engines:
            await engine.aclose()


async def test_the_server_stops_where_it_may_not_go_on(principal: Principal, connect: Connect) -> None:
    server = connect(EXTRA_BODY={"max_tokens": 1_000_000})

    response = await response_of(asked(principal, "!tokens 1000000 !rate 500 Go on", max_output_tokens=10, store=False))

    assert await server.departures.get() == MODEL
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["usage"]["output_tokens"] == 10


async def test_the_server_stops_at_the_second_call(principal: Principal, connect: Connect) -> None:
    server = connect()
    many = '{"words": "' + "word " * 2000 + '"}'

    response = await response_of(
        asked(
            principal,
            "!rate 500 !call a {} !call a " + many,
            tools=[A],
            parallel_tool_calls=False,
            store=False,
        )
    )

    assert await server.departures.get() == MODEL
    assert [(item["name"], item["arguments"]) for item in response["output"]] == [("a", "{}")]
    assert response["status"] == "completed"


async def test_a_server_that_can_do_nothing_is_told_in_words(principal: Principal, connect: Connect) -> None:
    server = connect(SUPPORTS=["tools"])
    text = {"format": {"type": "json_schema", "name": "person", "schema": SCHEMA}, "verbosity": "low"}
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "a"}]}

    await response_of(
        asked(
            principal,
            [{"role": "user", "content": [{"type": "input_image", "image_url": PNG}]}],
            text=text,
            tools=[A, {"type": "function", "name": "b"}],
            tool_choice=choice,
            include=["message.output_text.logprobs"],
            store=False,
        )
    )

    (body,) = server.requests
    assert not body.keys() & {"response_format", "verbosity", "tool_choice", "logprobs", "top_logprobs"}
    assert [tool["function"]["name"] for tool in body["tools"]] == ["a"]
    assert "fits the JSON schema below" in body["messages"][0]["content"]
    assert body["messages"][1]["content"] == "[An image was left out: this model takes none.]"


async def test_a_server_that_can_do_everything_is_told_everything(principal: Principal, connect: Connect) -> None:
    every = ["tools", "tool_choice", "strict_tools", "json_object", "json_schema", "verbosity", "logprobs", "images"]
    server = connect(SUPPORTS=[*every, "files"], AFFINITY_FIELD="prompt_cache_key")
    text = {"format": {"type": "json_schema", "name": "person", "schema": SCHEMA, "strict": True}, "verbosity": "low"}

    response = await response_of(
        asked(
            principal,
            [{"role": "user", "content": [{"type": "input_image", "image_url": PNG, "detail": "low"}]}],
            text=text,
            tools=[A],
            tool_choice="none",
            include=["message.output_text.logprobs"],
            top_logprobs=1,
            prompt_cache_key="thread",
            store=False,
        )
    )

    (body,) = server.requests
    assert body["response_format"]["json_schema"] == {"name": "person", "schema": SCHEMA, "strict": True}
    assert (body["verbosity"], body["tool_choice"], body["logprobs"], body["top_logprobs"]) == ("low", "none", True, 1)
    assert body["prompt_cache_key"] == f"{principal.project_id}:thread"
    assert body["messages"][0]["content"] == [{"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}]
    (part,) = response["output"][0]["content"]
    assert "".join(one["token"] for one in part["logprobs"]) == part["text"]


async def test_a_chain_has_one_name_and_a_fork_another(principal: Principal, connect: Connect) -> None:
    server = connect(AFFINITY_FIELD="prompt_cache_key")
    first = await response_of(asked(principal, "one"))
    await response_of(asked(principal, "two", previous_response_id=first["id"]))
    await response_of(asked(principal, "other", previous_response_id=first["id"]))

    names = [request["prompt_cache_key"] for request in server.requests]
    assert names[0] == names[1] != names[2]
    # Nothing that tells where in our memory it is.
    assert all(re.fullmatch(rf"{principal.project_id}:[0-9a-f]{{24}}", name) for name in names)
