"""JSON Schemas of the types that parse and emit, by name, as both documents hold them."""

import ast
import functools
import importlib
import inspect
import threading
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

import msgspec

from responses_ws.protocol import (
    client_events,
    compaction,
    conversations,
    item_shapes,
    moderation,
    object_shapes,
    request,
    server_events,
    tool_shapes,
    usage_shapes,
)
from responses_ws.protocol.server_events import ServerEvent
from responses_ws.protocol.shapes import SCHEMAS, OneOf

from .examples import EXAMPLES

Schema = dict[str, Any]

MODULES: tuple[ModuleType, ...] = (
    *(request, moderation, compaction, conversations, client_events, server_events),
    *(item_shapes, tool_shapes, object_shapes, usage_shapes),
)
"""Where a name in ``shape("…")`` is looked up."""


def components(roots: Iterable[type[msgspec.Struct]]) -> dict[str, Schema]:
    """The schemas of these structs and of all they refer to, sorted by name."""
    found: dict[str, Schema] = {}
    wanted = {root.__name__ for root in roots}
    while wanted:
        found.update((name, _schema(name)) for name in wanted)
        wanted = {name for schema in found.values() for name in references(schema)} - found.keys()
    return dict(sorted(found.items()))


def reference(struct: type[msgspec.Struct]) -> Schema:
    """Where a struct's schema is."""
    return {"$ref": SCHEMAS + struct.__name__}


def references(schema: Any) -> Iterator[str]:
    """The names of the schemas that one refers to."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"].removeprefix(SCHEMAS)
        for value in schema.values():
            yield from references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from references(value)


@functools.cache
def catalogue() -> dict[str, type[msgspec.Struct] | OneOf]:
    """All shapes by name."""
    named: dict[str, type[msgspec.Struct] | OneOf] = {}
    for module in MODULES:
        for name, value in vars(module).items():
            is_own = isinstance(value, type) and value.__module__ == module.__name__
            if isinstance(value, OneOf) or (is_own and issubclass(value, msgspec.Struct)):
                assert name not in named, f"two shapes are called {name}"
                named[name] = value
    return named


@functools.cache
def _schema(name: str) -> Schema:
    """One schema, made once: nobody changes it."""
    shape = catalogue()[name]
    if isinstance(shape, OneOf):
        members = [reference(member) for member in shape.members]
        return {"title": name, "description": shape.description, "anyOf": members}
    _, schemas = msgspec.json.schema_components([shape], ref_template=SCHEMAS + "{name}")
    schema: Schema = _tidy(schemas[name])
    fields = schema["properties"]
    texts = field_texts(shape)
    for field in msgspec.structs.fields(shape):
        if field.name in texts:
            fields[field.encode_name]["description"] = texts[field.name]
    if issubclass(shape, ServerEvent):
        # What we send has its defaults written out.
        schema["required"] = [field for field in fields if field in schema["required"] or "default" in fields[field]]
        for field in fields.values():
            field.pop("default", None)
    schema["description"] = text_of(shape)
    if name in EXAMPLES:
        schema["examples"] = [EXAMPLES[name]]
    return schema


def text_of(struct: type) -> str:
    """What a struct's docstring says to those who use it: all but where the rule comes from."""
    paragraphs = inspect.cleandoc(struct.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(one.split()) for one in paragraphs if not one.startswith("Source:"))


def _tidy(schema: Any) -> Any:
    """Without what only restates: the type beside a reference, null as a default, a choice of one."""
    if isinstance(schema, list):
        return [_tidy(value) for value in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return {"$ref": schema["$ref"]}
    restated = {"discriminator"} | ({"type"} if "anyOf" in schema else set())
    tidied = {key: _tidy(value) for key, value in schema.items() if key not in restated}
    if tidied.get("default", ...) is None:
        del tidied["default"]
    if len(tidied.get("enum", ())) == 1:
        tidied["const"] = tidied.pop("enum")[0]
    return tidied


_parsing = threading.Lock()


def field_texts(struct: type) -> dict[str, str]:
    """What the strings below a struct's fields say, those of its bases included."""
    texts: dict[str, str] = {}
    for cls in reversed(struct.__mro__):
        if cls.__module__.startswith("responses_ws."):
            texts |= _texts_of_module(cls.__module__).get(cls.__name__, {})
    return texts


@functools.cache
def _texts_of_module(name: str) -> dict[str, dict[str, str]]:
    source = inspect.getsource(importlib.import_module(name))
    # Two threads that parse at once can make Python 3.11 raise SystemError.
    with _parsing:
        tree = ast.parse(source)
    texts: dict[str, dict[str, str]] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            texts[node.name] = dict(_texts_of_class(node))
    return texts


def _texts_of_class(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in zip(node.body, node.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            yield field.target.id, " ".join(str(below.value.value).split())
