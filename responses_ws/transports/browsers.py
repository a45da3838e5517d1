"""What a page in a browser says at the handshake. It may set one header only: the list of subprotocols."""

from collections.abc import Sequence

from django.conf import settings
from django.http.request import split_domain_port, validate_host

from responses_ws.conf import app_settings

SUBPROTOCOL = "responses"
"""What we choose of the list: a browser drops a connection for which nothing was chosen."""
_KEY = "openai-insecure-api-key."
_BETA = "openai-beta."


def with_subprotocols(headers: dict[str, str], offered: Sequence[str]) -> dict[str, str]:
    """The headers with those that the list stands for: ``openai-insecure-api-key.KEY`` for ``authorization``, where
    there is none, and ``openai-beta.NAME-VERSION`` for ``openai-beta: NAME=VERSION``.

    The list itself is taken out: it holds the key.

    Source: the subprotocols of OpenAI's Realtime API, by which its SDK connects from a browser.
    """
    told = {name: value for name, value in headers.items() if name != "sec-websocket-protocol"}
    for word in offered:
        if word.startswith(_KEY):
            told.setdefault("authorization", f"Bearer {word.removeprefix(_KEY)}")
        elif word.startswith(_BETA):
            name, _, version = word.removeprefix(_BETA).rpartition("-")
            told.setdefault("openai-beta", f"{name}={version}")
    return told


def chosen(offered: Sequence[str]) -> str | None:
    """The subprotocol that is answered with; None for clients that do not name ours."""
    return SUBPROTOCOL if SUBPROTOCOL in offered else None


def may_open(origin: str, host: str) -> bool:
    """Whether a page of this origin may open a socket at this host: those that are allowed, and the playground, which
    is a page of the same host."""
    if origin in app_settings.ALLOWED_ORIGINS:
        return True
    return app_settings.is_playground_on and origin.partition("://")[2] == host and _is_ours(host)


def _is_ours(host: str) -> bool:
    # As Django reads ALLOWED_HOSTS, which nobody else applies to sockets: a foreign name that was bound to our address
    # is not ours.
    allowed = settings.ALLOWED_HOSTS or ([".localhost", "127.0.0.1", "[::1]"] if settings.DEBUG else [])
    return validate_host(split_domain_port(host)[0], allowed)
