"""A real MCP server, made of the official SDK: ``python -m tests.fakes.mcp_server`` prints ``{"port": 12345}``.

Streamable HTTP at ``/mcp``, the same behind a key at ``/private/mcp``, the older SSE at ``/sse``; ``/gone`` is a 404.
It prints a line for every listing (``listed``) and for every call as it begins (``called NAME``).
"""

import asyncio
import json
from typing import Any

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

KEY = "canary-of-an-mcp-key"
app = MCPServer("notes")


def said(word: str) -> None:
    print(word, flush=True)


@app.tool(annotations=ToolAnnotations(read_only_hint=True))
def echo(text: str) -> str:
    """Gives the text back."""
    said("called echo")
    return f"echo: {text}"


@app.tool()
def delete(name: str) -> str:
    """Deletes a note."""
    said("called delete")
    return f"deleted {name}"


@app.tool()
def fail() -> str:
    """Never works."""
    said("called fail")
    raise ToolError("the ink is dry")


@app.tool()
async def slow() -> str:
    """Takes its time."""
    said("called slow")
    await asyncio.sleep(600)
    return "at last"


@app.tool()
def big(size: int) -> str:
    """Says much."""
    said("called big")
    return "x" * size


class Doors:
    """Both transports on one port, one of them behind a key."""

    def __init__(self) -> None:
        self._streamable = app.streamable_http_app()
        self._sse = app.sse_app()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._streamable(scope, receive, send)
            return
        path = scope["path"]
        headers = dict(scope["headers"])
        if path.startswith("/private"):
            if headers.get(b"authorization") != f"Bearer {KEY}".encode():
                await self._refuse(send, 401)
                return
            path = path.removeprefix("/private")
        if path == "/gone":
            await self._refuse(send, 404)
            return
        inner = self._sse if path.startswith(("/sse", "/messages")) else self._streamable
        await inner({**scope, "path": path, "raw_path": path.encode()}, self._heard(receive), send)

    @staticmethod
    async def _refuse(send: Any, status: int) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    @staticmethod
    def _heard(receive: Any) -> Any:
        async def hear() -> Any:
            message = await receive()
            if b'"tools/list"' in message.get("body", b""):
                said("listed")
            return message

        return hear


class Serving(uvicorn.Server):
    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        print(json.dumps({"port": self.servers[0].sockets[0].getsockname()[1]}), flush=True)


if __name__ == "__main__":
    Serving(uvicorn.Config(Doors(), host="127.0.0.1", port=0, log_level="warning", timeout_graceful_shutdown=1)).run()
