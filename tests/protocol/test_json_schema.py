import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from responses_ws.protocol.errors import InvalidRequest
from responses_ws.protocol.json_schema import check_schema, misfit

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 1}, "age": {"type": ["integer", "null"], "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            "required": ["children"],
        }
    },
}
BRANCHING = {
    "$defs": {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)},
    "$ref": "#/$defs/d0",
}
BRANCHING["$defs"]["d40"] = {"type": "string"}  # type: ignore[index]

FITS: dict[str, tuple[Any, str, str | None]] = {
    "whole": (PERSON, '{"name": "Ada", "age": 36}', None),
    "null is allowed": (PERSON, '{"name": "Ada", "age": null}', None),
    "lacks one": (PERSON, '{"name": "Ada"}', "$ lacks 'age'"),
    "one too many": (PERSON, '{"name": "Ada", "age": 1, "x": 2}', "$ has 'x', which is not allowed"),
    "wrong type": (PERSON, '{"name": 1, "age": 1}', "$.name is not of type string"),
    "of several": (PERSON, '{"name": "A", "age": "1"}', "$.age is not of type integer or null"),
    "a bool is no number": (PERSON, '{"name": "A", "age": true}', "$.age is not of type integer or null"),
    "too small": (PERSON, '{"name": "A", "age": -1}', "$.age is too small"),
    "too short": (PERSON, '{"name": "", "age": 1}', "$.name is too short or too long"),
    "not JSON": (PERSON, "Sure! Here it is: {}", "it is not valid JSON"),
    "fenced": (PERSON, '```json\n{"name": "Ada", "age": 36}\n```', "it is not valid JSON"),
    "recursive": (TREE, '{"children": [{"children": []}]}', None),
    "recursive, deep down": (TREE, '{"children": [{"children": [{}]}]}', "$.children[0].children[0] lacks 'children'"),
    "anything": (True, "1", None),
    "nothing": (False, "1", "$ is not allowed"),
    "1 is not true": ({"enum": [True]}, "1", "$ is not one of the enum"),
    "1 is 1.0": ({"const": 1.0}, "1", None),
    "equal items": ({"uniqueItems": True}, '[{"a": 1}, {"a": 1.0}]', "$ has equal items"),
    "patterns are not judged": ({"type": "string", "pattern": "(a+)+$"}, '"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"', None),
    "a schema that never ends": ({"$ref": "#"}, "1", None),
    "one that branches without end": (BRANCHING, "1", None),
    "a tool's schema that is none": ({"properties": 3, "required": 4}, "{}", None),
}


@pytest.mark.parametrize(("schema", "text", "fault"), FITS.values(), ids=FITS)
def test_what_fits_and_what_does_not(schema: Any, text: str, fault: str | None) -> None:
    assert misfit(schema, text) == fault


INVALID: dict[str, tuple[Any, str]] = {
    "an unknown type": ({"type": "text"}, "$.type is 'text', which is not a type"),
    "a type that is none": ({"type": 3}, "$.type is 3, which is not a type"),
    "deep down": (
        {"properties": {"a": {"items": {"type": "strin"}}}},
        "$.properties.a.items.type is 'strin', which is not a type",
    ),
    "properties": ({"properties": []}, "$.properties is not an object of schemas"),
    "items of the old form": ({"items": [{}]}, "$.items is neither an object nor a boolean"),
    "no alternatives": ({"anyOf": []}, "$.anyOf is not a list of schemas"),
    "required": ({"required": "a"}, "$.required is not a list of strings"),
    "enum": ({"enum": "a"}, "$.enum is not a list"),
    "a negative count": ({"minItems": -1}, "$.minItems is not a count"),
    "no number": ({"maximum": "3"}, "$.maximum is not a number"),
    "a step of nothing": ({"multipleOf": 0}, "$.multipleOf is not a positive number"),
    "elsewhere": ({"$ref": "http://127.0.0.1/x"}, "$.$ref does not lead to a place in this schema"),
    "nowhere": ({"$ref": "#/$defs/a"}, "$.$ref does not lead to a place in this schema"),
    "no reference": ({"$ref": 1}, "$.$ref does not lead to a place in this schema"),
}


@pytest.mark.parametrize(("schema", "fault"), INVALID.values(), ids=INVALID)
def test_what_is_no_schema_is_refused(schema: Any, fault: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_schema(schema, "text.format.schema", max_bytes=1000)

    assert (caught.value.message, caught.value.param) == (f"Invalid schema: {fault}.", "text.format.schema")


@pytest.mark.parametrize("schema", [PERSON, TREE, True, {}, {"title": "x", "x-mine": 1}], ids=str)
def test_schemas_pass(schema: Any) -> None:
    check_schema(schema, "p", max_bytes=1000)


def test_a_schema_has_a_size_limit() -> None:
    schema = {"title": "x" * 100}
    size = len(json.dumps(schema, separators=(",", ":")))
    check_schema(schema, "p", max_bytes=size)

    with pytest.raises(InvalidRequest, match="too large"):
        check_schema(schema, "p", max_bytes=size - 1)


scalars = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 1.0]) | st.sampled_from(["", "a", "bb"])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
kinds = st.sampled_from(["string", "number", "integer", "boolean", "object", "array", "null"])
plain = {
    "type": kinds | st.lists(kinds, min_size=1, max_size=2, unique=True),
    "enum": st.lists(values, min_size=1, max_size=3),
    "const": values,
    "minimum": st.integers(-2, 2),
    "exclusiveMaximum": st.integers(-2, 2),
    "multipleOf": st.sampled_from([1, 2, 0.5]),
    "minLength": st.integers(0, 2),
    "maxLength": st.integers(0, 2),
    "maxItems": st.integers(0, 2),
    "uniqueItems": st.booleans(),
    "minProperties": st.integers(0, 2),
    "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
}


def with_inner(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=2)
    keywords = {
        **plain,
        "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
        "additionalProperties": inner,
        "items": inner,
        "prefixItems": some,
        "anyOf": some,
        "oneOf": some,
        "allOf": some,
        "not": inner,
    }
    return st.fixed_dictionaries({}, optional=keywords)


schemas = st.recursive(st.booleans() | st.fixed_dictionaries({}, optional=plain), with_inner, max_leaves=4)


@given(schemas, values)
def test_it_judges_as_the_reference_implementation_does(schema: Any, value: Any) -> None:
    check_schema(schema, "p", max_bytes=100_000)

    assert (misfit(schema, json.dumps(value)) is None) == jsonschema.Draft202012Validator(schema).is_valid(value)
