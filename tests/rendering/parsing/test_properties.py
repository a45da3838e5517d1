"""Any answer, in any tokens, in any batches."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from responses_ws.protocol.sampling import FinishReason
from responses_ws.rendering.parsing import FAMILIES, build_parser
from responses_ws.rendering.parsing.detokenise import Detokeniser

from .answers import TOOLS
from .vocabulary import END, MARKERS, Seen, tokenizer, told

chances = st.integers(0, 2**32).map(Random)
vocabularies = st.sampled_from([tokenizer(*MARKERS), tokenizer()])
# Lone surrogates have no UTF-8, so no tokens.
characters = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
words = st.text(st.sampled_from(' \n"\\{}[]<>/=,:;aé世😀�'), max_size=12) | characters
inner_values = st.recursive(
    st.none() | st.booleans() | st.integers() | words,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2),
    max_leaves=5,
)
objects = st.dictionaries(words, inner_values, max_size=3)


def written(value: Any, draw: Callable[[st.SearchStrategy[Any]], Any]) -> str:
    """JSON as a model might write it."""
    separators = draw(st.sampled_from([(", ", ": "), (",", ":"), (" , ", " : ")]))
    indent = draw(st.sampled_from([None, 1]))
    return json.dumps(value, ensure_ascii=draw(st.booleans()), separators=separators, indent=indent)


def sampled(text: str, vocabulary: Tokenizer, chance: Random) -> list[int]:
    """Ids of ``text``, cut into tokens somewhere, within characters too; control tokens stay whole."""
    ids: list[int] = []
    controls = set(vocabulary.get_added_tokens_decoder())
    for one in vocabulary.encode(text).ids:
        if one in controls or chance.random() < 0.5:
            ids.append(one)
        else:
            # The same text, a token a byte.
            ids += [vocabulary.token_to_id(letter) for letter in vocabulary.id_to_token(one)]
    return ids


def batches_of(ids: list[int], chance: Random) -> list[list[int]]:
    batches: list[list[int]] = [[]]
    for one in ids:
        if chance.random() < 0.25:
            batches.append([])
        batches[-1].append(one)
    return batches


def is_free(text: str) -> bool:
    """It says nothing that a template would strip, or a marker would mean."""
    return bool(text.strip()) and text.strip("\n") == text and not any(marker in text for marker in MARKERS)


@given(st.data(), chances, vocabularies, st.sampled_from(["hermes", "mistral", "mistral-list", "llama3"]))
def test_what_is_written_is_read(data: st.DataObject, chance: Random, vocabulary: Tokenizer, family: str) -> None:
    draw = data.draw
    form = FAMILIES[family].call
    assert form is not None
    seen: list[Seen] = []
    said = ""
    if draw(st.booleans()) and family != "llama3":
        text = draw(words.filter(is_free))
        seen.append(("text", text))
        said += text + draw(st.sampled_from(["", "\n", "\n\n"]))
    for _ in range(draw(st.integers(1, 3))):
        name, arguments = draw(st.sampled_from(sorted(TOOLS))), written(draw(objects), draw)
        if family in ("hermes", "mistral") or form.opener not in said:
            said += form.opener
        if family == "mistral":
            said += f"{name}[ARGS]{arguments}"
        elif draw(st.booleans()):
            said += f'{{"name" :"{name}", "arguments": {arguments}}}'
        else:
            said += f'{{"arguments": {arguments}\n,"name":"{name}"}}'
        said += form.closer + draw(st.sampled_from(["", "\n"]))
        seen.append(("call", name, arguments, True))

    parser = build_parser(family, tokenizer=vocabulary, tools=TOOLS)
    assert told(parser, batches_of(sampled(said, vocabulary, chance), chance)) == seen
    assert parser.malformed_calls == 0


@given(st.data(), chances, vocabularies)
def test_XML_arguments_are_the_values_that_were_written(
    data: st.DataObject, chance: Random, vocabulary: Tokenizer
) -> None:
    draw = data.draw
    values: dict[str, Any] = {}
    said = "<tool_call>\n<function=save>\n"
    for key, value in (("text", words), ("count", st.integers()), ("tags", st.lists(inner_values, max_size=3))):
        if draw(st.booleans()):
            values[key] = draw(value)
            text = values[key] if key == "text" else written(values[key], draw)
            said += f"<parameter={key}>\n{text}\n</parameter>\n"
    said += "</function>\n</tool_call>"

    parser = build_parser("qwen-coder", tokenizer=vocabulary, tools=TOOLS)
    ((kind, name, arguments, is_whole),) = told(parser, batches_of(sampled(said, vocabulary, chance), chance))

    assert (kind, name, is_whole) == ("call", "save", True)
    assert json.loads(arguments) == values


keywords = st.sampled_from(["type", "enum", "const", "anyOf", "allOf", "$ref", "properties", "x"])
strange_schemas = st.recursive(
    st.none() | st.integers() | st.sampled_from(["string", "integer", "null", "#/properties/x", "#/x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keywords, inner, max_size=3),
    max_leaves=12,
)


@given(strange_schemas, strange_schemas, st.sampled_from(["5", "null", "x", '["a"]', "True", "-"]))
def test_no_schema_is_too_strange(properties: Any, schema: Any, value: str) -> None:
    """Whatever a client sends as one, the arguments are an object that holds what was written."""
    parameters = {"properties": {"x": schema}} if properties is None else {"properties": properties, "x": schema}
    said = f"<tool_call><function=f><parameter=x>{value}</parameter></function></tool_call>"
    vocabulary = tokenizer(*MARKERS)

    parser = build_parser("qwen-coder", tokenizer=vocabulary, tools={"f": parameters})
    ((_call, _name, arguments, is_whole),) = told(parser, [vocabulary.encode(said).ids])

    readings = [value, *([json.loads(value.lower())] if value not in "x-" else [])]
    assert json.loads(arguments)["x"] in readings
    assert is_whole


SOUP = [
    *MARKERS,
    END,
    "<function=save>",
    "<parameter=text>",
    "</parameter>",
    "</function>",
    "[ARGS]",
    "save",
    "\n",
    " ",
]
SOUP += ['{"name": "save"', ', "arguments": ', '{"text": "', '"}', "}", "{", "[", "\\", "a", "世", '"name"', ":", "5"]


def without_scaffold(text: str) -> str:
    for marker in ("<think>", "</think>", "[THINK]", "[/THINK]", "\n", " "):
        text = text.replace(marker, "")
    return text


@given(
    chances,
    vocabularies,
    st.sampled_from(sorted(FAMILIES)),
    st.lists(st.sampled_from(SOUP), max_size=14),
    st.integers(0, 60),
    st.sampled_from(["stop", "length"]),
)
def test_no_answer_is_too_strange(
    chance: Random, vocabulary: Tokenizer, family: str, pieces: list[str], length: int, reason: FinishReason
) -> None:
    """It is read, alike in all batches; and where no call begins, all of it comes out."""
    ids = sampled("".join(pieces), vocabulary, chance)[:length]
    stop = vocabulary.token_to_id(END)

    parsers = [build_parser(family, tokenizer=vocabulary, tools=TOOLS, stop_ids=[stop]) for _ in range(3)]
    one_by_one = told(parsers[0], [[one] for one in ids], reason)
    at_once = told(parsers[1], [ids], reason)
    somehow = told(parsers[2], batches_of(ids, chance), reason)

    assert one_by_one == at_once == somehow
    if parsers[0].calls == 0:
        written = vocabulary.decode([one for one in ids if one != stop], skip_special_tokens=False)
        assert without_scaffold("".join(one[1] for one in at_once)) == without_scaffold(written)
    assert len({(parser.calls, parser.malformed_calls, parser.reasoning_tokens) for parser in parsers}) == 1


@given(chances, characters)
def test_text_comes_out_as_it_was_sampled(chance: Random, text: str) -> None:
    vocabulary = tokenizer()
    detokeniser = Detokeniser(vocabulary)
    ids = sampled(text, vocabulary, chance)

    said = "".join(map(detokeniser.feed, ids)) + detokeniser.rest()

    assert said == text


@given(st.lists(st.binary(min_size=1, max_size=6), max_size=8))
def test_bytes_that_are_no_text_are_replaced_and_hold_nothing_up(pieces: list[bytes]) -> None:
    vocabulary = tokenizer()
    alphabet = {byte: vocabulary.token_to_id(letter) for byte, letter in bytes_to_letters().items()}
    detokeniser = Detokeniser(vocabulary)

    said = ""
    for piece in pieces:
        said += "".join(detokeniser.feed(alphabet[byte]) for byte in piece)
    rest = detokeniser.rest()

    assert len(rest.encode()) <= 8 * len("�".encode())
    assert (said + rest).replace("�", "") == b"".join(pieces).decode(errors="replace").replace("�", "")


def bytes_to_letters() -> dict[int, str]:
    """How byte-level vocabularies write bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + place) for place, byte in enumerate(others)}
