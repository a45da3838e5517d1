"""The WebSocket routes that a host project puts into its ASGI application."""

from django.urls import re_path

from responses_ws.transports.consumers import ResponsesConsumer
from responses_ws.transports.handshake import Handshake

websocket_urlpatterns = [re_path(r"^v1/responses/?$", Handshake(ResponsesConsumer.as_asgi()))]
