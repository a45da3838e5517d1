"""ASGI entry of the demo project: HTTP by Django, ``/v1/responses`` over WebSocket by responses_ws."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
django_application = get_asgi_application()

from channels.routing import ProtocolTypeRouter  # noqa: E402
from django.conf import settings  # noqa: E402

from responses_ws.lifespan import lifespan  # noqa: E402
from responses_ws.routing import http_router, websocket_router  # noqa: E402

from .static import serve_static  # noqa: E402

application = ProtocolTypeRouter(
    {
        "http": serve_static(
            http_router(django_application, "v1/", ""), root=settings.STATIC_ROOT, prefix=settings.STATIC_URL
        ),
        "websocket": websocket_router("v1/", ""),
        "lifespan": lifespan,
    }
)
