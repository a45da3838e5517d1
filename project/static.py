"""Static files of the admin, in front of Django.

Not as Django middleware: WhiteNoise's is synchronous, and would put every API request through a thread.
"""

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from whitenoise import WhiteNoise

Application = Callable[[dict[str, Any], Any, Any], Awaitable[None]]
Answer = tuple[int, list[tuple[str, str]], bytes]

NO_SUCH_FILE: Answer = (HTTPStatus.NOT_FOUND, [("Content-Type", "text/plain")], b"Not found\n")


def serve_static(application: Application, *, root: Path, prefix: str) -> Application:
    """``application``, with the files that ``collectstatic`` left in ``root`` served below ``prefix``."""
    if not root.is_dir():
        return application
    files = WhiteNoise(application=None, root=root, prefix=prefix).files

    async def serve(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(prefix):
            await application(scope, receive, send)
            return
        # A thread of the loop's own. Asgiref's bridge takes that of the last synchronous view on the same
        # connection, which may have ended.
        status, headers, body = await asyncio.to_thread(answer, files.get(scope["path"]), scope)
        told = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
        await send({"type": "http.response.start", "status": int(status), "headers": told})
        await send({"type": "http.response.body", "body": body})

    return serve


def answer(file: Any, scope: dict[str, Any]) -> Answer:
    """Status, headers and content of one of WhiteNoise's files; None is no file."""
    if file is None:
        return NO_SUCH_FILE
    asked = {
        f"HTTP_{name.decode('latin-1').upper().replace('-', '_')}": value.decode("latin-1")
        for name, value in scope["headers"]
    }
    response = file.get_response(scope["method"], asked)
    if response.file is None:
        return response.status, list(response.headers), b""
    with response.file:
        return response.status, list(response.headers), response.file.read()
