"""The routes that a host project puts into its ASGI application."""

import re

from channels.routing import URLRouter
from django.apps import apps
from django.urls import re_path

from responses_ws.transports.consumers import ResponsesConsumer
from responses_ws.transports.handshake import Handshake, no_such_path
from responses_ws.transports.http import Application, HttpRouter

_RESPONSES = Handshake(ResponsesConsumer.as_asgi())
_PATH = r"(?:codex/)?responses/?$"

websocket_urlpatterns = [re_path(rf"^{_PATH}", _RESPONSES)]
"""Like the patterns in ``urls``: without a prefix. ``path("v1/", URLRouter(websocket_urlpatterns))`` gives them one."""

office_urlpatterns = []
"""The admin's live view, wherever the admin is. For the outermost router, without a prefix; `websocket_router` has it
already. Empty without ``django.contrib.admin``."""

if apps.is_installed("django.contrib.admin"):
    from responses_ws.transports.live import live_application

    office_urlpatterns = [re_path(r"^(?:.+/)?responses_ws/live/socket/$", live_application)]


def http_router(application: Application, *prefixes: str) -> HttpRouter:
    """``application`` (Django's, of the host project), with our HTTP endpoints in front of it under each of these
    prefixes (``"v1/"``; ``""`` for none): several times faster than through its middleware, of which they need none.
    """
    return HttpRouter(application, prefixes)


def websocket_router(*prefixes: str) -> URLRouter:
    """The routes as an application, under each of these prefixes (``"v1/"``; ``""`` for none), and those of the
    office; 404 at other paths."""
    # Not by a router in a router: each keeps a copy of the scope for as long as a socket lives.
    routes = [re_path(rf"^{re.escape(prefix)}{_PATH}", _RESPONSES) for prefix in prefixes]
    return URLRouter([*office_urlpatterns, *routes, re_path("", no_such_path)])


websocket_application = websocket_router("v1/")
"""The application for projects that have no sockets of their own; ``urls`` is then included under ``v1/``."""
