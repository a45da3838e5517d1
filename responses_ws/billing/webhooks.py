"""Telling somebody else's server, signed."""

import base64
import hashlib
import hmac
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from asgiref.sync import async_to_sync

from responses_ws.conf import app_settings
from responses_ws.runtime.http import Gate, Poster, origin_of, post

SECONDS = 10.0
PREFIX = "whsec_"
JSON = {"content-type": "application/json"}


def tell(url: str, event_id: str, body: Mapping[str, Any]) -> None:
    """POST ``body`` as JSON. Blocks; raises Refused, FetchFailed.

    The headers are ``webhook-id``, the same at every try, by which a receiver knows what it has had already;
    ``webhook-timestamp`` in seconds since 1970; and with a ``WEBHOOK_SECRET`` ``webhook-signature``.

    Source: Standard Webhooks.
    """
    encoded = msgspec.json.encode(body)
    headers = {**JSON, **signed(app_settings.WEBHOOK_SECRET, event_id, encoded)}
    async_to_sync(post)(url, _gate(), encoded, headers=headers, seconds=SECONDS)


def poster(url: str) -> Poster:
    """What tells ``url`` many things, within the same bounds."""
    return Poster(url, _gate(), seconds=SECONDS)


def signed(secret: str, event_id: str, body: bytes, now: float | None = None) -> dict[str, str]:
    """The headers that say what it is, and who says so."""
    moment = str(int(time.time() if now is None else now))
    headers = {"webhook-id": event_id, "webhook-timestamp": moment}
    if secret:
        key = base64.b64decode(secret.removeprefix(PREFIX)) if secret.startswith(PREFIX) else secret.encode()
        digest = hmac.new(key, b".".join((event_id.encode(), moment.encode(), body)), hashlib.sha256).digest()
        headers["webhook-signature"] = f"v1,{base64.b64encode(digest).decode()}"
    return headers


def _gate() -> Gate:
    return Gate(trusted=frozenset(map(origin_of, app_settings.WEBHOOK_ORIGINS)))
