"""The HTTP side as an OpenAPI 3.1 document.

Source: https://spec.openapis.org/oas/v3.1.1.html
"""

import re
from typing import Any

import msgspec

import responses_ws
from responses_ws.protocol import errors
from responses_ws.protocol.errors import ApiError
from responses_ws.protocol.object_shapes import CompressionHeader, ErrorBody
from responses_ws.protocol.shapes import SCHEMAS

from . import events
from .components import Schema, components, reference
from .operations import OPERATIONS, Operation

JSON = "application/json"
STREAM = "text/event-stream"

ABOUT = (
    "The OpenAI Responses API. Official clients work with it as they are. "
    "WebSocket mode, on the path of `POST /responses`, is described by `asyncapi.json`."
)
_ANYWHERE: tuple[type[ApiError], ...] = (errors.Unauthorized, errors.ServerError)
_WITH_BODY: tuple[type[ApiError], ...] = (errors.PayloadTooLarge, errors.UnsupportedEncoding)


def openapi(*, base: str = "/v1") -> dict[str, Any]:
    """The document. ``base`` is the path, or the URL, that the API is mounted at."""
    roots = [struct for operation in OPERATIONS for struct in (operation.body, operation.answer) if struct]
    schemas = components([*roots, ErrorBody, *events.streamed()])
    schemas["StreamEvent"] = {
        "title": "StreamEvent",
        "description": "The `data` of one server-sent event; the `event` before it repeats its `type`.",
        "anyOf": [reference(event) for event in events.streamed()],
    }
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        path = paths.setdefault(operation.path, _path_parameters(operation.path))
        path[operation.method] = _operation(operation)
    return {
        "openapi": "3.1.1",
        "info": {"title": "Responses API", "version": responses_ws.__version__, "description": ABOUT},
        "servers": [{"url": base or "/"}],
        "security": [{"key": []}],
        "tags": [{"name": name} for name in dict.fromkeys(operation.tag for operation in OPERATIONS)],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {error.__name__: _refusal(error) for error in _refusals_of(*OPERATIONS)},
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "An API key."},
                "admin_key": {"type": "http", "scheme": "bearer", "description": "An organization's admin key."},
            },
        },
    }


def _operation(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": f"{operation.method}_{operation.url}",
        "summary": operation.summary,
        "tags": [operation.tag],
        "responses": {"200": _answer(operation)},
    }
    if not operation.needs_key:
        described["security"] = []
    elif operation.key != "key":
        described["security"] = [{operation.key: []}]
    compression = CompressionHeader if operation.body else None
    parameters = [*_parameters("header", compression), *_parameters("header", operation.headers)]
    parameters += _parameters("query", operation.query)
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": {JSON: {"schema": reference(operation.body)}}}
    for error in _refusals_of(operation):
        described["responses"][str(error.status)] = {"$ref": f"#/components/responses/{error.__name__}"}
    return described


def _answer(operation: Operation) -> dict[str, Any]:
    schema = reference(operation.answer) if operation.answer else {}
    content = {operation.media_type: {"schema": schema}}
    if operation.streams:
        content[STREAM] = {"schema": {"$ref": SCHEMAS + "StreamEvent"}}
    return {"description": "As asked for.", "content": content}


def _path_parameters(path: str) -> dict[str, Any]:
    names = re.findall(r"{(\w+)}", path)
    if not names:
        return {}
    return {
        "parameters": [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    }


def _parameters(place: str, struct: type[msgspec.Struct] | None) -> list[Schema]:
    if struct is None:
        return []
    schema = components([struct])[struct.__name__]
    return [
        {
            "name": name,
            "in": place,
            "required": name in schema["required"],
            "description": field.get("description", ""),
            "schema": _without_null(field),
        }
        for name, field in schema["properties"].items()
    ]


def _without_null(field: Schema) -> Schema:
    """A parameter's schema: it is there or not, and never null."""
    choices = [choice for choice in field.get("anyOf", ()) if choice != {"type": "null"}]
    kept = {key: value for key, value in field.items() if key not in ("description", "anyOf")}
    return kept | (choices[0] if len(choices) == 1 else {"anyOf": choices} if choices else {})


def _refusals_of(*operations: Operation) -> list[type[ApiError]]:
    """The errors that some of these routes may give, by status."""
    found: set[type[ApiError]] = set()
    for operation in operations:
        found |= {
            *operation.errors,
            *(_ANYWHERE if operation.needs_key else ()),
            *(_WITH_BODY if operation.body else ()),
        }
    return sorted(found, key=lambda error: error.status)


def _refusal(error: type[ApiError]) -> dict[str, Any]:
    # The docstring begins with the status, which is the key here.
    text = (error.__doc__ or "").partition("\n")[0].partition(": ")[2]
    return {"description": text[:1].upper() + text[1:], "content": {JSON: {"schema": reference(ErrorBody)}}}
