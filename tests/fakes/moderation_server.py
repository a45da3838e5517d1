"""A server with OpenAI's ``/v1/moderations`` for tests: scores by the words it is given."""

import asyncio
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web


class ModerationServer:
    """Scores each category by whether its word is in the text. ``requests`` are the bodies, ``keys`` their headers."""

    def __init__(self, words: dict[str, tuple[str, float]] | None = None) -> None:
        self.words = words or {"violence": ("kill", 0.9), "spam": ("buy", 0.4)}
        """Category to word and score; from 0.5 on it is flagged."""
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.status = 200
        self.is_stuck = False
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @asynccontextmanager
    async def running(self):
        app = web.Application()
        app.router.add_post("/v1/moderations", self._moderate)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.port = runner.addresses[0][1]
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _moderate(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        self.keys.append(request.headers.get("Authorization", ""))
        if self.is_stuck:
            await asyncio.Event().wait()
        if self.status != 200:
            return web.json_response({"error": {"message": "no"}}, status=self.status)
        return web.json_response(
            {"id": "modr-1", "model": body["model"], "results": [self._result(text) for text in body["input"]]}
        )

    def _result(self, text: str) -> dict[str, Any]:
        scores = {category: score if word in text else 0.01 for category, (word, score) in self.words.items()}
        return {
            "flagged": any(score >= 0.5 for score in scores.values()),
            "categories": {category: score >= 0.5 for category, score in scores.items()},
            "category_scores": scores,
            "category_applied_input_types": {category: ["text"] for category in scores},
        }
