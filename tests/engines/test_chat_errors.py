import json

import pytest

from responses_ws.engines.chat_errors import refusal, retry_hints

VLLM = "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens."
LLAMA = {"code": 400, "message": "the request exceeds the available size", "type": "exceed_context_size_error"}


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        pytest.param(401, {"error": {"message": "no key"}}, "auth", "no key", id="401"),
        pytest.param(403, "", "auth", "the engine answered 403", id="403-empty"),
        pytest.param(404, {"error": {"message": "no model"}}, "bad_request", "no model", id="404"),
        pytest.param(400, {"error": {"message": "bad"}}, "bad_request", "bad", id="400"),
        pytest.param(422, {"detail": [{"msg": "bad"}]}, "bad_request", '[{"msg":"bad"}]', id="422-detail"),
        pytest.param(400, {"error": LLAMA}, "context_length", LLAMA["message"], id="context-llama"),
        pytest.param(400, {"message": VLLM, "code": 400}, "context_length", VLLM, id="context-vllm"),
        pytest.param(
            400,
            {"error": {"message": "too long", "code": "context_length_exceeded"}},
            "context_length",
            "too long",
            id="context-openai",
        ),
        pytest.param(408, "", "timeout", "the engine answered 408", id="408"),
        pytest.param(504, "<html>", "timeout", "the engine answered 504", id="504-html"),
        pytest.param(429, {"error": "slow"}, "rate_limited", "slow", id="429-string"),
        pytest.param(503, [{"error": {"message": "busy"}}], "overloaded", "busy", id="503-list"),
        pytest.param(
            503,
            {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}},
            "unavailable",
            "Loading model",
            id="503-loading",
        ),
        pytest.param(529, "busy", "overloaded", "busy", id="529-text"),
        pytest.param(500, {"error": {"message": "boom"}}, "engine", "boom", id="500"),
        pytest.param(502, "<html>", "unavailable", "the engine answered 502", id="502"),
        pytest.param(302, "", "protocol", "the engine answered 302", id="302"),
    ],
)
def test_statuses_are_kinds(status, body, kind, message):
    encoded = body.encode() if isinstance(body, str) else json.dumps(body).encode()

    error = refusal(status, encoded, {})

    assert (error.kind, error.status) == (kind, status)
    assert error.message == message


def test_only_retry_hints_are_passed_on_and_not_without_end():
    headers = [("Retry-After", "3"), ("Set-Cookie", "a=b"), ("X-RateLimit-Limit-Requests", "9")]

    assert retry_hints(headers) == {"retry-after": "3", "x-ratelimit-limit-requests": "9"}
    assert retry_hints([("retry-after", "9" * 1000)]) == {}
    assert len(retry_hints([(f"x-ratelimit-{n}", "1") for n in range(100)])) == 16
