"""The WebSocket routes that a host project puts into its ASGI application."""

from channels.routing import URLRouter
from django.urls import path, re_path

from responses_ws.transports.consumers import ResponsesConsumer
from responses_ws.transports.handshake import Handshake, no_such_path

websocket_urlpatterns = [re_path(r"^(?:codex/)?responses/?$", Handshake(ResponsesConsumer.as_asgi()))]
"""Like the patterns in ``urls``: without a prefix. ``path("v1/", URLRouter(websocket_urlpatterns))`` gives them one."""


def websocket_router(*prefixes: str) -> URLRouter:
    """The routes as an application, under each of these prefixes (``"v1/"``; ``""`` for none); 404 at other paths."""
    routes = [path(prefix, URLRouter(websocket_urlpatterns)) for prefix in prefixes]
    return URLRouter([*routes, re_path("", no_such_path)])


websocket_application = websocket_router("v1/")
"""The application for projects that have no sockets of their own; ``urls`` is then included under ``v1/``."""
