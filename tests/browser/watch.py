"""What no page of ours may do, watched while it is open."""

import asyncio
import json
import re
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import BrowserContext, ConsoleMessage, Dialog, Page, Request, Response, WebSocket

# Run before any script of a page. It is the debugger's, so no policy of the page stops it.
_PROBE = """
addEventListener("securitypolicyviolation", (event) =>
  __violated(`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile ?? ""}:${event.lineNumber}`));
"""


class Watch:
    """Collects errors on the console, uncaught exceptions, broken policies, requests to elsewhere, failures of the
    server, and canaries that ran. `allow` what a test causes on purpose; `faults` are what is left."""

    def __init__(self, origin: str) -> None:
        self._own = {origin, origin.replace("http", "ws", 1)}
        self._allowed: list[re.Pattern[str]] = []
        self._seen: list[str] = []
        self._news = asyncio.Event()

    async def over(self, context: BrowserContext) -> None:
        """Watch all pages that this context opens."""
        await context.expose_function("__violated", self._violated)
        await context.expose_function("__canary", self._sang)
        await context.add_init_script(_PROBE)
        context.on("request", self._asked)
        context.on("response", self._answered)
        context.on("console", self._said)
        context.on("weberror", lambda error: self._note(f"uncaught: {error.error}"))
        context.on("page", self._opened)

    def allow(self, pattern: str) -> None:
        """A fault that matches this regular expression is none."""
        self._allowed.append(re.compile(pattern))

    async def sees(self, fault: str, *, seconds: float = 30.0) -> None:
        """Wait for a fault that begins so. Raises TimeoutError with what else was seen."""
        try:
            async with asyncio.timeout(seconds):
                while not any(seen.startswith(fault) for seen in self._seen):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise TimeoutError(f"waited {seconds:.0f} s for {fault!r}, saw {self._seen}") from None

    @property
    def faults(self) -> list[str]:
        return [fault for fault in self._seen if not any(allowed.search(fault) for allowed in self._allowed)]

    def _note(self, fault: str) -> None:
        self._seen.append(fault)
        self._news.set()

    def _opened(self, page: Page) -> None:
        page.on("websocket", self._connected)
        page.on("dialog", self._asked_human)

    def _violated(self, what: str) -> None:
        self._note(f"content security policy: {what}")

    def _sang(self, *what: Any) -> None:
        self._note(f"a canary ran: {json.dumps(what)}")

    def _asked(self, request: Request) -> None:
        self._left(request.url)

    def _connected(self, socket: WebSocket) -> None:
        self._left(socket.url)

    def _left(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("data", "blob", "about") and f"{parts.scheme}://{parts.netloc}" not in self._own:
            self._note(f"asked elsewhere: {url}")

    def _answered(self, response: Response) -> None:
        if response.status >= 500:
            self._note(f"the server answered {response.status} for {response.url}")

    def _said(self, message: ConsoleMessage) -> None:
        where = message.location
        # A browser asks for an icon of its own accord.
        if message.type == "error" and not where["url"].endswith("/favicon.ico"):
            self._note(f"console: {message.text} ({where['url']}:{where['lineNumber']})")

    async def _asked_human(self, dialog: Dialog) -> None:
        # The browser's own question before a page is left, which a test may cause.
        if dialog.type != "beforeunload":
            self._note(f"a dialog: {dialog.message}")
        await dialog.dismiss()
