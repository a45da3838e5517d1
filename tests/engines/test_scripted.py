import contextlib
import json

import pytest

from responses_ws.engines.base import EngineError
from responses_ws.engines.scripted import Scripted
from responses_ws.protocol.sampling import (
    CallArguments,
    CallEnd,
    CallStart,
    Finished,
    ReasoningDelta,
    RefusalDelta,
    Started,
    TextDelta,
)
from responses_ws.protocol.usage import Usage
from responses_ws.rendering.chat import ChatPrompt
from responses_ws.testing import EngineContract, Plan, ScriptedEngine, chat_request, collect


def tool(name, properties=None, description=""):
    properties = properties or {}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


STRING = {"type": "string"}
WEATHER = tool("get_weather", {"city": STRING}, "Weather of a city")
EXEC = tool("exec_command", {"cmd": STRING}, "Runs a command in a PTY, returning output or a session ID")
STDIN = tool("write_stdin", {"session_id": {"type": "number"}, "chars": STRING}, "Writes to a running session")
IMAGE = tool("view_image", {"path": STRING}, "Attach a local image")
BASH = tool("bash", {"command": STRING, "description": STRING}, "Executes a bash command")
SHELL = tool("shell", {"command": {"type": "array", "items": STRING}}, "Runs a shell command")
CLINE = tool("run_commands", {"commands": {"type": "array", "items": STRING}}, "Run commands")
NESTED = tool("crm__lookup_customer", {"name": STRING}, "Find a customer")
CODEX = [EXEC, STDIN, IMAGE]


class TestContract(EngineContract):
    model = "scripted"

    @contextlib.asynccontextmanager
    async def engine(self):
        engine = Scripted("scripted", {})
        try:
            yield engine
        finally:
            await engine.aclose()

    def endless(self):
        return chat_request("!tokens 1000000 !rate 200")

    def limited(self):
        return chat_request("!tokens 50", max_output_tokens=7)

    def refused(self):
        return chat_request("!fail overloaded")

    def broken(self):
        return chat_request("!tokens 50 !break 3")

    def two_calls(self, tools):
        return chat_request("Weather in Oslo? !calls 2", tools=tools)


def text_of(deltas):
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


def calls_of(deltas):
    names = [delta.name for delta in deltas if isinstance(delta, CallStart)]
    arguments = [""] * len(names)
    for delta in deltas:
        if isinstance(delta, CallArguments):
            arguments[delta.index] += delta.text
    return list(zip(names, map(json.loads, arguments), strict=True))


async def ask(text, **fields):
    return await collect(Scripted("scripted", {}), chat_request(text, **fields))


@pytest.mark.parametrize(
    ("text", "tools", "expected"),
    [
        pytest.param("Weather in Oslo?", [IMAGE, WEATHER, EXEC], ("get_weather", {"city": "Oslo"}), id="by-words"),
        pytest.param("What is the weather in New York?", [WEATHER], ("get_weather", {"city": "New York"}), id="city"),
        pytest.param("Run `echo hi` in the shell", CODEX, ("exec_command", {"cmd": "echo hi"}), id="codex"),
        pytest.param(
            "Run `echo hi` in the shell", [SHELL], ("shell", {"command": ["bash", "-lc", "echo hi"]}), id="array"
        ),
        pytest.param("Please run `ls -l`", [CLINE], ("run_commands", {"commands": ["ls -l"]}), id="cline"),
        pytest.param("Run `ls`.", [IMAGE, BASH], ("bash", {"command": "ls", "description": "ls"}), id="opencode"),
        pytest.param("Find customer Ada", [WEATHER, NESTED], ("crm__lookup_customer", {"name": "Ada"}), id="flat-name"),
        pytest.param("Hello", CODEX, ("exec_command", {"cmd": "echo Hello"}), id="no-match-is-harmless"),
        pytest.param(
            "<task>\nWeather in Oslo?\n</task>\n<environment_details>now\n</environment_details>",
            [WEATHER],
            ("get_weather", {"city": "Oslo"}),
            id="wrapped",
        ),
        pytest.param('!call any {"a": [1, {}]} please', [WEATHER], ("any", {"a": [1, {}]}), id="directive"),
    ],
)
async def test_it_calls_the_tool_that_fits(text, tools, expected):
    deltas = await ask(text, tools=tools)

    assert calls_of(deltas) == [expected]
    assert deltas[-1].reason == "tool_calls"


async def test_it_calls_the_tool_it_is_forced_to():
    choice = {"type": "function", "function": {"name": "view_image"}}

    deltas = await ask("Weather in Oslo?", tools=[WEATHER, IMAGE], tool_choice=choice)

    assert calls_of(deltas) == [("view_image", {"path": "README.md"})]


@pytest.mark.parametrize(
    "fields", [{"tools": [WEATHER], "tool_choice": "none"}, {}], ids=["choice-none", "nothing-offered"]
)
async def test_without_tools_it_says_what_it_heard(fields):
    deltas = await ask("Weather in Oslo?", **fields)

    assert text_of(deltas) == 'You said: "Weather in Oslo?"'


OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "12 degrees"}
CALL = {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": "{}"}
NOTE = {"role": "user", "content": "<environment_context>\ncwd\n</environment_context>"}


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ([CALL, OUTPUT], 'The tool returned "12 degrees".'),
        ([CALL, CALL, OUTPUT, OUTPUT], 'The tools returned "12 degrees"; "12 degrees".'),
        ([CALL, OUTPUT, NOTE], 'The tool returned "12 degrees".'),
    ],
    ids=["one", "two", "then-a-note"],
)
async def test_outputs_are_quoted(after, expected):
    prompt = ChatPrompt().extended([{"role": "user", "content": "Weather in Oslo?"}, *after])

    deltas = await ask("", prompt=prompt, tools=[WEATHER])

    assert text_of(deltas) == expected


async def test_rounds_of_calls_end_after_as_many_outputs():
    prompt = ChatPrompt().extended([{"role": "user", "content": "Weather in Oslo? !rounds 2"}, CALL, OUTPUT])
    last = prompt.extended([CALL, OUTPUT])

    second = await ask("", prompt=prompt, tools=[WEATHER])
    answer = await ask("", prompt=last, tools=[WEATHER])

    assert calls_of(second) == [("get_weather", {"city": "Oslo"})]
    assert text_of(answer) == 'The tool returned "12 degrees".'


async def test_a_whole_answer_delta_by_delta():
    deltas = await ask("Weather in Oslo? !reason 2", tools=[WEATHER])

    size = 4 * deltas[0].prompt_tokens
    assert len(chat_request("Weather in Oslo? !reason 2").prompt.json()) < size
    assert isinstance(deltas[2], ReasoningDelta)
    call_id = deltas[3].call_id
    assert call_id.startswith("call_")
    assert deltas == [
        Started(deltas[0].prompt_tokens, 0),
        ReasoningDelta("This"),
        ReasoningDelta(" text"),
        CallStart(0, "get_weather", call_id),
        CallArguments(0, '{"city":"O'),
        CallArguments(0, 'slo"}'),
        CallEnd(0),
        Finished("tool_calls", Usage(input_tokens=deltas[0].prompt_tokens, output_tokens=4, reasoning_tokens=2)),
    ]


@pytest.mark.parametrize(
    ("text", "limit", "reason", "tokens"),
    [
        ("!tokens 40", None, "stop", 40),
        ("!tokens 40", 40, "stop", 40),
        ("!tokens 40", 39, "length", 39),
        ("!tokens 40 !cut", None, "length", 20),
        ("!tokens 40 !filter", None, "content_filter", 20),
        ("!tokens 40 !reason 8", 6, "length", 6),
        ("!tokens 20 !rate 5000 !ttft 1 !stall 0.01", None, "stop", 20),
    ],
)
async def test_lengths_and_ends(text, limit, reason, tokens):
    deltas = await ask(text, max_output_tokens=limit)

    assert deltas[-1].reason == reason
    assert deltas[-1].usage.output_tokens == tokens
    assert sum(getattr(delta, "tokens", 0) for delta in deltas) == tokens


async def test_a_call_that_the_limit_cuts_is_not_closed():
    deltas = await ask("Run `echo a b c d e f` in the shell", tools=CODEX, max_output_tokens=2)

    assert [type(delta) for delta in deltas[1:]] == [CallStart, CallArguments, CallArguments, Finished]
    assert deltas[-1].reason == "length"


async def test_refusals_are_refusal_deltas():
    deltas = await ask("!refuse")

    assert "".join(delta.text for delta in deltas if isinstance(delta, RefusalDelta)) == "I cannot help with that."


async def test_failing_raises_the_kind_that_was_asked_for():
    with pytest.raises(EngineError) as caught:
        await ask("!fail rate_limited")

    assert (caught.value.kind, caught.value.status) == ("rate_limited", 429)
    assert caught.value.headers == {"retry-after": "1"}


async def test_what_a_chain_sent_before_is_cached():
    engine = Scripted("scripted", {})
    first = ChatPrompt().extended([{"role": "user", "content": "One two three four."}])
    second = first.extended([{"role": "assistant", "content": "Five."}, {"role": "user", "content": "Six." * 50}])

    one = (await collect(engine, chat_request("", prompt=first, affinity="chain")))[-1].usage
    two = (await collect(engine, chat_request("", prompt=second, affinity="chain")))[-1].usage
    other = (await collect(engine, chat_request("", prompt=second, affinity="another")))[-1].usage

    assert one.cached_tokens == other.cached_tokens == 0
    assert two.cached_tokens == one.input_tokens + one.output_tokens


async def test_structured_output_fits_its_schema():
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "city": STRING}, "required": ["n", "city"]}
    response_format = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}

    deltas = await ask("Give me 7 for Oslo", response_format=response_format)

    assert json.loads(text_of(deltas)) == {"n": 7, "city": "Oslo"}


async def test_every_call_ends_as_a_line_in_the_token_log(tmp_path):
    path = tmp_path / "tokens.jsonl"
    engine = Scripted("scripted", {"TOKEN_LOG": str(path)})

    await collect(engine, chat_request("!tokens 5", request_id="a"))
    async with engine.chat(chat_request("!tokens 1000", request_id="b")) as answer:
        await anext(answer)
    with pytest.raises(EngineError):
        await collect(engine, chat_request("!tokens 9 !break 4", request_id="c"))
    await engine.aclose()

    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["request_id"], line["output_tokens"], line["outcome"]) for line in lines] == [
        ("a", 5, "completed"),
        ("b", 16, "aborted"),
        ("c", 4, "error"),
    ]
    assert all(line["prompt_tokens"] > 0 and line["model"] == "scripted" for line in lines)


async def test_a_script_of_ones_own_comes_first():
    engine = ScriptedEngine("Hello there.", Plan(filler_tokens=3, finish="length"))

    first = await collect(engine, chat_request("a"))
    second = await collect(engine, chat_request("b"))
    third = await collect(engine, chat_request("c"))

    assert [text_of(first), text_of(second), text_of(third)] == ["Hello there.", "This text is", 'You said: "c"']
    assert [request.prompt.json() for request in engine.requests][0] == b'{"role":"user","content":"a"}'


@pytest.mark.parametrize(
    ("options", "named"), [({"RAET": 1}, "RAET"), ({"RATE": "fast"}, "RATE")], ids=["unknown", "mistyped"]
)
def test_a_wrong_option_is_named(options, named):
    with pytest.raises(ValueError, match=named):
        Scripted("scripted", options)
