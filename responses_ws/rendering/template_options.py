"""A template renderer's options, and the files of a model that they name."""

import json
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from .gguf import read_metadata, token_names, tokenizer_document
from .parsing import FAMILIES
from .templates import TEMPLATES

Files = Mapping[str, bytes | memoryview]


class TemplateOptions(msgspec.Struct, frozen=True, kw_only=True, rename="upper", forbid_unknown_fields=True):
    """Options of `TemplateRenderer`, each by its name in capitals."""

    tokenizer: Any
    """Path of a ``tokenizer.json``, of the folder it is in, or of a GGUF file."""
    template: Any = None
    """Path of a chat template, or the name of one of ours (``hermes``). Default: the model's own, beside the tokenizer
    or in the GGUF file."""
    parser: str = "plain"
    """Family of models whose way of writing reasoning and calls it has."""
    thinking: Literal["template", "keep"] = "template"
    """Whether old reasoning is forgotten where the template leaves it out, or never."""
    kwargs: dict[str, Any] = {}
    """More variables for the template, as ``{"enable_thinking": false}``."""
    stop_tokens: list[str] = []
    """Names of control tokens that end an answer, beside the one that the template writes and those that the model's
    files name."""


class ModelFiles(msgspec.Struct, frozen=True):
    """What a model's files say of its tokenizer."""

    document: dict[str, Any]
    """As in ``tokenizer.json``."""
    template: str | None
    variables: dict[str, str]
    """``bos_token`` and such, for the template."""
    stop_tokens: list[str]


def read_options(options: Mapping[str, Any]) -> TemplateOptions:
    """Raises ValueError: an unknown, missing or mistyped key; the message begins with it."""
    known = [field.encode_name for field in msgspec.structs.fields(TemplateOptions)]
    for key in options:
        if key not in known:
            raise ValueError(f"{key} is not an option; there are {', '.join(known)}")
    if "TOKENIZER" not in options:
        raise ValueError("TOKENIZER is missing: a path of a tokenizer.json, its folder, or a GGUF file")
    try:
        read = msgspec.convert(dict(options), TemplateOptions)
    except msgspec.ValidationError as exc:
        what, _, where = str(exc).partition(" - at `$.")
        raise ValueError(f"{where.rstrip('`')}: {what}") from exc
    if read.parser not in FAMILIES:
        raise ValueError(f"PARSER: there is no family {read.parser!r}; there are {', '.join(sorted(FAMILIES))}")
    return read


def read_model(files: Files) -> ModelFiles:
    """What is known of a model from its GGUF file, or from the files around its ``tokenizer.json``.

    Raises:
        ValueError: there is no tokenizer, or it cannot be read.
    """
    first = next(iter(files), "")
    if first.endswith(".gguf"):
        metadata = read_metadata(memoryview(files[first]))
        variables = {f"{role}_token": name for role in ("bos", "eos") for name in token_names(metadata, role)}
        return ModelFiles(
            tokenizer_document(metadata),
            metadata.get("tokenizer.chat_template"),
            variables,
            token_names(metadata, "eos", "eot", "eom"),
        )
    name = first if first.endswith(".json") and first not in _OTHERS else "tokenizer.json"
    if name not in files:
        raise ValueError("there is no tokenizer.json")
    document = _json(files, name)
    if not isinstance(document.get("model"), dict):
        raise ValueError(f"{name} is not a tokenizer's")
    config, generation = _json(files, "tokenizer_config.json"), _json(files, "generation_config.json")
    named = {key: _name(config.get(key)) for key in _NAMED}
    variables = {key: name for key, name in named.items() if name is not None}
    names = {token["id"]: token["content"] for token in document.get("added_tokens") or []}
    ends = generation.get("eos_token_id")
    stops = [names[end] for end in (ends if isinstance(ends, list) else [ends]) if end in names]
    if "eos_token" in variables:
        stops.append(variables["eos_token"])
    return ModelFiles(document, _template(files, config), variables, stops)


def template_of(option: Any, model: ModelFiles) -> str:
    """The source of the template that is meant. Raises ValueError: there is none."""
    if isinstance(option, str):
        return TEMPLATES[option]
    if option is not None:
        return _text(next(iter(option.values())))
    if model.template is None:
        raise ValueError("TEMPLATE is missing, and the model's files have none")
    return model.template


_OTHERS = ("tokenizer_config.json", "generation_config.json", "config.json", "special_tokens_map.json")
_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")


def _template(files: Files, config: Mapping[str, Any]) -> str | None:
    if "chat_template.jinja" in files:
        return _text(files["chat_template.jinja"])
    given = config.get("chat_template")
    if isinstance(given, list):
        # Several, by what they are for.
        given = next((one.get("template") for one in given if one.get("name") == "default"), None)
    return given if isinstance(given, str) else None


def _name(token: Any) -> str | None:
    name = token.get("content") if isinstance(token, dict) else token
    return name if isinstance(name, str) else None


def _json(files: Files, name: str) -> dict[str, Any]:
    if name not in files:
        return {}
    try:
        decoded = json.loads(bytes(files[name]))
    except ValueError as exc:
        raise ValueError(f"{name} is not JSON: {exc}") from exc
    return decoded if isinstance(decoded, dict) else {}


def _text(content: bytes | memoryview) -> str:
    return str(content, "utf-8")
