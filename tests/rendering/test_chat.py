import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from responses_ws.protocol.compaction import INTRODUCTION
from responses_ws.rendering.chat import ChatPrompt, messages_from

PNG = "data:image/png;base64,iVBORw0KGgo="


def user(content: Any = "hi") -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": content}


def assistant(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def reasoning(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def call(call_id: str, name: str = "f", arguments: str = "{}", **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, **fields}


def output(call_id: str, said: Any = "ok") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": said}


def tool_call(call_id: str, name: str = "f", arguments: str = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(call_id: str, content: str = "ok") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


TEXT_PART = {"type": "input_text", "text": "what?"}
RENDERED: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "nothing": ([], []),
    "easy message": ([{"role": "user", "content": "hi"}], [{"role": "user", "content": "hi"}]),
    "type null": ([{"type": None, "role": "user", "content": "hi"}], [{"role": "user", "content": "hi"}]),
    "roles": (
        [{"role": role, "content": "x"} for role in ("system", "developer", "user", "assistant")],
        [{"role": role, "content": "x"} for role in ("system", "system", "user", "assistant")],
    ),
    "text parts are one text": ([user([TEXT_PART, TEXT_PART])], [{"role": "user", "content": "what?what?"}]),
    "a summary is content, whatever it says": (
        [assistant("x"), {"type": "compaction_summary", "text": "In short."}, assistant("y")],
        [
            {"role": "assistant", "content": "x"},
            {"role": "user", "content": f"{INTRODUCTION}\n\nIn short."},
            {"role": "assistant", "content": "y"},
        ],
    ),
    "no parts": ([user([])], [{"role": "user", "content": ""}]),
    "image": (
        [user([TEXT_PART, {"type": "input_image", "image_url": PNG, "detail": "low"}])],
        [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "what?"},
                    {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}},
                ],
            }
        ],
    ),
    "file": (
        [user([{"type": "input_file", "file_data": "JVBERi0=", "filename": "a.pdf"}])],
        [{"role": "user", "content": [{"type": "file", "file": {"file_data": "JVBERi0=", "filename": "a.pdf"}}]}],
    ),
    "parts that cannot be said": ([user([TEXT_PART, {"type": "smell"}])], [{"role": "user", "content": "what?"}]),
    "refusal": (
        [{"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No"}]}],
        [{"role": "assistant", "content": "No"}],
    ),
    "reasoning and text": (
        [reasoning("Hm"), assistant("Yes")],
        [{"role": "assistant", "content": "Yes", "reasoning_content": "Hm"}],
    ),
    "reasoning alone": ([reasoning("Hm")], [{"role": "assistant", "content": None, "reasoning_content": "Hm"}]),
    "reasoning without content": (
        [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm"}], "content": None}, assistant("A")],
        [{"role": "assistant", "content": "A"}],
    ),
    "reasoning, text and parallel calls are one message": (
        [reasoning("Hm"), assistant("So"), call("a"), call("b", "g", '{"x":1}'), output("b"), output("a")],
        [
            {
                "role": "assistant",
                "content": "So",
                "reasoning_content": "Hm",
                "tool_calls": [tool_call("a"), tool_call("b", "g", '{"x":1}')],
            },
            tool("b"),
            tool("a"),
        ],
    ),
    "outputs stand right behind their calls, whatever came between": (
        [call("a"), assistant("So"), reasoning("Hm"), call("b"), output("a"), output("b")],
        [
            {
                "role": "assistant",
                "content": "So",
                "tool_calls": [tool_call("a"), tool_call("b")],
                "reasoning_content": "Hm",
            },
            tool("a"),
            tool("b"),
        ],
    ),
    "a call, its output, the answer": (
        [user(), call("a"), output("a"), assistant("So"), user("and?")],
        [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": None, "tool_calls": [tool_call("a")]},
            tool("a"),
            {"role": "assistant", "content": "So"},
            {"role": "user", "content": "and?"},
        ],
    ),
    "two rounds of calls": (
        [call("a"), output("a"), call("b"), output("b")],
        [
            {"role": "assistant", "content": None, "tool_calls": [tool_call("a")]},
            tool("a"),
            {"role": "assistant", "content": None, "tool_calls": [tool_call("b")]},
            tool("b"),
        ],
    ),
    "empty arguments": (
        [call("a", arguments="")],
        [{"role": "assistant", "content": None, "tool_calls": [tool_call("a")]}],
    ),
    "a call in a namespace": (
        [call("a", namespace="crm")],
        [{"role": "assistant", "content": None, "tool_calls": [tool_call("a", "crm__f")]}],
    ),
    "a custom call": (
        [
            {"type": "custom_tool_call", "call_id": "a", "name": "p", "input": 'x "y"\n'},
            {"type": "custom_tool_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "ok"}]},
        ],
        [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [tool_call("a", "p", '{"input":"x \\"y\\"\\n"}')],
            },
            tool("a"),
        ],
    ),
    "an output in parts": (
        [call("a"), output("a", [TEXT_PART, {"type": "input_image", "image_url": PNG}, TEXT_PART])],
        [
            {"role": "assistant", "content": None, "tool_calls": [tool_call("a")]},
            tool("a", "what?what?"),
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Output of the tool call a:"},
                    {"type": "image_url", "image_url": {"url": PNG}},
                ],
            },
        ],
    ),
    "images of several outputs come behind them all": (
        [
            call("a"),
            call("b"),
            output("a", [{"type": "input_image", "image_url": PNG}]),
            output("b", [{"type": "input_file", "file_data": "JVBERi0="}]),
            user(),
        ],
        [
            {"role": "assistant", "content": None, "tool_calls": [tool_call("a"), tool_call("b")]},
            tool("a", "The output is in the next message."),
            tool("b", "The output is in the next message."),
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Output of the tool call a:"},
                    {"type": "image_url", "image_url": {"url": PNG}},
                    {"type": "text", "text": "Output of the tool call b:"},
                    {"type": "file", "file": {"file_data": "JVBERi0="}},
                ],
            },
            {"role": "user", "content": "hi"},
        ],
    ),
    "a detail that chat completions do not have": (
        [user([{"type": "input_image", "image_url": PNG, "detail": "original"}])],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PNG}}]}],
    ),
    "a file as a data URL": (
        [user([{"type": "input_file", "file_url": "data:text/plain;base64,SGk="}])],
        [{"role": "user", "content": [{"type": "file", "file": {"file_data": "data:text/plain;base64,SGk="}}]}],
    ),
    "a call that was cut off is left out": (
        [user(), assistant("So"), call("a", arguments='{"x', status="incomplete"), user("go on")],
        [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "So"},
            {"role": "user", "content": "go on"},
        ],
    ),
    "and so is its output": (
        [call("a", arguments='{"x', status="incomplete"), output("a", "aborted"), user()],
        [{"role": "user", "content": "hi"}],
    ),
    "items that chat cannot say": (
        [user(), {"type": "compaction", "encrypted_content": "x"}, {"type": "image_generation_call"}, assistant("A")],
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "A"}],
    ),
}


@pytest.mark.parametrize(("items", "messages"), RENDERED.values(), ids=RENDERED)
def test_items_become_these_messages(items: list[dict[str, Any]], messages: list[dict[str, Any]]) -> None:
    assert messages_from(items) == messages


def decoded(prompt: ChatPrompt) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = json.loads(b"[" + prompt.json() + b"]")
    return messages


@pytest.mark.parametrize("items", [items for items, _ in RENDERED.values()], ids=RENDERED)
def test_the_json_is_the_messages(items: list[dict[str, Any]]) -> None:
    prompt = ChatPrompt().extended(items)

    compact = [json.dumps(message, ensure_ascii=False, separators=(",", ":")) for message in messages_from(items)]
    assert prompt.json() == ",".join(compact).encode()
    assert prompt.byte_length == sum(len(message.encode()) for message in compact)


def test_the_json_of_strange_characters_is_the_same_text() -> None:
    prompt = ChatPrompt().extended([user('é"\n\u2028😀\x00')])

    assert decoded(prompt) == [{"role": "user", "content": 'é"\n\u2028😀\x00'}]


def test_instructions_stand_first_and_belong_to_one_request() -> None:
    chain = ChatPrompt().extended([user("one")])

    asked = chain.with_instructions("Be brief.")
    continued = asked.extended([assistant("A"), user("two")])

    assert [message["content"] for message in decoded(asked)] == ["Be brief.", "one"]
    assert decoded(asked)[0]["role"] == "system"
    assert [message["content"] for message in decoded(continued)] == ["one", "A", "two"]
    assert decoded(chain) == [{"role": "user", "content": "one"}]
    assert asked.log.identity == chain.log.identity == continued.log.identity


@pytest.mark.parametrize("instructions", [None, ""])
def test_no_instructions_are_no_message(instructions: str | None) -> None:
    asked = ChatPrompt().extended([user()]).with_instructions(instructions)

    assert decoded(asked) == [{"role": "user", "content": "hi"}]


def test_the_length_does_not_count_instructions() -> None:
    chain = ChatPrompt().extended([user("one")])

    assert chain.with_instructions("Be brief.").byte_length == chain.byte_length == len(chain.json())


def test_messages_can_be_read_from_the_end() -> None:
    prompt = ChatPrompt().extended([user("one"), assistant("A")]).with_instructions("Be brief.")

    newest_first = [message["content"] for message in prompt.newest_first()]

    assert newest_first == ["A", "one", "Be brief."]


def test_a_longer_prompt_encodes_nothing_old_again() -> None:
    chain = ChatPrompt().extended([user("one"), assistant("A")])

    longer = chain.extended([user("two")])

    assert longer.log.identity == chain.log.identity
    assert all(old is new for old, new in zip(chain.log, longer.log, strict=False))


def test_forks_go_their_own_ways() -> None:
    parent = ChatPrompt().extended([user("one")])

    first, second = parent.extended([user("two")]), parent.extended([user("three")])

    assert [message["content"] for message in decoded(first)] == ["one", "two"]
    assert [message["content"] for message in decoded(second)] == ["one", "three"]
    assert decoded(parent) == [{"role": "user", "content": "one"}]


@st.composite
def turns(draw: st.DrawFn) -> list[list[dict[str, Any]]]:
    """Runs as turns append them: new input, output, outputs of its calls, output, new input…"""
    texts = st.text(max_size=4)
    runs: list[list[dict[str, Any]]] = []
    open_calls: list[str] = []
    for number in range(draw(st.integers(0, 4))):
        given_items = [output(call_id, draw(texts)) for call_id in open_calls]
        given_items += [user(draw(texts)) for _ in range(draw(st.integers(0 if open_calls else 1, 2)))]
        runs.append(given_items)
        kinds = draw(st.lists(st.sampled_from(["reasoning", "text", "call", "cut"]), max_size=4))
        said: list[dict[str, Any]] = []
        open_calls = []
        for position, kind in enumerate(kinds):
            call_id = f"call_{number}_{position}"
            if kind == "call":
                open_calls.append(call_id)
                said.append(call(call_id))
            elif kind == "cut":
                said.append(call(call_id, arguments="{", status="incomplete"))
            else:
                said.append((reasoning if kind == "reasoning" else assistant)(draw(texts)))
        runs.append(said)
    return runs


@given(turns())
def test_a_prompt_that_grew_is_the_prompt_made_at_once(runs: list[list[dict[str, Any]]]) -> None:
    grown = ChatPrompt()
    for run in runs:
        grown = grown.extended(run)

    at_once = ChatPrompt().extended([item for run in runs for item in run])

    assert grown.json() == at_once.json()
    assert grown.byte_length == at_once.byte_length
    answered: list[str] = []
    for message in decoded(grown):
        if message["role"] == "tool":
            assert message["tool_call_id"] in answered, "an output that does not follow its call"
        elif message["role"] == "assistant":
            answered = [made["id"] for made in message.get("tool_calls", ())]


IMAGE = {"type": "input_image", "image_url": PNG}
FILE = {"type": "input_file", "file_data": "JVBERi0=", "filename": "a.pdf"}
LEFT_OUT = {
    "image": ([user([TEXT_PART, IMAGE])], "what?[An image was left out: this model takes none.]"),
    "file": ([user([FILE])], "[The file 'a.pdf' was left out: this model takes none.]"),
    "file without a name": (
        [user([{"type": "input_file", "file_data": "x"}])],
        "[The file was left out: this model takes none.]",
    ),
    "in an output": ([call("a"), output("a", [IMAGE])], "[An image was left out: this model takes none.]"),
}


@pytest.mark.parametrize(("items", "said"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_a_note_stands_where_something_was_that_the_engine_does_not_take(
    items: list[dict[str, Any]], said: str
) -> None:
    assert messages_from(items, takes=frozenset())[-1]["content"] == said


def test_an_image_weighs_the_same_whatever_its_size() -> None:
    large = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 1_000_000}
    plain = ChatPrompt().extended([user([TEXT_PART])])

    prompt = ChatPrompt().extended([user([TEXT_PART, large])]).extended([user([TEXT_PART, large])])

    assert prompt.byte_length > 2_000_000
    assert 2000 <= prompt.estimated_tokens <= 2000 + 2 * plain.estimated_tokens + 100
    assert prompt.with_instructions("x").estimated_tokens == prompt.estimated_tokens
