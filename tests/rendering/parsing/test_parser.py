import json
import re
import sys
from os.path import commonprefix
from typing import Any

import pytest
from tokenizers import Tokenizer

from responses_ws.protocol.sampling import CallArguments, Delta, TextDelta
from responses_ws.rendering.base import OutputParser
from responses_ws.rendering.parsing import FAMILIES, Parsers, build_parser, schemas_of
from responses_ws.rendering.tokens import TokenLog

from .answers import ANSWERS, TOOLS, Answer, call, text
from .vocabulary import END, MARKERS, Seen, merged, sentencepiece, tokenizer, told, typed

VOCABULARIES = {
    "with ids": tokenizer(*MARKERS),
    "without ids": tokenizer(),
    "sentencepiece": sentencepiece(*MARKERS),
}


def parser_of(answer: Answer, vocabulary: Tokenizer, tools: dict[str, Any] = TOOLS) -> OutputParser:
    return build_parser(
        answer.family,
        tokenizer=vocabulary,
        tail=vocabulary.encode(answer.tail).ids,
        tools=tools,
        stop_ids=[vocabulary.token_to_id(END)],
    )


def ids_of(answer: Answer, vocabulary: Tokenizer) -> list[int]:
    return list(vocabulary.encode(answer.said + END).ids)


@pytest.mark.parametrize("vocabulary", VOCABULARIES.values(), ids=VOCABULARIES)
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_says_the_same_however_it_is_cut(answer: Answer, vocabulary: Tokenizer) -> None:
    ids = ids_of(answer, vocabulary)
    for batches in (
        [[one] for one in ids],
        *([ids[:cut], ids[cut:]] for cut in range(len(ids))),
    ):
        parser = parser_of(answer, vocabulary)
        seen = told(parser, batches)
        assert (seen, parser.malformed_calls) == (answer.seen, answer.malformed)
        assert parser.calls == sum(1 for one in seen if one[0] == "call")


@pytest.mark.parametrize("vocabulary", VOCABULARIES.values(), ids=VOCABULARIES)
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_cut_off_by_length_says_the_beginning_of_the_whole(answer: Answer, vocabulary: Tokenizer) -> None:
    ids = ids_of(answer, vocabulary)
    for length in range(len(ids)):
        parser = parser_of(answer, vocabulary)
        *seen, last = told(parser, [ids[:length]], "length") or [None]
        assert seen == answer.seen[: len(seen)]
        if last is None:
            continue
        said = last[-1] if last[0] != "call" else last[2]
        if parser.malformed_calls > answer.malformed:
            # Cut before its name: nobody can know that it would have become a call.
            assert last[0] != "call" and said.rstrip("\ufffd") in answer.said
            continue
        whole = answer.seen[len(seen)]
        # Half a character, half a marker, and line feeds before one: markup only where more follows.
        certain = re.sub(r"\n*([<\[][^<\[]*|\ufffd+)?\Z", "", said)
        if whole[0] != last[0]:
            assert not certain or last[0] == "text" and said in answer.said
        elif whole[0] == "call":
            # A value that is said only when it is whole comes as it was written.
            kept_back = certain[len(commonprefix([certain, whole[2]])) :]
            assert whole[1] == last[1] and kept_back in answer.said
            assert last[3] <= whole[3]
        else:
            assert whole[1].startswith(certain)


def test_a_call_cut_off_by_length_stays_open() -> None:
    said = '<tool_call>\n{"name": "save", "arguments": {"text": "a'
    parser = parser_of(Answer("hermes", said, []), VOCABULARIES["with ids"])

    seen = told(parser, [VOCABULARIES["with ids"].encode(said).ids], "length")

    assert seen == [call("save", '{"text": "a', is_whole=False)]
    assert parser.malformed_calls == 0


CUT_OFF = {
    "arguments in a string": ("hermes", '<tool_call>{"name": "save", "arguments": "{\\"te', '"{\\"te'),
    "text": ("qwen-coder", "<tool_call><function=save><parameter=text>\na\n</", '{"text": "a'),
    "a list": ("qwen-coder", '<tool_call><function=save><parameter=tags>\n["a", "b"', '{"tags": ["a", "b"'),
}


@pytest.mark.parametrize("family, said, arguments", CUT_OFF.values(), ids=CUT_OFF)
def test_arguments_that_wait_for_their_end_are_said_when_it_does_not_come(
    family: str, said: str, arguments: str
) -> None:
    parser = parser_of(Answer(family, said, []), VOCABULARIES["with ids"])

    seen = told(parser, [VOCABULARIES["with ids"].encode(said).ids], "length")

    assert seen == [call("save", arguments, is_whole=False)]


TYPED = {
    "hermes": "<tool_call>",
    "think-hermes": "<think>I\n</think>\n<tool_call></tool_call>",
    "llama3": "a <|python_tag|>",
    "think-mistral": "[THINK]a[/THINK][TOOL_CALLS]",
}


@pytest.mark.parametrize("family", TYPED)
def test_a_marker_typed_as_text_is_text(family: str) -> None:
    said = TYPED[family] + ' {"name": "save", "arguments": {}}'
    parser = parser_of(Answer(family, said, []), VOCABULARIES["with ids"])

    assert told(parser, [[one] for one in typed(said)]) == [text(said)]
    assert parser.malformed_calls == 0


def test_without_tools_nothing_is_a_call() -> None:
    for answer in ANSWERS.values():
        if answer.tail or answer.family.startswith("think"):
            continue
        for vocabulary in VOCABULARIES.values():
            parser = parser_of(answer, vocabulary, {})
            assert told(parser, [ids_of(answer, vocabulary)]) == ([text(answer.said)] if answer.said else [])


def test_text_is_said_as_soon_as_it_is_known() -> None:
    vocabulary = VOCABULARIES["without ids"]
    parser = parser_of(Answer("think-hermes", "", []), vocabulary)
    said = "I think that we know. <b> [x] "

    heard = [merged(parser.feed([one])) for one in vocabulary.encode(said).ids]

    assert "".join(seen[0][1] for seen in heard if seen) == said
    assert sum(1 for seen in heard if not seen) <= 1, "only the token with `<` at its end waits for the next"


def test_arguments_are_said_as_they_come() -> None:
    vocabulary = VOCABULARIES["with ids"]
    for answer in (ANSWERS["braces, quotes and escapes in strings"], ANSWERS["named calls"], ANSWERS["XML"]):
        parser = parser_of(answer, vocabulary)

        batches = [parser.feed([one]) for one in ids_of(answer, vocabulary)]

        assert sum(1 for deltas in batches if any(isinstance(delta, CallArguments) for delta in deltas)) > 3


def test_a_model_that_writes_only_line_feeds_is_heard() -> None:
    parser = parser_of(ANSWERS["thought and said"], VOCABULARIES["with ids"])

    assert len(merged(parser.feed(typed("\n") * 100))[0][1]) > 80


def test_an_answer_in_JSON_is_not_held_back_for_being_perhaps_a_call() -> None:
    parser = parser_of(Answer("llama3", "", []), VOCABULARIES["with ids"])

    assert merged(parser.feed(typed('{"city":'))) == [text('{"city":')]


def test_ids_within_reasoning_are_counted() -> None:
    vocabulary = VOCABULARIES["with ids"]
    parser = parser_of(Answer("think", "", [], tail="<think>\n"), vocabulary)
    inside = typed("I know that.\n")

    told(parser, [inside, vocabulary.encode("</think>Paris.").ids])

    assert parser.reasoning_tokens == len(inside)


def test_every_token_is_counted_once() -> None:
    vocabulary = VOCABULARIES["with ids"]
    answer = ANSWERS["text between calls"]
    ids = vocabulary.encode(answer.said).ids
    parser = parser_of(answer, vocabulary)

    deltas = [delta for one in ids for delta in parser.feed([one])]

    markup_at_the_end = ids[::-1].index(vocabulary.token_to_id("</tool_call>")) + 1
    assert sum(getattr(delta, "tokens", 0) for delta in deltas) in range(len(ids) - markup_at_the_end - 1, len(ids) + 1)


def test_logprobs_stay_with_the_text_they_belong_to() -> None:
    vocabulary = VOCABULARIES["with ids"]
    said = "<think>no</think>\n\nZürich 😀 is\n<tool_call>{"
    ids = vocabulary.encode(said).ids
    logprobs = [{"token": vocabulary.id_to_token(one), "logprob": -0.5} for one in ids]
    parser = parser_of(Answer("think-hermes", "", []), vocabulary)

    deltas = [delta for one, its in zip(ids, logprobs, strict=True) for delta in parser.feed([one], [its])]

    told_of = [one for delta in deltas if isinstance(delta, TextDelta) for one in delta.logprobs]
    start, end = ids.index(vocabulary.token_to_id("</think>")) + 1, ids.index(vocabulary.token_to_id("<tool_call>"))
    visible = [
        its
        for one, its in zip(ids[start:end], logprobs[start:end], strict=True)
        if vocabulary.decode([one]).strip("\n")
    ]
    assert told_of == visible


def test_the_first_space_of_an_answer_is_kept_where_the_prompt_shows_that_it_is_one() -> None:
    vocabulary = sentencepiece(*MARKERS, strips=True)
    said = vocabulary.encode(" fine").ids

    for tail, seen in (("I think", " fine"), ("", "fine")):
        parser = build_parser("hermes", tokenizer=vocabulary, tail=vocabulary.encode(tail).ids, tools=TOOLS)
        assert told(parser, [[one] for one in said]) == [text(seen)]


def test_a_value_nested_too_deeply_to_be_read_is_text() -> None:
    said = f"<tool_call><function=save><parameter=tags>{'[' * 20_000}</parameter></function></tool_call>"
    parser = parser_of(Answer("qwen-coder", said, []), VOCABULARIES["with ids"])

    ((_call, _name, arguments, is_whole),) = told(parser, [VOCABULARIES["with ids"].encode(said).ids])

    assert json.loads(arguments) == {"tags": "[" * 20_000}
    assert is_whole


def test_schemas_are_read_once_along_a_chain() -> None:
    f = {"name": "f", "parameters": {"type": "object"}}
    encoded = json.dumps([{"type": "function", "function": one} for one in (f, {"name": "g"})]).encode()

    assert schemas_of(encoded) == {"f": {"type": "object"}, "g": {}}
    assert schemas_of(encoded) is schemas_of(bytes(encoded))
    assert schemas_of(None) == {}


CALLING = [name for name, family in FAMILIES.items() if family.call and family.call.body != "xml"]


@pytest.mark.parametrize("vocabulary", VOCABULARIES.values(), ids=VOCABULARIES)
@pytest.mark.parametrize("family", CALLING)
def test_a_call_that_is_begun_for_the_model_is_told_of(family: str, vocabulary: Tokenizer) -> None:
    form = FAMILIES[family].call
    assert form is not None
    for said in ("{}", "{}" + form.ended):
        parser = build_parser(
            family,
            tokenizer=vocabulary,
            tail=vocabulary.encode("<|im_start|>assistant\n").ids,
            opening=vocabulary.encode(form.begun("save")).ids,
            tools=TOOLS,
        )

        assert told(parser, [[one] for one in vocabulary.encode(said).ids]) == [call("save", "{}")]
        assert parser.malformed_calls == 0


def log_opened_by(tail: list[int], opening: list[int]) -> TokenLog:
    log = TokenLog().extended([1, 2], "rendered", messages=1).extended(tail, "opening", messages=1)
    return log.extended(opening, "opening", messages=1) if opening else log


@pytest.mark.parametrize("vocabulary", VOCABULARIES.values(), ids=VOCABULARIES)
@pytest.mark.parametrize("said", ["<think>\n", "", '<tool_call>\n{"name": "save", "arguments": '])
def test_answers_that_begin_alike_are_read_each_for_itself(said: str, vocabulary: Tokenizer) -> None:
    tools = json.dumps([{"type": "function", "function": {"name": name}} for name in TOOLS]).encode()
    parsers = Parsers("think-hermes", vocabulary, [vocabulary.token_to_id(END)])
    tail = vocabulary.encode(said if said.startswith("<think>") else "assistant\n").ids
    opening = vocabulary.encode(said).ids if "call" in said else []
    log = log_opened_by(tail, opening)
    fresh = build_parser(
        "think-hermes",
        tokenizer=vocabulary,
        tail=tail,
        opening=opening,
        tools=schemas_of(tools),
        stop_ids=[vocabulary.token_to_id(END)],
    )
    ids = vocabulary.encode('{"a": "世"}\n</tool_call></think>\n\nSo 😀 be it.' + END).ids
    one, other = parsers.parser(log, tools), parsers.parser(log, tools)

    before = one.feed(ids[:9])
    made = [fresh, other, parsers.parser(log, tools)]
    seen = [told(parser, [[token_id] for token_id in ids]) for parser in made]

    assert seen[0] == seen[1] == seen[2] == told_with(before, one, ids[9:])
    made.append(one)
    assert len({(parser.calls, parser.malformed_calls, parser.reasoning_tokens) for parser in made}) == 1


def told_with(before: list[Delta], parser: OutputParser, ids: list[int]) -> list[Seen]:
    return merged([*before, *parser.feed(ids), *parser.finish("stop")])


def test_a_word_that_was_read_before_takes_four_calls() -> None:
    vocabulary = VOCABULARIES["with ids"]
    ids = vocabulary.encode("I think that we know the weather.").ids
    parser = parser_of(Answer("think-hermes", "", []), vocabulary)
    told(parser, [[one] for one in ids])
    calls: list[str] = []

    sys.setprofile(lambda _frame, event, _arg: calls.append(event) if event in ("call", "c_call") else None)
    try:
        said = [parser.feed([one]) for one in ids]
    finally:
        sys.setprofile(None)

    assert all(len(deltas) == 1 for deltas in said)
    # `feed`, whether it flows, `len`, `dict.get`; and ending the profile.
    assert len(calls) <= 4 * len(ids) + 2
