"""Harmony appends what is new, and forgets analysis once the user has been answered."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("openai_harmony", reason="the extra `harmony` is not installed")
pytest.importorskip("bpe_openai", reason="the extra `harmony` is not installed")

from responses_ws.protocol.errors import InvalidRequest
from responses_ws.protocol.sampling import Constraint
from responses_ws.rendering.base import Ask
from responses_ws.rendering.harmony.renderer import HarmonyRenderer
from responses_ws.testing.rendering import TOOLS, assistant, called, prompt_of, tool, user
from tests.rendering.parsing.vocabulary import told

from .talk import ASK, Talk

CALL = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>'
ANALYSIS = "<|channel|>analysis<|message|>Weather.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>Rain.<|return|>"
CALLED = assistant(None, calls=[called("a")], reasoning="Weather.")
ANSWERED = assistant("Rain.", reasoning="Rain, then.")


@pytest.mark.parametrize("instructions", [None, "Be brief."])
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_a_first_prompt_is_what_openai_harmony_writes(
    renderer: HarmonyRenderer, instructions: str | None, tools: bytes | None
) -> None:
    talk = Talk(renderer, ask=Ask(tools=tools), instructions=instructions)

    assert talk.prompted({"role": "system", "content": "Now."}, user("Weather?")) == talk.full()
    assert talk.paths == ["full"]


def test_a_whole_history_is_what_openai_harmony_writes(renderer: HarmonyRenderer) -> None:
    talk = Talk(renderer)
    history = [user("Weather?"), CALLED, tool("a", "rain"), ANSWERED, user("Sure?"), CALLED, tool("a", "still rain")]

    assert talk.prompted(*history) == talk.full()


def test_the_loop_of_an_agent_is_appended(renderer: HarmonyRenderer) -> None:
    talk = Talk(renderer)
    sampled = talk.prompted(user("Weather?"))
    for number in range(4):
        talk.say(ANALYSIS + CALL, CALLED)
        so_far = list(talk.log or ())
        sampled = talk.prompted(tool("a", f"rain {number}"))

        assert sampled[: len(so_far)] == so_far
        assert len(sampled) - len(so_far) < 40

    assert talk.paths == ["full", *["append"] * 4]
    # The model writes the recipient behind the channel, openai-harmony before it.
    assert "assistant<|channel|>commentary to=functions.get_weather" in talk.encoding.decode(sampled)


def test_analysis_is_forgotten_once_the_user_is_answered(renderer: HarmonyRenderer) -> None:
    talk = Talk(renderer)
    first = talk.prompted(user("Weather?"))
    talk.say(ANALYSIS + CALL, CALLED)
    talk.prompted(tool("a", "rain"))
    talk.say(ANALYSIS + FINAL, ANSWERED)

    ids = talk.prompted(user("Sure?"))

    assert talk.paths == ["full", "append", "rewind"]
    assert talk.encoding.decode(ids).removeprefix(talk.encoding.decode(first)) == (
        f"{CALL}<|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>rain<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Rain.<|end|><|start|>user<|message|>Sure?<|end|><|start|>assistant"
    )
    # And it is not looked for again.
    talk.say(CALL, CALLED)
    before = list(talk.log or ())
    assert talk.prompted(tool("a", "rain"))[: len(before)] == before
    assert talk.paths[-1] == "append"


def test_a_call_in_analysis_is_not_forgotten(renderer: HarmonyRenderer) -> None:
    talk = Talk(renderer)
    talk.tell(user("Weather?"))
    talk.say(ANALYSIS + CALL.replace("commentary", "analysis"), CALLED)
    talk.tell(tool("a", "rain"))
    talk.say(FINAL, ANSWERED)

    said = talk.encoding.decode(talk.prompted(user("Sure?")))

    assert "to=functions.get_weather" in said
    assert "Weather." not in said


def test_ids_stay_as_they_were_sampled(renderer: HarmonyRenderer) -> None:
    talk = Talk(renderer)
    talk.prompted(user("Weather?"))
    letters = [one for letter in "Rain." for one in talk.ids(letter)]
    assert letters != talk.ids("Rain.")
    ids = [*talk.ids("<|channel|>final<|message|>"), *letters, *talk.ids("<|return|>")]
    assert talk.log is not None
    talk.log = talk.log.extended(ids, "sampled", messages=2)
    talk.messages.append(assistant("Rain."))

    prompt = talk.prompted(user("Sure?"))

    assert any(prompt[at : at + len(letters)] == letters for at in range(len(prompt)))


@pytest.mark.parametrize(
    ("sampled", "kept"),
    [
        (FINAL, "<|channel|>final<|message|>Rain.<|end|>"),
        ("<|channel|>final<|message|>Ra", "<|channel|>final<|message|>Ra<|end|>"),
        ("<|channel|>analysis<|message|>We", "<|channel|>analysis<|message|>We<|end|>"),
        (ANALYSIS + "<|channel|>fi", "<|channel|>analysis<|message|>Weather.<|end|>"),
        ("<|channel|>fi", None),
        ("", None),
        (CALL.replace("<|call|>", "<|return|>"), CALL),
        (CALL.replace("<|call|>", "<|return|><|call|>"), CALL),
    ],
)
def test_an_answer_is_ended_as_history_has_it(renderer: HarmonyRenderer, sampled: str, kept: str | None) -> None:
    talk = Talk(renderer, ask=Ask(), instructions=None)
    opened = talk.encoding.decode(talk.prompted(user("Weather?")))
    talk.say(sampled, assistant("", reasoning="We" if "analysis" in sampled else ""))

    ids = talk.prompted(user("Sure?"))

    said = f"{opened}{kept}" if kept else opened.removesuffix("<|start|>assistant")
    assert talk.encoding.decode(ids) == f"{said}<|start|>user<|message|>Sure?<|end|><|start|>assistant"


def test_an_answer_that_was_changed_is_rendered_from_its_items(renderer: HarmonyRenderer) -> None:
    talk = Talk(renderer)
    talk.prompted(user("Weather?"))
    assert talk.log is not None
    # The log ends before the answer, as after a call that was dropped.
    talk.log = talk.log.until(len(talk.log.spans) - 1)

    assert talk.prompted(CALLED, tool("a", "rain"), ANSWERED, user("Sure?")) == talk.full()
    assert talk.paths == ["full", "append"]


def test_what_a_prompt_depends_on_makes_it_anew(renderer: HarmonyRenderer) -> None:
    talk = Talk(renderer)
    talk.prompted(user("Weather?"))
    talk.instructions = "Be long."
    talk.prompted(user("Weather?"))
    talk.ask = Ask(tools=TOOLS, reasoning_effort="high")

    assert "Reasoning: high" in talk.encoding.decode(talk.prompted())
    assert talk.paths == ["full", "full", "full"]


CONTROLS = ["<|start|>", "<|end|>", "<|call|>", "<|return|>", "<|message|>", "<|channel|>", "<|constrain|>"]
PIECES = [*CONTROLS, "<|start", "|>", "<|", "end|>", "a", "<|endoftext|>", "<|reserved_200013|>", "system", " "]
strange = st.lists(st.sampled_from(PIECES), max_size=5).map("".join)


@settings(max_examples=40)
@given(strange, strange, strange)
def test_no_text_becomes_a_control_token(renderer: HarmonyRenderer, one: str, two: str, three: str) -> None:
    def controls(*texts: str) -> list[int]:
        said, told_of, third = texts
        tools = [{"type": "function", "function": {"name": "f", "description": said, "parameters": _schema(told_of)}}]
        talk = Talk(renderer, ask=Ask(tools=_encoded(tools)), instructions=third or "x")
        call = called("a", '{"x": "' + said + '"}', name="f")
        ids = talk.prompted(
            {"role": "system", "content": said},
            user(told_of),
            user(third),
            assistant("x" + said, calls=[call], reasoning="x" + third),
            tool("a", told_of),
        )
        return [token_id for token_id in ids if talk.encoding.is_special_token(token_id)]

    assert controls(one, two, three) == controls("", "", "")


def _schema(text: str) -> dict[str, Any]:
    return {"type": "object", "properties": {f"x{text}": {"type": "string", "description": text, "enum": [text]}}}


def _encoded(value: Any) -> bytes:
    return msgspec.json.encode(value)


words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
turns = st.lists(
    st.tuples(st.sampled_from(["call", "calls", "final", "cut"]), st.booleans(), words), min_size=1, max_size=5
)


@settings(max_examples=25)
@given(turns)
def test_what_is_appended_is_what_is_rendered_from_zero(
    renderer: HarmonyRenderer, turns: list[tuple[str, bool, str]]
) -> None:
    """With answers written as openai-harmony writes them, whichever way a prompt was made."""
    talk = Talk(renderer)
    talk.tell(user("Weather?"))
    for number, (kind, reasons, text) in enumerate(turns):
        reasoning = text if reasons else ""
        calls = [called(f"{number}{letter}") for letter in ("a" if kind == "call" else "ab")] if "call" in kind else []
        content = text if kind in ("final", "calls") else None
        if kind == "cut" and not reasons:
            continue
        message = assistant(content, calls=calls, reasoning=reasoning)
        written = renderer.message(message, keeps_analysis=True)[len(renderer.controls.opening) :]
        if kind == "final":
            written[-1] = renderer.controls.answered
        elif kind == "cut":
            written.pop()
        talk.sample(message, written)
        outputs = [tool(call["id"], text) for call in calls]

        assert talk.prompted(*(outputs or [user(text)])) == talk.full()


OPENINGS = {
    "free": (Ask(tools=TOOLS), "", None, ""),
    "named": (
        Ask(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "get_weather"}}),
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>",
        None,
        "",
    ),
    "required": (
        Ask(tools=TOOLS, tool_choice="required", constraints=frozenset({"json_schema"})),
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>",
        Constraint("json_schema", {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}),
        "<|call|>",
    ),
    "of two": (
        Ask(
            tools=_encoded([{"type": "function", "function": {"name": name}} for name in ("f", "g")]),
            tool_choice="required",
        ),
        "<|channel|>commentary to=functions.",
        None,
        "",
    ),
    "schema": (
        Ask(schema={"type": "object"}, constraints=frozenset({"json_schema"})),
        "<|channel|>final <|constrain|>json<|message|>",
        Constraint("json_schema", {"type": "object"}),
        "",
    ),
    "schema that nothing holds it to": (Ask(schema={"type": "object"}), "", None, ""),
}


@pytest.mark.parametrize("ask, said, constraint, closing", OPENINGS.values(), ids=OPENINGS)
def test_an_answer_that_is_not_free_begins_so(
    renderer: HarmonyRenderer, ask: Ask, said: str, constraint: Constraint | None, closing: str
) -> None:
    opening = renderer.opening(ask)

    decode = renderer._encoding.decode
    assert (decode(opening.ids), opening.constraint, decode(opening.closing)) == (said, constraint, closing)


def test_a_call_that_was_begun_for_the_model_is_read_and_kept(renderer: HarmonyRenderer) -> None:
    ask = OPENINGS["required"][0]
    talk = Talk(renderer, ask=ask)
    talk.prompted(user("Weather?"))
    opening = renderer.opening(ask)
    assert talk.log is not None
    log = talk.log.extended(opening.ids, "opening", messages=1)
    said = talk.ids('{"city": "Oslo"}<|return|>')

    assert told(renderer.parser(log, ask), [[one] for one in said]) == [
        ("call", "get_weather", '{"city": "Oslo"}', True)
    ]
    talk.messages.append(assistant(None, calls=[called("a")]))
    talk.log = log.extended([*said, *opening.closing], "sampled", messages=2)
    assert CALL + "<|start|>functions.get_weather" in talk.encoding.decode(talk.prompted(tool("a", "rain")))


def test_images_are_refused(renderer: HarmonyRenderer) -> None:
    message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}

    with pytest.raises(InvalidRequest):
        renderer.draft(prompt_of([message]), ASK).make()
