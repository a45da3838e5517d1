"""The frames of a coding agent, field by field as Codex sends them over a socket."""

from typing import Any

import pytest

from .grammar import check_turn
from .raw import Door, calls_in, text_of

pytestmark = pytest.mark.conformance

HEADERS = {
    "User-Agent": "codex_exec/0.171.0",
    "originator": "codex_exec",
    "OpenAI-Beta": "responses_websockets=2026-02-06",
    "x-codex-turn-metadata": '{"turn_id":"1"}',
    "x-client-request-id": "01a228b6-0000-7000-8000-000000000000",
    "session-id": "01a228b6-0000-7000-8000-000000000000",
}
SHELL = {
    "type": "function",
    "name": "exec_command",
    "description": "Runs a command in a shell.",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {"cmd": {"type": "string"}, "yield_time_ms": {"type": "number"}},
        "required": ["cmd"],
        "additionalProperties": False,
    },
}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'},
}
AGENTS = {
    "type": "namespace",
    "name": "multi_agent_v1",
    "description": "Work with other agents.",
    "tools": [
        {
            "type": "function",
            "name": "spawn_agent",
            "description": "Starts another agent.",
            "strict": False,
            "parameters": {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]},
        }
    ],
}
SEARCH = {"type": "web_search", "external_web_access": False}
TOOLS = [SHELL, PATCH, AGENTS, SEARCH]

COMMON: dict[str, Any] = {
    "tools": TOOLS,
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "01a228b6-0000-7000-8000-000000000000",
    "client_metadata": {"x-codex-installation-id": "01a228b6"},
}


def message(role: str, text: str, number: int) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": role, "content": content, "id": f"msg_01a228b6-{number}"}


def opening(task: str) -> list[dict[str, Any]]:
    """What follows the warm-up: two notes and what the user typed."""
    return [
        message("developer", "Permissions: all.", 2),
        message("user", "<environment_context><cwd>/tmp</cwd></environment_context>", 3),
        message("user", task, 4),
    ]


DEVELOPER = [message("developer", "You are a coding agent.", 1)]


@pytest.mark.parametrize("include", [[], None, ["reasoning.encrypted_content"]], ids=["empty", "null", "encrypted"])
async def test_a_session_sends_its_past_once(door: Door, model: str, include: list[str] | None) -> None:
    common = {**COMMON, "include": include}

    async with door.socket(headers=HEADERS, compression="deflate") as socket:
        warm = check_turn(await socket.turn(model, **common, input=DEVELOPER, generate=False))
        first = check_turn(
            await socket.turn(
                model, **common, previous_response_id=warm["id"], input=opening("Run `echo hi` in the shell.")
            )
        )
        (call,) = calls_in(first)
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "hi\n", "id": "fco_01a228b6"}
        second = check_turn(await socket.turn(model, **common, previous_response_id=first["id"], input=[output]))

    assert warm["output"] == []
    assert warm["usage"]["output_tokens"] == 0
    assert (call["name"], call["arguments"]) == ("exec_command", '{"cmd":"echo hi"}')
    assert second["previous_response_id"] == first["id"]
    assert text_of(second) == 'The tool returned "hi".'
    assert warm["usage"]["input_tokens"] < first["usage"]["input_tokens"] < second["usage"]["input_tokens"]
    assert [event["input"] for event in socket.sent[2:]] == [[output]]


async def test_a_custom_tool_is_called_with_bare_input(door: Door, model: str) -> None:
    task = '!call apply_patch {"input": "*** Begin Patch"}'

    async with door.socket(headers=HEADERS) as socket:
        first = check_turn(await socket.turn(model, **COMMON, input=DEVELOPER + opening(task)))
        (call,) = calls_in(first)
        content = [{"type": "input_text", "text": "Done."}]
        output = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": content}
        second = check_turn(await socket.turn(model, **COMMON, previous_response_id=first["id"], input=[output]))

    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "apply_patch", "*** Begin Patch")
    assert "namespace" not in call
    assert text_of(second) == 'The tool returned "Done.".'


async def test_a_tool_in_a_namespace_is_called_by_its_two_names(door: Door, model: str) -> None:
    task = '!call multi_agent_v1__spawn_agent {"message": "help"}'

    async with door.socket(headers=HEADERS) as socket:
        first = check_turn(await socket.turn(model, **COMMON, input=DEVELOPER + opening(task)))
        (call,) = calls_in(first)
        # It replays the item as it got it.
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "started"}
        history = [*DEVELOPER, *opening(task), call, output]
        replayed = check_turn(await socket.turn(model, **COMMON, input=history))

    assert (call["namespace"], call["name"]) == ("multi_agent_v1", "spawn_agent")
    assert text_of(replayed) == 'The tool returned "started".'


async def test_items_that_are_done_are_what_it_replays(door: Door, model: str) -> None:
    """It goes on incrementally only as long as ``output_item.done`` equals what it would send."""
    async with door.socket(headers=HEADERS) as socket:
        task = opening("Think. !reason 8 Run `ls` in the shell.")
        events = await socket.turn(model, **COMMON, input=DEVELOPER + task)
        first = check_turn(events)
        done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        # On a new socket: everything, with nulls where it has nothing.
        replay = [
            {**item, "content": None, "encrypted_content": None} if item["type"] == "reasoning" else item
            for item in done
        ]
        outputs = [
            {"type": "function_call_output", "call_id": call["call_id"], "output": "a.txt"} for call in calls_in(first)
        ]

    async with door.socket(headers=HEADERS) as socket:
        second = check_turn(await socket.turn(model, **COMMON, input=[*DEVELOPER, *task, *replay, *outputs]))

    assert [item["type"] for item in done] == ["reasoning", "function_call"]
    assert done == first["output"]
    assert text_of(second) == 'The tool returned "a.txt".'


async def test_the_lite_dialect_brings_its_tools_as_an_item(door: Door, model: str) -> None:
    """Newer models: no ``tools`` and an empty warm-up; the tools are an input item that stays in the chain."""
    lite = {name: value for name, value in COMMON.items() if name != "tools"}
    tools = {"type": "additional_tools", "role": "developer", "tools": [SHELL, AGENTS]}

    async with door.socket(headers=HEADERS) as socket:
        warm = check_turn(await socket.turn(model, **lite, input=[], generate=False))
        task = [tools, *opening("Run `ls` in the shell.")]
        first = check_turn(await socket.turn(model, **lite, previous_response_id=warm["id"], input=task))
        (call,) = calls_in(first)
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "a.txt"}
        second = check_turn(await socket.turn(model, **lite, previous_response_id=first["id"], input=[output]))
        again = opening("Run `pwd` in the shell.")
        third = check_turn(await socket.turn(model, **lite, previous_response_id=second["id"], input=again))

    assert [one["name"] for one in (call, *calls_in(third))] == ["exec_command", "exec_command"]
    assert text_of(second) == 'The tool returned "a.txt".'


async def test_its_notes_are_ignored(door: Door) -> None:
    async with door.socket(headers=HEADERS) as socket:
        first = check_turn(await socket.turn(**COMMON, input="hello"))
        await socket.send({"type": "response.processed", "response_id": first["id"]})
        second = check_turn(await socket.turn(**COMMON, input="hello again"))

    # Nothing came between the two turns.
    assert [event["sequence_number"] for event in socket.received].count(0) == 2
    assert second["id"] != first["id"]


async def test_null_for_every_field_is_absence(door: Door, model: str) -> None:
    nulls = dict.fromkeys(
        ("instructions", "previous_response_id", "store", "include", "tools", "tool_choice", "parallel_tool_calls")
        + ("max_output_tokens", "max_tool_calls", "reasoning", "text", "temperature", "top_p", "top_logprobs", "user")
        + ("truncation", "metadata", "service_tier", "safety_identifier", "prompt", "prompt_cache_key", "background")
        + ("stream", "generate", "stream_id", "conversation", "client_metadata", "stream_options", "context_management")
    )

    async with door.socket(headers=HEADERS) as socket:
        final = check_turn(await socket.turn(model, **nulls, input="hello"))

    assert final["store"] is True
    assert text_of(final) == 'You said: "hello"'
