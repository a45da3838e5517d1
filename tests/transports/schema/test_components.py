"""The schemas say what the types say, and what is written below their fields."""

import jsonschema
import msgspec
import pytest

from responses_ws.protocol import client_events, object_shapes, request
from responses_ws.protocol.shapes import OneOf
from responses_ws.transports.schema.components import catalogue, components, field_texts, references
from responses_ws.transports.schema.examples import EXAMPLES
from tests.described import check


def test_a_schema_brings_all_it_refers_to() -> None:
    found = components([request.Request])

    assert {name for schema in found.values() for name in references(schema)} <= found.keys()
    assert {"Request", "InputItem", "InputText", "Tool", "HostedTool", "TextFormat"} <= found.keys()


@pytest.mark.parametrize("name", sorted(catalogue().keys() - {"InvalidCreate"}))  # which is never on the wire
def test_a_schema_is_one_and_says_what_it_is(name: str) -> None:
    shape = catalogue()[name]
    if isinstance(shape, OneOf):
        assert shape.description and shape.members
        return
    schema = components([shape])[name]

    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["description"]


def test_the_text_below_a_field_describes_it() -> None:
    schema = components([object_shapes.ResponseUsage])["ResponseUsage"]

    assert schema["properties"]["input_tokens"]["description"].startswith("The whole context")


def test_texts_are_inherited_until_they_are_written_anew() -> None:
    texts = field_texts(object_shapes.SocketErrorObject)

    assert texts["param"] == "The field of the request, as ``input[3].role``."
    assert texts["code"] == "For programs; see the protocol reference."


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_an_example_fits_its_schema_and_is_understood(name: str) -> None:
    example = EXAMPLES[name]

    check(name, example)
    if "type" in example:
        assert type(client_events.decode_frame(msgspec.json.encode(example))).__name__ == name
    else:
        assert type(request.decode_request(msgspec.json.encode(example))).__name__ == name


def test_null_and_limits_are_kept() -> None:
    fields = components([request.Request])["Request"]["properties"]

    assert fields["top_logprobs"]["anyOf"] == [{"type": "integer", "minimum": 0, "maximum": 20}, {"type": "null"}]
    assert {"type": "string", "enum": ["auto", "none", "required"]} in fields["tool_choice"]["anyOf"]
