"""An SGLang for tests: ``/generate`` and streaming sessions, as the transcripts have them."""

import asyncio
from typing import Any

import msgspec
from aiohttp import web

from .token_server import Call, TokenServer


class FakeSGLang(TokenServer):
    """``incremental``: whether an event has the new ids only. ``sessions``: ids by open session, as it holds them."""

    def __init__(self, *, incremental: bool = False, with_sessions: bool = True) -> None:
        super().__init__()
        self.incremental = incremental
        self.with_sessions = with_sessions
        self.sessions: dict[str, list[int]] = {}
        self.closed_sessions: asyncio.Queue[str] = asyncio.Queue()
        self.busy: set[str] = set()
        self.app.router.add_post("/generate", self.generate)
        self.app.router.add_post("/abort_request", self.abort_request)
        self.app.router.add_post("/open_session", self.open_session)
        self.app.router.add_post("/close_session", self.close_session)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        call = await self.arrived(request, "input_ids")
        call.call_id = call.body["rid"]
        name = (call.body.get("session_params") or {}).get("id")
        if name is None:
            return await self.answer(request, call)
        fault = self._fault(name)
        if fault:
            abort = {"type": "abort", "message": fault, "status_code": 400, "err_type": None}
            event = {"text": "", "output_ids": [], "meta_info": {"finish_reason": abort, "completion_tokens": 0}}
            return await self._refuse(request, event)
        call.ids = self.sessions[name] + call.ids
        self.busy.add(name)
        try:
            answer = await self.answer(request, call)
            if call.sampled and not call.is_aborted.is_set():
                self.sessions[name] = call.ids + call.sampled
            return answer
        finally:
            self.busy.discard(name)

    def _fault(self, name: str) -> str | None:
        if name not in self.sessions:
            return f"Invalid request: session id {name} does not exist"
        return "Streaming session already has an active request." if name in self.busy else None

    async def _refuse(self, request: web.Request, event: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await self._write(response, event)
        await response.write(b"data: [DONE]\n\n")
        return response

    async def open_session(self, request: web.Request) -> web.Response:
        asked = msgspec.json.decode(await request.read())
        assert asked["streaming"] and asked["timeout"] > 0 and asked["capacity_of_str_len"] > 0
        if not self.with_sessions:
            return web.json_response({"error": {"message": "Streaming sessions are disabled."}}, status=400)
        self.sessions[asked["session_id"]] = []
        return web.json_response(asked["session_id"])

    async def close_session(self, request: web.Request) -> web.Response:
        name = msgspec.json.decode(await request.read())["session_id"]
        self.sessions.pop(name, None)
        self.closed_sessions.put_nowait(name)
        return web.Response()

    async def abort_request(self, request: web.Request) -> web.Response:
        prefix = msgspec.json.decode(await request.read())["rid"]
        self.abort(prefix)
        for call in self.calls:
            if call.call_id.startswith(prefix):
                call.is_aborted.set()
        return web.Response()

    def limit(self, call: Call) -> int:
        wanted = call.body["sampling_params"].get("max_new_tokens", 128)
        return 10_000 if wanted is None else wanted

    def domain(self, call: Call) -> str:
        return call.body.get("extra_key", "")

    def chunks(self, call: Call, reason: str | None = None) -> list[dict[str, Any]]:
        said = len(call.sampled) - (0 if reason in ("abort", "length") else 1)
        told = {
            "stop": {"type": "stop", "matched": call.sampled[-1]},
            "length": {"type": "length", "length": len(call.sampled)},
            "abort": {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None},
        }
        meta: dict[str, Any] = {
            "id": call.call_id,
            "finish_reason": None if reason is None else told[reason],
            "prompt_tokens": len(call.ids),
            "completion_tokens": len(call.sampled),
            "cached_tokens": call.cached,
        }
        new = slice(said, None) if self.incremental else slice(None)
        return [{"text": "", "output_ids": call.sampled[new], "meta_info": meta}]
