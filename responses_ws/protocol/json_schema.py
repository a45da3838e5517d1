"""JSON schemas of clients: whether they are schemas, and whether a model's words fit them.

Both cost what the schema and the value are large, and no more: no regular expression of a client is run, nothing is
fetched, and a schema that branches without end is given up on.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from .errors import InvalidRequest

MAX_STEPS = 100_000
"""Subschemas tried for one value, about a tenth of a second. What takes more passes unjudged."""

_TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
_SCHEMA = ("not", "items", "additionalProperties", "contains", "propertyNames", "if", "then", "else")
_SCHEMAS = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMED_SCHEMAS = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
_CLASSES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


def check_schema(schema: Any, param: str, *, max_bytes: int) -> None:
    """Refuse what is no JSON schema. Raises InvalidRequest, whose message names the place within ``param``.

    Source: the JSON Schema vocabulary of 2020-12; as with OpenAI, references lead nowhere but into the schema.
    """
    size = len(msgspec.json.encode(schema))
    if size > max_bytes:
        raise InvalidRequest(f"The schema is too large: {size} bytes, at most {max_bytes} are allowed.", param=param)
    for fault in _faults(schema, schema, "$"):
        raise InvalidRequest(f"Invalid schema: {fault}.", param=param)


def _faults(schema: Any, root: Any, where: str) -> Iterator[str]:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        yield f"{where} is neither an object nor a boolean"
        return
    yield from _keyword_faults(schema, root, where)
    for key in _SCHEMA:
        if key in schema:
            yield from _faults(schema[key], root, f"{where}.{key}")
    for key in _SCHEMAS:
        if key in schema:
            if not isinstance(schema[key], list) or not schema[key]:
                yield f"{where}.{key} is not a list of schemas"
                return
            for index, inner in enumerate(schema[key]):
                yield from _faults(inner, root, f"{where}.{key}[{index}]")
    for key in _NAMED_SCHEMAS:
        if key in schema:
            if not isinstance(schema[key], dict):
                yield f"{where}.{key} is not an object of schemas"
                return
            for name, inner in schema[key].items():
                yield from _faults(inner, root, f"{where}.{key}.{name}")


def _keyword_faults(schema: dict[str, Any], root: Any, where: str) -> Iterator[str]:
    """What is wrong with the keywords that hold no schemas."""
    types = schema.get("type", ())
    for name in [types] if isinstance(types, str) else types if isinstance(types, list | tuple) else [types]:
        if name not in _TYPES:
            yield f"{where}.type is {name!r}, which is not a type"
    required = schema.get("required", ())
    if not isinstance(required, list | tuple) or not all(isinstance(name, str) for name in required):
        yield f"{where}.required is not a list of strings"
    if not isinstance(schema.get("enum", []), list):
        yield f"{where}.enum is not a list"
    for key in _COUNTS:
        value = schema.get(key, 0)
        if not _is_a(value, "integer") or value < 0:
            yield f"{where}.{key} is not a count"
    for key in _NUMBERS:
        value = schema.get(key, 1)
        if not _is_a(value, "number") or (key == "multipleOf" and value <= 0):
            yield f"{where}.{key} is not a {'positive ' if key == 'multipleOf' else ''}number"
    if "$ref" in schema:
        try:
            _target(schema["$ref"], root)
        except (LookupError, ValueError, TypeError, AttributeError):
            yield f"{where}.$ref does not lead to a place in this schema"


def _target(reference: str, root: Any) -> Any:
    """What a JSON pointer such as ``#/$defs/node`` leads to. Raises one of several errors if it leads nowhere."""
    if reference != "#" and not reference.startswith("#/"):
        raise ValueError("not a pointer into this schema")
    target = root
    for key in reference.split("/")[1:]:
        key = key.replace("~1", "/").replace("~0", "~")
        target = target[int(key)] if isinstance(target, list) else target[key]
    if not isinstance(target, dict | bool):
        raise TypeError("not a schema")
    return target


def misfit(schema: Any, text: str) -> str | None:
    """Why ``text`` is not the JSON of a value that fits ``schema``; None if it is.

    ``schema`` has been checked. Not judged: ``pattern``, ``format`` and what depends on patterns, conditions
    (``if``), ``contains``, and ``unevaluated…``.
    """
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return "it is not valid JSON"
    try:
        return _Judge(schema).misfit(schema, value, "$")
    except (_TooCostly, RecursionError):
        return None
    except (LookupError, ValueError, TypeError, AttributeError):
        # A tool's schema, which nobody has checked.
        return None


class _TooCostly(Exception):
    """More steps than a value is worth."""


class _Judge:
    """One value against one schema."""

    __slots__ = ("root", "steps")

    def __init__(self, root: Any) -> None:
        self.root = root
        self.steps = MAX_STEPS

    def misfit(self, schema: Any, value: Any, where: str) -> str | None:
        self._pay(1)
        if isinstance(schema, bool):
            return None if schema else f"{where} is not allowed"
        types = schema.get("type")
        if types is not None:
            names = [types] if isinstance(types, str) else types
            if not any(_is_a(value, name) for name in names):
                return f"{where} is not of type {' or '.join(names)}"
        if "const" in schema and _key(value) != _key(schema["const"]):
            return f"{where} is not the constant"
        if "enum" in schema:
            self._pay(len(schema["enum"]))
            if all(_key(value) != _key(member) for member in schema["enum"]):
                return f"{where} is not one of the enum"
        if "$ref" in schema:
            found = self.misfit(_target(schema["$ref"], self.root), value, where)
            if found:
                return found
        return self._combined(schema, value, where) or self._by_kind(schema, value, where)

    def _combined(self, schema: dict[str, Any], value: Any, where: str) -> str | None:
        for inner in schema.get("allOf", ()):
            found = self.misfit(inner, value, where)
            if found:
                return found
        if "anyOf" in schema and all(self.misfit(inner, value, where) for inner in schema["anyOf"]):
            return f"{where} fits none of the alternatives"
        if "oneOf" in schema and sum(not self.misfit(inner, value, where) for inner in schema["oneOf"]) != 1:
            return f"{where} does not fit exactly one of the alternatives"
        if "not" in schema and not self.misfit(schema["not"], value, where):
            return f"{where} is what it must not be"
        return None

    def _by_kind(self, schema: dict[str, Any], value: Any, where: str) -> str | None:
        if isinstance(value, dict):
            return self._object(schema, value, where)
        if isinstance(value, list):
            return self._array(schema, value, where)
        if isinstance(value, str):
            return None if _is_between(len(value), schema, "Length") else f"{where} is too short or too long"
        if _is_a(value, "number"):
            return _number_misfit(schema, value, where)
        return None

    def _object(self, schema: dict[str, Any], value: dict[str, Any], where: str) -> str | None:
        for name in schema.get("required", ()):
            if name not in value:
                return f"{where} lacks {name!r}"
        if not _is_between(len(value), schema, "Properties"):
            return f"{where} has too few or too many properties"
        properties = schema.get("properties", {})
        # With patterns, which are not run, anything may be meant.
        others = True if "patternProperties" in schema else schema.get("additionalProperties", True)
        for name, inner in value.items():
            if name not in properties and others is False:
                return f"{where} has {name[:100]!r}, which is not allowed"
            found = self.misfit(properties.get(name, others), inner, f"{where}.{name[:100]}")
            if found:
                return found
        return None

    def _array(self, schema: dict[str, Any], value: list[Any], where: str) -> str | None:
        if not _is_between(len(value), schema, "Items"):
            return f"{where} has too few or too many items"
        first = schema.get("prefixItems", ())
        others = schema.get("items", True)
        for index, inner in enumerate(value):
            found = self.misfit(first[index] if index < len(first) else others, inner, f"{where}[{index}]")
            if found:
                return found
        if schema.get("uniqueItems") is True and len(set(map(_key, value))) != len(value):
            return f"{where} has equal items"
        return None

    def _pay(self, steps: int) -> None:
        self.steps -= steps
        if self.steps < 0:
            raise _TooCostly


def _is_a(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer":
        # 1.0 is one, too.
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return isinstance(value, _CLASSES.get(kind, ()))


def _is_between(count: int, schema: dict[str, Any], noun: str) -> bool:
    return bool(schema.get(f"min{noun}", 0) <= count <= schema.get(f"max{noun}", count))


def _number_misfit(schema: dict[str, Any], value: float, where: str) -> str | None:
    too_small = value < schema.get("minimum", value)
    too_large = value > schema.get("maximum", value)
    if "exclusiveMinimum" in schema:
        too_small |= value <= schema["exclusiveMinimum"]
    if "exclusiveMaximum" in schema:
        too_large |= value >= schema["exclusiveMaximum"]
    if too_small or too_large:
        return f"{where} is too {'small' if too_small else 'large'}"
    step = schema.get("multipleOf")
    if step is not None and not _is_multiple(value, step):
        return f"{where} is not a multiple of {step}"
    return None


def _is_multiple(value: float, step: float) -> bool:
    if isinstance(value, int) and isinstance(step, int):
        return value % step == 0
    try:
        return (value / step).is_integer()
    except OverflowError:
        return True


def _key(value: Any) -> Any:
    """Equal for values that JSON calls equal, and only for them: 1 is 1.0, and is not true."""
    if isinstance(value, list):
        return ("list", *map(_key, value))
    if isinstance(value, dict):
        return ("dict", frozenset((name, _key(inner)) for name, inner in value.items()))
    return (isinstance(value, bool), value)
