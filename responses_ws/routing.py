"""The WebSocket routes that a host project puts into its ASGI application."""

from channels.routing import URLRouter
from django.urls import re_path

from responses_ws.transports.consumers import ResponsesConsumer
from responses_ws.transports.handshake import Handshake, no_such_path

websocket_urlpatterns = [re_path(r"^v1/responses/?$", Handshake(ResponsesConsumer.as_asgi()))]

websocket_application = URLRouter([*websocket_urlpatterns, re_path("", no_such_path)])
"""The routes as an application, for projects without sockets of their own: it answers 404 at any other path."""
