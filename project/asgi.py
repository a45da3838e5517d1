"""ASGI entry of the demo project: HTTP by Django, ``/v1/responses`` over WebSocket by responses_ws."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
django_application = get_asgi_application()

from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402
from responses_ws.routing import websocket_urlpatterns  # noqa: E402

application = ProtocolTypeRouter({"http": django_application, "websocket": URLRouter(websocket_urlpatterns)})
