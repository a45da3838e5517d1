"""Holds what was really said against the documents that are published."""

import functools
from typing import Any

import jsonschema
from django.urls import resolve

from responses_ws.protocol.object_shapes import ErrorBody
from responses_ws.transports.schema import events
from responses_ws.transports.schema.asyncapi import asyncapi
from responses_ws.transports.schema.components import components
from responses_ws.transports.schema.openapi import openapi
from responses_ws.transports.schema.operations import OPERATIONS

HINT = "describe it in responses_ws/protocol/*_shapes.py, or in the event's struct"
NAMES = {events.type_of(event): event.__name__ for event in [*events.client(), *events.server()]}


def check_event(event: dict[str, Any]) -> None:
    """Raises AssertionError where an event is not as its schema says, to the last key."""
    assert event["type"] in NAMES, f"an event without a schema: {event}"
    check(NAMES[event["type"]], event)


def check(name: str, value: Any) -> None:
    """Raises AssertionError where ``value`` does not fit the schema of that name, or has keys that it does not name.

    Keys of objects that clients make are theirs.
    """
    error = jsonschema.exceptions.best_match(validator(name).iter_errors(value))
    assert error is None, f"{name}, at {error.json_path}: {error.message}; {HINT}"


def check_answer(method: str, path: str, status: int, body: Any) -> None:
    """The same for the JSON body of an HTTP answer, by what its route says of it."""
    name = resolve(path.partition("?")[0]).url_name
    (operation,) = [one for one in OPERATIONS if (one.url, one.method) == (name, method)]
    described = operation.answer if status == 200 else ErrorBody
    assert described is not None, f"{method} {path} answers with no object of ours"
    check(described.__name__, body)


@functools.cache
def validator(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": _closed()})


@functools.cache
def _closed() -> dict[str, Any]:
    """All schemas, those of our own objects without room for keys that they do not name."""
    schemas = asyncapi()["components"]["schemas"] | openapi()["components"]["schemas"]
    theirs = set(components(events.client()))
    closed = {}
    for name, schema in schemas.items():
        ours = name not in theirs and "properties" in schema
        closed[name] = {**schema, "additionalProperties": False} if ours else schema
    return {"schemas": closed}
