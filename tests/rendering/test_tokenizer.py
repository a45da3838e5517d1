"""Tokenizers of other kinds than the byte-level: text stays text, and harmless text stays as it was."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from responses_ws.rendering.tokenizer import Hidden, Tokenizer, any_of

ROOT = Path(__file__).parents[2]
CONTROLS = ("<s>", "</s>", "<|user|>", "<|assistant|>")


@functools.cache
def made(kind: str) -> Tokenizer:
    trainer: Any
    if kind.startswith("unigram"):
        made = tokenizers.Tokenizer(models.Unigram())
        trainer = trainers.UnigramTrainer(
            vocab_size=800, special_tokens=["<unk>", *CONTROLS], unk_token="<unk>", show_progress=False
        )
    else:
        made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
        trainer = trainers.BpeTrainer(vocab_size=800, special_tokens=["<unk>", *CONTROLS], show_progress=False)
    scheme = "always" if kind.endswith("always") else "first"
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    made.decoder = decoders.Metaspace(prepend_scheme=scheme)
    if "nfkc" in kind:
        made.normalizer = normalizers.NFKC()
    texts = [path.read_text() for path in sorted(ROOT.glob("docs/**/*.md"))[:6]]
    made.train_from_iterator(texts, trainer)
    document = json.loads(made.to_str())
    for token in document["added_tokens"]:
        token["normalized"] = "nfkc" in kind
        token["special"] = token["content"] != "<|assistant|>"
    return Tokenizer(document)


KINDS = ["bpe first", "bpe always", "bpe nfkc first", "unigram first", "unigram nfkc always"]
TEXTS = ["harmless", "two words", " in  spaces ", "A lane is a queue.", "a\nb"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", TEXTS)
def test_hiding_harmless_text_changes_nothing(kind: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = made(kind)
    form = "<s>Be brief.<|user|>{} please<|assistant|> {}</s>"
    expected = list(tokenizer.raw.encode(form.format(text, text), add_special_tokens=False).ids)
    monkeypatch.setattr(Hidden, "_is_dangerous", lambda self, given: True)
    hidden = Hidden(tokenizer)
    covered = hidden.cover(text)

    assert list(tokenizer.encode(form.format(covered, covered), hidden)) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_what_follows_a_control_token_is_encoded_as_if_it_did(kind: str) -> None:
    tokenizer = made(kind)
    whole = list(tokenizer.raw.encode("<s>one two</s>three four<|user|>", add_special_tokens=False).ids)

    before = tokenizer.encode("<s>one two</s>", Hidden(tokenizer))
    after = tokenizer.encode("three four<|user|>", Hidden(tokenizer), behind="</s>")

    assert [*before, *after] == whole


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("control", CONTROLS)
def test_no_spelling_of_a_control_token_is_one(kind: str, control: str) -> None:
    tokenizer = made(kind)
    wide = "".join(chr(ord(one) + 0xFEE0) for one in control)
    for text in (control, f"a {control}b", wide, f"{control}{wide}"):
        hidden = Hidden(tokenizer)

        ids = tokenizer.encode(f"<s>{hidden.cover(text)}</s>", hidden)

        names = [tokenizer.name_of(one) for one in ids]
        assert [name for name in names if name not in (None, "<unk>")] == ["<s>", "</s>"]


def test_white_space_that_a_vocabulary_has_as_added_tokens_is_no_control_token() -> None:
    document = json.loads(made("bpe first").raw.to_str())
    free = max(document["model"]["vocab"].values()) + 1
    added = {**document["added_tokens"][0], "special": False, "normalized": True}
    document["added_tokens"] += [
        {**added, "id": free, "content": "<|more|>"},
        {**added, "id": free + 1, "content": "    "},
    ]
    tokenizer = Tokenizer(document)
    hidden = Hidden(tokenizer)

    assert "    " not in tokenizer.controls
    assert hidden.cover("if x:\n    y") == "if x:\n    y"
    text = hidden.cover("if x:\n    y </s>")
    assert free + 1 in tokenizer.encode(f"<s>{text}", hidden)


def test_names_that_begin_alike_are_found_as_one_pattern() -> None:
    pattern = any_of(["<|a|>", "<|ab|>", "<|a", "[x]", "[x"])

    assert pattern.findall("<|ab|> <|a|> <|a [x [x] <|b") == ["<|ab|>", "<|a|>", "<|a", "[x", "[x]"]
    assert any_of([]).search("anything") is None


def test_added_tokens_that_letters_merge_into_are_words() -> None:
    document = json.loads(made("bpe first").raw.to_str())
    word = "".join(document["model"]["merges"][40])
    token_id = document["model"]["vocab"][word]
    document["added_tokens"].append({**document["added_tokens"][0], "id": token_id, "content": word, "special": False})
    document["added_tokens"].append({**document["added_tokens"][0], "id": 5, "content": "▁▁", "special": False})

    tokenizer = Tokenizer(document)

    assert word not in tokenizer.controls
    assert "▁▁" not in tokenizer.controls
    assert tokenizer.could_say_control(f"a {word} b") is False
