"""The HTTP document is valid, and names every route."""

from typing import Any

import pytest
from django.urls import Resolver404, resolve
from openapi_spec_validator import OpenAPIV31SpecValidator

from responses_ws import urls
from responses_ws.protocol.errors import ApiError
from responses_ws.transports.schema.openapi import openapi
from responses_ws.transports.schema.operations import OPERATIONS, Operation

METHODS = ("get", "post", "put", "patch", "delete")


def test_the_document_is_valid_openapi() -> None:
    assert [str(error) for error in OpenAPIV31SpecValidator(openapi()).iter_errors()] == []


def test_every_method_of_every_url_is_in_the_document() -> None:
    served = {
        (pattern.name, method)
        for pattern in urls.urlpatterns
        for method in METHODS
        if hasattr(pattern.callback.view_class, method)
    }

    described = {(operation.url, operation.method) for operation in OPERATIONS}

    assert described == served, "add an Operation to responses_ws/transports/schema/operations.py"


@pytest.mark.parametrize("operation", [pytest.param(one, id=f"{one.method} {one.path}") for one in OPERATIONS])
def test_a_path_leads_to_its_url(operation: Operation) -> None:
    path = operation.path.replace("{", "").replace("}", "")

    try:
        match = resolve(f"/v1{path}")
    except Resolver404:
        match = None

    assert match is not None and match.url_name == operation.url


def test_a_refusal_says_what_its_status_means() -> None:
    document = openapi()

    for operation in OPERATIONS:
        described = document["paths"][operation.path][operation.method]["responses"]
        for error in operation.errors:
            name = described[str(error.status)]["$ref"].rpartition("/")[2]
            said = document["components"]["responses"][name]["description"]
            assert said and f"{error.status}: {said}".lower() == _first_line(error).lower()


def test_no_parameter_is_ever_null() -> None:
    document = openapi()

    listed = [
        parameter["schema"]
        for path in document["paths"].values()
        for described in path.values()
        if isinstance(described, dict)
        for parameter in described.get("parameters", ())
    ]

    assert {"type": "integer", "minimum": 1, "maximum": 100, "default": 20} in listed
    assert not [schema for schema in listed if "null" in str(schema)]


def _first_line(error: type[ApiError]) -> str:
    return (error.__doc__ or "").partition("\n")[0]


def test_a_stream_has_no_events_of_the_socket_alone() -> None:
    schemas: dict[str, Any] = openapi()["components"]["schemas"]

    streamed = {choice["$ref"].rpartition("/")[2] for choice in schemas["StreamEvent"]["anyOf"]}

    assert {"ResponseCreated", "OutputTextDelta", "ResponseFailed"} <= streamed
    assert streamed.isdisjoint({"Error", "SteerAccepted", "ResponseDone"})


def test_the_server_is_where_the_api_is_mounted() -> None:
    assert openapi(base="/api/v1")["servers"] == [{"url": "/api/v1"}]
