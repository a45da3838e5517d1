import json
from typing import Any

import pytest

from responses_ws.protocol import errors
from responses_ws.protocol.errors import ApiError, response_error, websocket_error
from responses_ws.protocol.server_events import event_type

KINDS: dict[str, tuple[ApiError, int, dict[str, Any]]] = {
    "invalid request": (
        errors.InvalidRequest("Bad 'x'.", param="x"),
        400,
        {"message": "Bad 'x'.", "type": "invalid_request_error", "param": "x", "code": "invalid_value"},
    ),
    "with a code of its own": (
        errors.InvalidRequest("Bad.", code="invalid_type"),
        400,
        {"message": "Bad.", "type": "invalid_request_error", "param": None, "code": "invalid_type"},
    ),
    "previous response": (
        errors.PreviousResponseNotFound("resp_x"),
        400,
        {
            "message": "Previous response with id 'resp_x' not found.",
            "type": "invalid_request_error",
            "param": "previous_response_id",
            "code": "previous_response_not_found",
        },
    ),
    "no good key": (
        errors.Unauthorized("No."),
        401,
        {"message": "No.", "type": "invalid_request_error", "param": None, "code": "invalid_api_key"},
    ),
    "forbidden": (
        errors.PermissionDenied("No."),
        403,
        {"message": "No.", "type": "invalid_request_error", "param": None, "code": "permission_denied"},
    ),
    "not found": (
        errors.NotFound("No."),
        404,
        {"message": "No.", "type": "invalid_request_error", "param": None, "code": "not_found"},
    ),
    "model": (
        errors.ModelNotFound("m"),
        404,
        {
            "message": "The model 'm' does not exist or you do not have access to it.",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        },
    ),
    "too large": (
        errors.PayloadTooLarge("Big."),
        413,
        {"message": "Big.", "type": "invalid_request_error", "param": None, "code": "payload_too_large"},
    ),
    "rate": (
        errors.RateLimited("Later."),
        429,
        {"message": "Later.", "type": "rate_limit_error", "param": None, "code": "rate_limit_exceeded"},
    ),
    "server": (
        errors.ServerError("Sorry."),
        500,
        {"message": "Sorry.", "type": "server_error", "param": None, "code": "server_error"},
    ),
    "overloaded": (
        errors.Overloaded("Later."),
        503,
        {"message": "Later.", "type": "service_unavailable_error", "param": None, "code": "server_is_overloaded"},
    ),
}
every_kind = pytest.mark.parametrize(("error", "status", "body"), KINDS.values(), ids=KINDS)


@every_kind
def test_the_body_over_http_has_all_four_keys(error: ApiError, status: int, body: dict[str, Any]) -> None:
    assert error.status == status
    assert error.body() == body


@every_kind
def test_on_a_socket_it_is_nested_with_an_integer_status(error: ApiError, status: int, body: dict[str, Any]) -> None:
    frame = websocket_error(error)

    assert json.loads(frame) == {"type": "error", "sequence_number": 0, "status": status, "error": body}
    assert event_type(frame) == "error"


def test_a_named_lane_is_echoed() -> None:
    frame = websocket_error(errors.RateLimited("Later."), stream_id="a", sequence_number=3)

    event = json.loads(frame)
    assert (event["stream_id"], event["sequence_number"]) == ("a", 3)


def test_retry_hints_stand_where_each_client_looks() -> None:
    frame = websocket_error(errors.RateLimited("Later.", headers={"retry-after": "2"}))

    event = json.loads(frame)
    assert event["headers"] == {"retry-after": "2"}
    assert event["error"]["headers"] == {"retry-after": "2"}


def test_on_a_socket_the_code_is_always_a_string() -> None:
    error = errors.NotFound("No.")
    error.code = None

    assert json.loads(websocket_error(error))["error"]["code"] == "invalid_request_error"
    assert error.body()["code"] is None


def test_a_class_keeps_its_code_when_an_instance_has_another() -> None:
    errors.InvalidRequest("Bad.", code="invalid_json")

    assert errors.InvalidRequest("Bad.").code == "invalid_value"


FAILED = {
    "server": (errors.ServerError("a"), "server_error"),
    "overloaded": (errors.Overloaded("a"), "server_error"),
    "rate": (errors.RateLimited("a"), "rate_limit_exceeded"),
    "invalid": (errors.InvalidRequest("a", code="context_length_exceeded"), "invalid_prompt"),
    "gone": (errors.PreviousResponseNotFound("a"), "invalid_prompt"),
    "forbidden": (errors.PermissionDenied("a"), "server_error"),
}


@pytest.mark.parametrize(("error", "code"), FAILED.values(), ids=FAILED)
def test_a_failed_response_has_a_code_that_the_types_know(error: ApiError, code: str) -> None:
    from openai.types.responses import ResponseError

    told = response_error(error)

    assert told == {"code": code, "message": error.message}
    ResponseError.model_validate(told, strict=True)
