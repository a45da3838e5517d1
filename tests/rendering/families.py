"""Small tokenizers and templates with the traits of the families that people serve, made for these tests."""

import functools
import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from responses_ws.rendering.conversation import short_id
from responses_ws.rendering.template import TemplateRenderer
from responses_ws.rendering.tokenizer import Tokenizer

_ROOT = Path(__file__).parents[2]
_TEMPLATES = Path(__file__).parent / "templates"

CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>")
HEADERS = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
BRACKETS = ("<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]")
BRACKETS += ("[TOOL_RESULTS]", "[/TOOL_RESULTS]")
TURNS = ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>")
BARS = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>")

# Templates by name: the control tokens of the tokenizer, the family of the parser, variables.
FAMILIES: dict[str, tuple[tuple[str, ...], str, dict[str, Any]]] = {
    "chatml": (CHATML, "think-hermes", {}),
    "xml": (CHATML, "think-qwen-coder", {}),
    "headers": (HEADERS, "llama3", {"bos_token": "<|begin_of_text|>"}),
    "brackets": (BRACKETS, "mistral-list", {"bos_token": "<s>", "eos_token": "</s>"}),
    "turns": (TURNS, "plain", {"bos_token": "<bos>"}),
    "bars": (BARS, "think", {"bos_token": BARS[0], "eos_token": BARS[1]}),
    "words": (("<|endoftext|>",), "plain", {"eos_token": "<|endoftext|>"}),
}
NAMES = tuple(FAMILIES)


@functools.cache
def document(controls: tuple[str, ...], *, special: bool = True) -> dict[str, Any]:
    """A ``tokenizer.json`` of a byte-level BPE trained on our own documentation."""
    made = tokenizers.Tokenizer(models.BPE())
    # Line feeds end a piece, so that what is written behind them leaves them as they are.
    words = tokenizers.Regex(r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(words, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500, special_tokens=list(controls), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    texts = sorted(_ROOT.glob("docs/**/*.md"))
    made.train_from_iterator((path.read_text() for path in texts), trainer)
    decoded: dict[str, Any] = json.loads(made.to_str())
    for token in decoded["added_tokens"]:
        # As Qwen has it: markers of calls and reasoning are added, and not special.
        token["special"] = token["content"] not in ("<tool_call>", "</tool_call>", "<think>", "</think>")
    return decoded


@functools.cache
def tokenizer(name: str) -> Tokenizer:
    return Tokenizer(document(FAMILIES[name][0]))


def template(name: str) -> str:
    return (_TEMPLATES / f"{name}.jinja").read_text()


@functools.cache
def renderer(name: str, **options: Any) -> TemplateRenderer:
    _controls, family, values = FAMILIES[name]
    return TemplateRenderer(tokenizer(name), template(name), family=family, values=values, **options)


def said(renderer: TemplateRenderer, message: dict[str, Any]) -> str:
    """An answer as a model of this family writes it, to its last control token."""
    (end,) = renderer.stop_names
    return text_of(renderer.family, message) + end


def text_of(family: str, message: dict[str, Any]) -> str:
    """The same without the control token that ends it."""
    text = message["content"] or ""
    thought = message.get("reasoning_content")
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    if family == "think-hermes":
        if thought:
            text = f"<think>\n{thought}\n</think>\n\n{text}"
        for name, arguments in calls:
            line_feed = "\n" if text and not text.endswith("</think>\n\n") else ""
            text += f'{line_feed}<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
    elif family == "think-qwen-coder":
        if thought:
            text = f"<think>\n{thought}\n</think>\n{text}"
        for name, arguments in calls:
            values = "".join(
                f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
                "\n</parameter>\n"
                for key, value in json.loads(arguments).items()
            )
            line_feed = "\n" if message["content"] or "<tool_call>" in text else ""
            text += f"{line_feed}<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"
    elif family == "llama3" and calls:
        ((name, arguments),) = calls
        text = f'{{"name": "{name}", "parameters": {arguments}}}'
    elif family == "mistral-list":
        if calls:
            listed = ", ".join(
                f'{{"name": "{call["function"]["name"]}", "arguments": {call["function"]["arguments"]}, '
                f'"id": "{short_id(call["id"])}"}}'
                for call in message["tool_calls"]
            )
            text = f"[TOOL_CALLS] [{listed}]"
        else:
            text = f" {text}"
    elif family == "think":
        text = f"{thought or ''}\n</think>\n\n{text}"
    return text
