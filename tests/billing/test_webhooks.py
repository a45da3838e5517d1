"""Webhooks: signed as Standard Webhooks are, and never into our own network."""

import base64
import hashlib
import hmac
import time
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from asgiref.sync import sync_to_async

from responses_ws.billing import webhooks
from responses_ws.runtime.http import FetchFailed, Refused


def test_the_signature_is_that_of_the_standard() -> None:
    # Source: the example of the Standard Webhooks specification.
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body = b'{"test": 2432232314}'

    headers = webhooks.signed(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", body, now=1614265330)

    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_any_text_is_a_secret_and_none_signs_nothing() -> None:
    digest = hmac.new(b"ours", b"id.5.{}", hashlib.sha256).digest()

    assert webhooks.signed("ours", "id", b"{}", now=5)["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
    assert "webhook-signature" not in webhooks.signed("", "id", b"{}", now=5)


@pytest.mark.parametrize(
    "url",
    ["http://hooks.example.com/", "https://127.0.0.1/", "https://169.254.169.254/latest", "https://10.0.0.1:443/"],
)
def test_nobody_is_told_in_our_own_network(url: str) -> None:
    with pytest.raises(Refused):
        webhooks.tell(url, "id", {})


async def test_an_own_origin_is_told_wherever_it_is(settings: Any) -> None:
    heard: list[tuple[Any, Any]] = []

    async def hook(request: web.Request) -> web.Response:
        heard.append((dict(request.headers), await request.read()))
        return web.Response(status=204 if len(heard) == 1 else 302, headers={"Location": "/elsewhere"})

    application = web.Application()
    application.router.add_post("/hook", hook)
    async with TestServer(application, host="127.0.0.1") as server:
        origin = f"http://127.0.0.1:{server.port}"
        settings.RESPONSES_WS = {**settings.RESPONSES_WS, "WEBHOOK_ORIGINS": [origin], "WEBHOOK_SECRET": "s"}
        before = int(time.time())
        await sync_to_async(webhooks.tell)(f"{origin}/hook", "id_1", {"said": "ü"})
        with pytest.raises(FetchFailed, match="302"):
            await sync_to_async(webhooks.tell)(f"{origin}/hook", "id_1", {})

    headers, body = heard[0]
    lowered = {name.lower(): value for name, value in headers.items()}
    assert body == '{"said":"ü"}'.encode()
    assert (lowered["content-type"], lowered["webhook-id"]) == ("application/json", "id_1")
    assert before <= int(lowered["webhook-timestamp"]) <= time.time()
    expected = webhooks.signed("s", "id_1", body, now=float(lowered["webhook-timestamp"]))
    assert lowered["webhook-signature"] == expected["webhook-signature"]
