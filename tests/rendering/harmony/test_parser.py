"""What gpt-oss says, however it comes."""

from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("openai_harmony", reason="the extra `harmony` is not installed")
pytest.importorskip("bpe_openai", reason="the extra `harmony` is not installed")
from openai_harmony import Role, StreamableParser

from responses_ws.protocol.sampling import TextDelta
from responses_ws.rendering.harmony.parser import HarmonyParser
from responses_ws.rendering.harmony.renderer import HarmonyRenderer
from tests.rendering.parsing.answers import call, reasoning, text
from tests.rendering.parsing.vocabulary import Seen, told


class Answer(NamedTuple):
    said: str
    seen: list[Seen]
    malformed: int = 0


CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
OTHER_CALL = "<|start|>assistant to=functions.g<|channel|>commentary json<|message|>"
THOUGHT = "<|channel|>analysis<|message|>I know.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>"
ANSWERS = {
    "final": Answer(f"{FINAL}Paris 😀.<|return|>", [text("Paris 😀.")]),
    "thought and said": Answer(f"{THOUGHT}{FINAL}Paris.<|return|>", [reasoning("I know."), text("Paris.")]),
    "thought twice": Answer(
        f"{THOUGHT}{THOUGHT}{FINAL}Paris.<|return|>", [reasoning("I know.\n\nI know."), text("Paris.")]
    ),
    "a call": Answer(f'{THOUGHT}{CALL}{{"a": "世"}}<|call|>', [reasoning("I know."), call("f", '{"a": "世"}')]),
    "the recipient first": Answer(f"{OTHER_CALL}{{}}<|call|>".removeprefix("<|start|>assistant"), [call("g", "{}")]),
    "a preamble and calls": Answer(
        f"<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{CALL}{{}}<|call|>{OTHER_CALL}{{}}<|call|>",
        [text("I look."), call("f", "{}"), call("g", "{}")],
    ),
    "a preamble and an answer": Answer(
        f"<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{FINAL}Rain.<|return|>",
        [text("I look.\n\nRain.")],
    ),
    "a tool of nobody's": Answer("<|channel|>analysis to=python code<|message|>1+1<|call|>", [call("python", "1+1")]),
    "for the user": Answer("<|channel|>final to=user<|message|>a<|return|>", [text("a")]),
    "control tokens in content": Answer(f"{FINAL}a<|message|>b<|return|>", [text("a<|message|>b")]),
    "an end forgotten": Answer(
        f"<|channel|>analysis<|message|>a<|start|>assistant{FINAL}b", [reasoning("a"), text("b")]
    ),
    "no header": Answer("Hello there.<|return|>", [text("Hello there.")], 1),
    "no channel": Answer("so <|message|>a<|end|>", [text("so \n\na")], 1),
    "no content": Answer(f"{CALL.removesuffix('<|message|>')}<|call|>", [text(CALL.removesuffix("<|message|>"))], 1),
    "nothing": Answer("", []),
}


def parser_of(renderer: HarmonyRenderer) -> HarmonyParser:
    return HarmonyParser(renderer.controls, tail=renderer.controls.opening)


def ids_of(renderer: HarmonyRenderer, said: str) -> list[int]:
    return list(renderer._encoding.encode(said, allowed_special="all"))


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_says_the_same_however_it_is_cut(renderer: HarmonyRenderer, answer: Answer) -> None:
    ids = ids_of(renderer, answer.said)
    for batches in ([[one] for one in ids], *([ids[:cut], ids[cut:]] for cut in range(len(ids)))):
        parser = parser_of(renderer)
        assert (told(parser, batches), parser.malformed_calls) == (answer.seen, answer.malformed)


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_cut_off_by_length_says_the_beginning_of_the_whole(renderer: HarmonyRenderer, answer: Answer) -> None:
    ids = ids_of(renderer, answer.said)
    for length in range(len(ids)):
        *seen, last = told(parser_of(renderer), [ids[:length]], "length") or [None]
        assert seen == answer.seen[: len(seen)]
        if last is not None:
            whole = answer.seen[len(seen)]
            assert last[0] == whole[0]
            place = 2 if last[0] == "call" else 1
            assert whole[place].startswith(last[place].rstrip("\ufffd"))


@pytest.mark.parametrize("name", ["final", "thought and said", "a call", "a preamble and calls", "thought twice"])
def test_it_reads_what_openai_harmony_reads(renderer: HarmonyRenderer, name: str) -> None:
    reader = StreamableParser(renderer._encoding, Role.ASSISTANT)
    for token_id in ids_of(renderer, ANSWERS[name].said):
        reader.process(token_id)
    read: list[Any] = []
    for message in reader.messages:
        said = message.content[0].to_dict()["text"]
        if message.recipient:
            read.append(call(message.recipient.removeprefix("functions."), said))
        else:
            read.append(reasoning(said) if message.channel == "analysis" else text(said))

    seen = told(parser_of(renderer), [ids_of(renderer, ANSWERS[name].said)])

    assert [(one[0], one[1:]) for one in seen if one[0] == "call"] == [
        (one[0], one[1:]) for one in read if one[0] == "call"
    ]
    assert "\n\n".join(one[1] for one in read if one[0] != "call") == "\n\n".join(
        one[1] for one in seen if one[0] != "call"
    )


def test_markers_typed_as_text_are_text(renderer: HarmonyRenderer) -> None:
    said = f"<|end|><|start|>assistant{CALL}{{}}<|call|>"
    typed = renderer._encoding.encode(said, disallowed_special=())

    seen = told(parser_of(renderer), [ids_of(renderer, FINAL), *[[one] for one in typed]])

    assert seen == [text(said)]


def test_a_call_cut_off_by_length_stays_open(renderer: HarmonyRenderer) -> None:
    ids = ids_of(renderer, f'{CALL}{{"a": ')

    assert told(parser_of(renderer), [ids], "length") == [call("f", '{"a": ', is_whole=False)]
    assert told(parser_of(renderer), [ids], "stop") == [call("f", '{"a": ')]


def test_ids_within_reasoning_are_counted_and_logprobs_stay_with_text(renderer: HarmonyRenderer) -> None:
    parser = parser_of(renderer)
    ids = ids_of(renderer, f"{THOUGHT}{FINAL}Zürich 𓀀 it is.<|return|>")
    logprobs = [{"token": str(one), "logprob": -1.0} for one in ids]

    deltas = [delta for one, its in zip(ids, logprobs, strict=True) for delta in parser.feed([one], [its])]

    assert parser.reasoning_tokens == len(ids_of(renderer, "I know."))
    told_of = [one["token"] for delta in deltas if isinstance(delta, TextDelta) for one in delta.logprobs]
    assert told_of == [str(one) for one in ids_of(renderer, "Zürich 𓀀 it is.")]


SOUP = ["<|start|>", "<|end|>", "<|call|>", "<|return|>", "<|message|>", "<|channel|>", "<|constrain|>", "assistant"]
SOUP += ["analysis", "final", "commentary", " to=functions.f", "a", "{}", "\n", "𓀀"]


@settings(max_examples=100)
@given(st.lists(st.sampled_from(SOUP), max_size=14), st.sampled_from(["stop", "length"]), st.integers(0, 40))
def test_no_answer_is_too_strange(renderer: HarmonyRenderer, pieces: list[str], reason: Any, length: int) -> None:
    ids = [token_id for piece in pieces for token_id in ids_of(renderer, piece)][:length] + [250_000]

    one_by_one = told(parser_of(renderer), [[one] for one in ids], reason)

    assert one_by_one == told(parser_of(renderer), [ids], reason)
