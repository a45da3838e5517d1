import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from responses_ws.engines.script import pieces_of
from responses_ws.engines.synthesis import arguments_for, synthesise

TEXT = "Book 3 seats to San Francisco on /tmp/plan.txt please"


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        pytest.param({"const": 5}, 5, id="const"),
        pytest.param({"enum": ["a", "b"]}, "a", id="enum-first"),
        pytest.param({"enum": ["train", "seats"]}, "seats", id="enum-named-in-the-text"),
        pytest.param({"type": "string", "default": "x"}, "x", id="default"),
        pytest.param({"type": "string", "examples": ["y"]}, "y", id="example"),
        pytest.param({"type": "string"}, "San Francisco", id="string"),
        pytest.param({"type": "string", "maxLength": 3}, "San", id="max-length"),
        pytest.param({"type": "string", "format": "date"}, "2026-01-01", id="format"),
        pytest.param({"type": "integer"}, 3, id="integer"),
        pytest.param({"type": "integer", "minimum": 10}, 10, id="minimum"),
        pytest.param({"type": "number", "exclusiveMaximum": 2}, 1, id="exclusive-maximum"),
        pytest.param({"type": "boolean"}, False, id="boolean"),
        pytest.param({"type": ["string", "null"]}, None, id="nullable"),
        pytest.param({"anyOf": [{"type": "string"}, {"type": "null"}]}, None, id="any-of-null"),
        pytest.param({"oneOf": [{"type": "integer"}, {"type": "string"}]}, 3, id="one-of"),
        pytest.param({"type": "array", "items": {"type": "integer"}}, [3], id="array"),
        pytest.param({"type": "array", "items": {"type": "integer"}, "minItems": 2}, [3, 1], id="min-items"),
        pytest.param(
            {
                "type": "object",
                "properties": {"file_path": {"type": "string"}, "more": {"type": "string"}},
                "required": ["file_path"],
            },
            {"file_path": "/tmp/plan.txt"},
            id="required-only",
        ),
        pytest.param(
            {
                "type": "object",
                "properties": {"where": {"$ref": "#/$defs/place"}},
                "required": ["where"],
                "$defs": {"place": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}},
            },
            {"where": {"n": 3}},
            id="ref",
        ),
        pytest.param(
            {
                "allOf": [
                    {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]},
                    {"properties": {"b": {"const": 2}}, "required": ["b"]},
                ]
            },
            {"a": 1, "b": 2},
            id="all-of",
        ),
    ],
)
def test_values_fit_and_come_from_the_text(schema, expected):
    value = synthesise(schema, TEXT)

    assert value == expected
    jsonschema.validate(value, schema)


def test_a_schema_that_refers_to_itself_ends():
    tree = {
        "type": "object",
        "properties": {"left": {"$ref": "#"}, "kids": {"type": "array", "items": {"$ref": "#"}}},
        "required": ["left", "kids"],
    }

    assert isinstance(synthesise(tree, TEXT)["left"]["left"], dict)
    assert synthesise({"$ref": "#"}, TEXT) is None


@pytest.mark.parametrize("schema", [None, True, {}, {"type": "string"}, {"properties": None}, {"required": ["a"]}])
def test_arguments_are_an_object_whatever_the_schema(schema):
    assert isinstance(arguments_for(schema, TEXT), dict)


@given(st.text())
def test_pieces_join_to_the_text(text):
    assert "".join(pieces_of(text)) == text
