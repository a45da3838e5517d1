"""The host project's ASGI application, as uvicorn names it."""

from django.conf import settings
from django.core.management import CommandError


def asgi_path() -> str:
    """``package.module:attribute`` of ASGI_APPLICATION."""
    path = getattr(settings, "ASGI_APPLICATION", None)
    if not path:
        raise CommandError('ASGI_APPLICATION is not set; write ASGI_APPLICATION = "yourproject.asgi.application".')
    module, _, attribute = path.rpartition(".")
    return f"{module}:{attribute}"
