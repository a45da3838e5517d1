"""An OpenAI-compatible chat-completions server for tests: a real process with a scripted brain.

``python -m tests.fakes.chat_server --port 0 --token-log tokens.jsonl`` prints ``{"port": 12345}`` and serves until
it is killed. The model ``fake-chat`` answers by the rules and directives of `Scripted`; ``fault:NAME`` goes wrong as
`FAULTS` says. Every call ends as one line in the token log, also when the client leaves.
"""

import argparse
import asyncio
import hashlib
import json
import signal
from typing import Any

import msgspec
from aiohttp import web

from responses_ws.engines.base import ChatRequest, EngineError
from responses_ws.engines.scripted import Scripted
from responses_ws.protocol.sampling import (
    CallArguments,
    CallStart,
    Delta,
    Finished,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)
from responses_ws.protocol.usage import Usage
from responses_ws.rendering.chat import ChatPrompt
from tests.fakes.faults import FAULTS, Fault

MODEL = "fake-chat"
_STATUS = {"rate_limited": 429, "overloaded": 503, "unavailable": 503, "timeout": 504, "auth": 401, "engine": 500}


class ChatServer:
    """The server as an object, for tests in the same process too.

    ``requests`` are the decoded bodies in order, ``request_headers`` their headers; ``arrivals`` gets the model of
    every call as it comes, ``departures`` that of every call whose client left before its end.
    """

    def __init__(self, *, token_log: str | None = None, faults: dict[str, Fault] | None = None) -> None:
        self.scripted = Scripted("fake", {"TOKEN_LOG": token_log} if token_log else {})
        self.faults = FAULTS if faults is None else faults
        self.requests: list[dict[str, Any]] = []
        self.request_headers: list[dict[str, str]] = []
        self.connections: set[Any] = set()
        self.arrivals: asyncio.Queue[str] = asyncio.Queue()
        self.departures: asyncio.Queue[str] = asyncio.Queue()
        self.app = web.Application(client_max_size=64 * 1024 * 1024)
        self.app.router.add_get("/v1/models", self.list_models)
        self.app.router.add_post("/v1/chat/completions", self.complete)
        self._runner: web.AppRunner | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def start(self, port: int = 0) -> None:
        # With cancellation a handler that waits learns of a departure at once, not at its next write.
        self._runner = web.AppRunner(self.app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def aclose(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        await self.scripted.aclose()

    async def __aenter__(self) -> "ChatServer":
        await self.start()
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        await self.aclose()

    async def list_models(self, _request: web.Request) -> web.Response:
        names = [MODEL, *(f"fault:{name}" for name in self.faults)]
        return web.json_response({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = msgspec.json.decode(await request.read())
        self.requests.append(body)
        self.request_headers.append({name.lower(): value for name, value in request.headers.items()})
        self.connections.add(request.transport)
        model = body["model"]
        self.arrivals.put_nowait(model)
        try:
            if model.startswith("fault:"):
                return await _misbehave(request, self.faults[model.removeprefix("fault:")])
            return await self._answer(request, body)
        except (asyncio.CancelledError, ConnectionError):
            self.departures.put_nowait(model)
            raise

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        try:
            async with self.scripted.chat(_chat_request(request, body)) as answer:
                if not body.get("stream"):
                    deltas = [delta async for some in answer for delta in some]
                    return web.json_response(_whole(body["model"], deltas))
                response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
                await response.prepare(request)
                try:
                    async for some in answer:
                        await response.write(b"".join(_events(body, some)))
                except EngineError as exc:
                    error = {"message": exc.message, "type": exc.kind, "code": _STATUS.get(exc.kind, 400)}
                    await response.write(b"data: " + msgspec.json.encode({"error": error}) + b"\n\n")
                await response.write(b"data: [DONE]\n\n")
                await response.write_eof()
                return response
        except EngineError as exc:
            error = {"message": exc.message, "type": exc.kind, "code": None}
            return web.json_response(
                {"error": error}, status=exc.status or _STATUS.get(exc.kind, 400), headers=exc.headers
            )


def _chat_request(request: web.Request, body: dict[str, Any]) -> ChatRequest:
    messages = [msgspec.json.encode(message) for message in body["messages"]]
    prompt = ChatPrompt()
    prompt = ChatPrompt(prompt.log.extended(messages), sum(map(len, messages)))
    # A prefix cache knows a conversation by how it begins.
    beginning = hashlib.sha256(b"\n".join(messages[:2])).hexdigest()
    return ChatRequest(
        request_id=request.headers.get("X-Request-Id", ""),
        model=body["model"],
        prompt=prompt,
        tools=msgspec.json.encode(body["tools"]) if body.get("tools") else None,
        tool_choice=body.get("tool_choice"),
        parallel_tool_calls=body.get("parallel_tool_calls"),
        max_output_tokens=body.get("max_tokens") or body.get("max_completion_tokens"),
        response_format=body.get("response_format"),
        top_logprobs=body.get("top_logprobs") if body.get("logprobs") else None,
        affinity=body.get("prompt_cache_key") or body.get("user") or beginning,
    )


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _delta(delta: Delta) -> dict[str, Any] | None:
    if isinstance(delta, TextDelta):
        return {"content": delta.text}
    if isinstance(delta, ReasoningDelta):
        return {"reasoning_content": delta.text}
    if isinstance(delta, RefusalDelta):
        return {"refusal": delta.text}
    if isinstance(delta, CallStart):
        function = {"name": delta.name, "arguments": ""}
        return {"tool_calls": [{"index": delta.index, "id": delta.call_id, "type": "function", "function": function}]}
    if isinstance(delta, CallArguments):
        return {"tool_calls": [{"index": delta.index, "function": {"arguments": delta.text}}]}
    return None


def _events(body: dict[str, Any], deltas: list[Delta]) -> list[bytes]:
    """One event per token, as real servers send them."""
    head = {"id": "chatcmpl-fake", "object": "chat.completion.chunk", "created": 0, "model": body["model"]}
    events: list[dict[str, Any]] = []
    for delta in deltas:
        said = _delta(delta)
        if said is not None:
            choice = {"index": 0, "delta": said, "finish_reason": None}
            if isinstance(delta, TextDelta) and delta.logprobs:
                choice["logprobs"] = {"content": delta.logprobs, "refusal": None}
            events.append({**head, "choices": [choice]})
        if isinstance(delta, Finished):
            events.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": delta.reason}]})
            if (body.get("stream_options") or {}).get("include_usage") and delta.usage is not None:
                events.append({**head, "choices": [], "usage": _usage(delta.usage)})
    return [b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events]


def _whole(model: str, deltas: list[Delta]) -> dict[str, Any]:
    """The answer to a request without ``stream``."""
    finished = deltas[-1]
    assert isinstance(finished, Finished) and finished.usage is not None, "Scripted ends with Finished and usage"
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) or None,
    }
    calls: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        if isinstance(delta, CallStart):
            function = {"name": delta.name, "arguments": ""}
            calls[delta.index] = {"id": delta.call_id, "type": "function", "function": function}
        elif isinstance(delta, CallArguments):
            calls[delta.index]["function"]["arguments"] += delta.text
    if calls:
        message["tool_calls"] = list(calls.values())
    choice = {"index": 0, "message": message, "finish_reason": finished.reason}
    head = {"id": "chatcmpl-fake", "object": "chat.completion", "created": 0, "model": model}
    return {**head, "choices": [choice], "usage": _usage(finished.usage)}


async def _misbehave(request: web.Request, fault: Fault) -> web.StreamResponse:
    if fault.silent:
        await asyncio.Event().wait()
    response = web.StreamResponse(status=fault.status, headers={**fault.headers, "Content-Type": fault.content_type})
    await response.prepare(request)
    for piece in fault.pieces:
        await response.write(piece)
    if fault.end == "hang":
        await asyncio.Event().wait()
    if fault.end == "abort":
        assert request.transport is not None, "the client is still there"
        request.transport.abort()
    else:
        await response.write_eof()
    return response


async def _serve(port: int, token_log: str | None) -> None:
    server = ChatServer(token_log=token_log)
    await server.start(port)
    print(json.dumps({"port": server.port}), flush=True)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await stopped.wait()
    await server.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--token-log")
    arguments = parser.parse_args()
    asyncio.run(_serve(arguments.port, arguments.token_log))


if __name__ == "__main__":
    main()
