"""Static files of the admin, in front of Django.

Not as Django middleware: WhiteNoise's is synchronous, and would put every API request through a thread.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from asgiref.wsgi import WsgiToAsgi
from whitenoise import WhiteNoise

Application = Callable[[dict[str, Any], Any, Any], Awaitable[None]]


def serve_static(application: Application, *, root: Path, prefix: str) -> Application:
    """``application``, with the files that ``collectstatic`` left in ``root`` served below ``prefix``."""
    if not root.is_dir():
        return application
    files = WsgiToAsgi(WhiteNoise(not_found, root=root, prefix=prefix))

    async def serve(scope: dict[str, Any], receive: Any, send: Any) -> None:
        is_file = scope["type"] == "http" and scope["path"].startswith(prefix)
        await (files if is_file else application)(scope, receive, send)

    return serve


def not_found(_environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    """The WSGI application behind WhiteNoise: no such file."""
    start_response("404 Not Found", [("Content-Type", "text/plain")])
    return [b"Not found\n"]
