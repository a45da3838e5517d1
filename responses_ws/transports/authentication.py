"""Who is at the door: one authenticator for HTTP and WebSocket, and the seam for the host project's own."""

import secrets
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping
from hashlib import blake2b
from sys import intern
from typing import Any

from django.utils.module_loading import import_string

from responses_ws.conf import app_settings
from responses_ws.models import ApiKey
from responses_ws.protocol.errors import Unauthorized
from responses_ws.runtime import dbpool
from responses_ws.serving.admission import Principal

SECONDS_CACHED = 30.0
"""How long a key's answer is believed; a revoked key is refused at the latest after this."""
_MAX_CACHED = 10_000
_PROCESS = secrets.token_bytes(32)


class Authenticator(ABC):
    """Turns request headers into a principal. Name your subclass in ``RESPONSES_WS["AUTHENTICATOR"]``.

    One instance per process. It is asked at every HTTP request, at the WebSocket handshake and again at every turn
    of an open socket, so cache what is expensive.
    """

    @abstractmethod
    async def authenticate(self, headers: Mapping[str, str]) -> Principal:
        """The principal behind these headers, whose names are lower case.

        Raises:
            Unauthorized: nobody, or nobody known.
        """

    def forget_key(self, api_key_id: int) -> None:
        """This `ApiKey` was revoked or changed: forget what is cached of it. For classes that use our keys."""


class ApiKeyAuthenticator(Authenticator):
    """``Authorization: Bearer <API key>`` against the table of keys. Good and bad answers are cached alike."""

    def __init__(self) -> None:
        self._cache: OrderedDict[bytes, tuple[float, Principal | None]] = OrderedDict()

    async def authenticate(self, headers: Mapping[str, str]) -> Principal:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        key = key.strip()
        if scheme.lower() != "bearer" or not key:
            raise Unauthorized(
                "You didn't provide an API key. Send it in an Authorization header: 'Authorization: Bearer KEY'."
            )
        # Not as it is stored, which takes ten times as long, and is asked for with every turn.
        digest = blake2b(key.encode(), key=_PROCESS, digest_size=32).digest()
        cached = self._cache.get(digest)
        now = time.monotonic()
        if cached is not None and cached[0] > now:
            principal = cached[1]
        else:
            principal = await dbpool.run(_principal_of, key)
            self._cache[digest] = (now + SECONDS_CACHED, principal)
            self._cache.move_to_end(digest)
            if len(self._cache) > _MAX_CACHED:
                self._cache.popitem(last=False)
        if principal is None:
            raise Unauthorized(f"Incorrect API key provided: {key[:3]}…{key[-2:]}.")
        return principal

    def forget_key(self, api_key_id: int) -> None:
        for digest, (_, principal) in list(self._cache.items()):
            if principal is not None and principal.api_key_id == api_key_id:
                del self._cache[digest]


def _principal_of(key: str) -> Principal | None:
    found = ApiKey.objects.find(key)
    if found is None:
        return None
    keeps_nothing = found.zero_retention or found.project.zero_retention
    return Principal(
        organization_id=found.project.organization_id,
        project_id=found.project_id,
        api_key_id=found.pk,
        name=found.redacted,
        allowed_models=frozenset(found.allowed_models),
        zero_retention=keeps_nothing,
        sealed_fallback=found.project.sealed_fallback and not keeps_nothing,
        rates=found.rates.over(found.project.rates),
    )


_authenticators: dict[str, Authenticator] = {}


def authenticator() -> Authenticator:
    """This process's instance of the configured class."""
    path = app_settings.AUTHENTICATOR
    if path not in _authenticators:
        _authenticators[path] = import_string(path)()
    return _authenticators[path]


def scope_headers(scope: Mapping[str, Any]) -> dict[str, str]:
    """An ASGI scope's headers, names in lower case; of a repeated one the first."""
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        # The same in most sockets, each of which keeps them as long as it lives.
        headers.setdefault(intern(name.decode("latin-1").lower()), intern(value.decode("latin-1")))
    return headers
