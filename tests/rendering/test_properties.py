"""Any conversation, turn by turn, is the conversation at once."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from responses_ws.rendering.base import Ask

from . import families
from .simulation import TOOLS, Talk, assistant, called, tool, user

WITH_TOOLS = ("chatml", "xml", "headers", "brackets")
NAMES = sorted({control for name in families.NAMES for control in families.FAMILIES[name][0]})

pieces = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.sampled_from(["<", "|", "<|", "|>", ">", "\n", "\n\n", " ", "</", "[", "<|im_", "start|>", "<tool_response>"]),
    st.sampled_from(NAMES),
)
texts = st.lists(pieces, max_size=6).map("".join)
# What a model says is not stripped, what a template is given often is; and it says something.
answers = texts.map(lambda text: f"A{text}".strip()).filter(lambda text: not any(name in text for name in NAMES))
arguments = st.dictionaries(
    st.text("abc_", min_size=1, max_size=4), st.one_of(answers, st.integers(), st.none()), max_size=2
)
said = st.fixed_dictionaries(
    {
        "content": answers,
        "arguments": arguments,
        "calls": st.integers(0, 2),
        "reasoning": st.one_of(st.just(""), answers),
    }
)
steps = st.one_of(
    st.tuples(st.just("ask"), texts),
    st.tuples(st.just("answer"), said),
    st.tuples(st.just("stopped"), said),
    st.tuples(st.just("instruct"), texts),
    st.tuples(st.just("fork"), texts),
    st.tuples(st.just("rendered"), said),
)


def message_of(name: str, given: dict[str, Any], number: int) -> dict[str, Any]:
    calls = []
    if name in WITH_TOOLS:
        # What is called for is one call in a message there, and nothing beside it.
        most = 1 if name == "headers" else 2
        encoded = json.dumps(given["arguments"], ensure_ascii=False)
        calls = [called(f"call_{number}_{index}", encoded) for index in range(min(given["calls"], most))]
    is_only_calls = calls and name in ("headers", "brackets")
    has_reasoning = name in ("chatml", "xml", "bars")
    reasoning = (given["reasoning"] or ("x" if name == "bars" else "")) if has_reasoning else ""
    return assistant(None if is_only_calls else given["content"], calls=calls, reasoning=reasoning)


@pytest.mark.parametrize("name", families.NAMES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(instructions=st.one_of(st.none(), texts), steps=st.lists(steps, max_size=7))
def test_turn_by_turn_is_at_once(name: str, instructions: str | None, steps: list[Any]) -> None:
    ask = Ask(tools=TOOLS if name in WITH_TOOLS else None)
    play(Talk(families.renderer(name), ask=ask, instructions=instructions), name, steps)


def play(talk: Talk, name: str, steps: list[Any]) -> None:
    """A conversation of these ``steps`` with a model that writes as the family ``name``, compared at each turn."""
    others: list[Talk] = []
    tell(talk, user("Begin."))
    for number, (step, what) in enumerate(steps):
        if step == "ask":
            tell(talk, user(what))
        elif step == "instruct":
            tell(talk, {"role": "system", "content": what})
        elif step == "fork":
            others.append(talk.fork())
            tell(others[-1], user(what))
        else:
            message = message_of(name, what, number)
            # What it samples are control tokens, not their names.
            assume(not any(control in str(message) for control in talk.renderer.tokenizer.controls))
            results = [tool(call["id"], what["content"]) for call in message.get("tool_calls", ())]
            if step == "rendered":
                tell(talk, message, *(results or [user("Go on.")]))
            else:
                talk.sample(message, cut=int(step == "stopped"))
                tell(talk, *(results or [user("Go on.")]))
    for other in others:
        tell(other, user("The end."))


def tell(talk: Talk, *messages: dict[str, Any]) -> None:
    talk.tell(*messages)
    whole = talk.whole()

    assert talk.controls() == talk.controls(whole)
    assert talk.decoded() == talk.text_of(whole)
