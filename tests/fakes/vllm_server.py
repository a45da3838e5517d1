"""A vLLM for tests: its routes for token ids, as the transcripts have them."""

from typing import Any

import msgspec
from aiohttp import web

from .token_server import FIRST_TOKEN, Call, TokenServer

PREFIX = "generate-tokens-"


class FakeVllm(TokenServer):
    """``scale_out``: whether `/inference/v1/generate` is there."""

    def __init__(self, *, scale_out: bool = True) -> None:
        super().__init__()
        self.scale_out = scale_out
        self.app.router.add_post("/inference/v1/generate", self.generate)
        self.app.router.add_post("/inference/v1/abort_requests", self.abort_requests)
        self.app.router.add_post("/v1/completions", self.complete)
        self.app.router.add_post("/v1/chat/completions/render", self.render)
        self.rendered: list[int] = []

    async def generate(self, request: web.Request) -> web.StreamResponse:
        call = await self.arrived(request, "token_ids")
        if not self.scale_out:
            return web.json_response({"error": "Feature not enabled"}, status=403)
        call.call_id = PREFIX + call.headers["x-request-id"]
        return await self.answer(request, call)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        return await self.answer(request, await self.arrived(request, "prompt"))

    async def render(self, request: web.Request) -> web.Response:
        """A conversation is the ids in ``rendered``, and how many messages and tools it has."""
        if not self.scale_out:
            return web.json_response({"error": "Feature not enabled"}, status=403)
        body = msgspec.json.decode(await request.read())
        return web.json_response({"token_ids": [*self.rendered, len(body["messages"]), len(body.get("tools", []))]})

    async def abort_requests(self, request: web.Request) -> web.Response:
        for call_id in msgspec.json.decode(await request.read())["request_ids"]:
            self.abort(call_id)
        return web.Response()

    def limit(self, call: Call) -> int:
        wanted = call.body.get("sampling_params", call.body).get("max_tokens")
        assert wanted is None or wanted >= 1, "refused by vLLM"
        return 10_000 if wanted is None else wanted

    def domain(self, call: Call) -> str:
        return call.body.get("cache_salt", "")

    def chunks(self, call: Call, reason: str | None = None) -> list[dict[str, Any]]:
        # With a stop the last token, the end of turn, comes in the chunk of the reason.
        new = [] if reason in ("abort", "length") else [call.sampled[-1]]
        choice: dict[str, Any] = {"index": 0, "finish_reason": reason, "stop_reason": None, "token_ids": new}
        if call.body.get("output_mode") == "text":
            choice["text"] = "".join(map(_text, new))
            choice["logprobs"] = {"content": [{**_logprob(one), "top_logprobs": [_logprob(one)]} for one in new]}
        events: list[dict[str, Any]] = [{"usage": None, "choices": [choice]}]
        if reason is not None:
            usage = {
                "prompt_tokens": len(call.ids),
                "completion_tokens": len(call.sampled),
                "total_tokens": len(call.ids) + len(call.sampled),
                "prompt_tokens_details": {"cached_tokens": call.cached},
            }
            events.append({"usage": usage, "choices": []})
        return [{"request_id": call.call_id, **event} for event in events]


def _text(token: int) -> str:
    return chr(ord("a") + (token - FIRST_TOKEN) % 26)


def _logprob(token: int) -> dict[str, Any]:
    return {"token": _text(token), "bytes": list(_text(token).encode()), "logprob": -0.5}
