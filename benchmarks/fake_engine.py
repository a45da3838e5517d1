"""A model server that costs next to nothing: the engine's side of the benchmarks.

It streams words by a clock and ends each turn with one tool call when tools were offered. It never parses a request: it
looks for the four keys it needs at the two ends of the body, so that a 500 kB history costs it a copy. With a tokenizer
it also has vLLM's route for token ids; ``/v1/responses`` is there for servers that pass their clients' requests on.

A model name overrides the defaults of the command line: ``fake-t100-r1000-f120`` is 100 tokens at 1,000 a second, the
first after 120 ms; ``-r0`` is as fast as it goes. So one process serves every row of a table.
"""

import argparse
import asyncio
import gc
import itertools
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .fake_answers import Answer, Asked, chat, harmony, hermes, responses

EDGE_BYTES = 4096  # where a request keeps its keys: before and after the messages
HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
END = b"0\r\n\r\n"
PACE = re.compile(rb"-([trf])(\d+)")


@dataclass(frozen=True, slots=True)
class Pace:
    """How one answer is made: ``tokens`` text tokens, ``rate`` a second (0: at once), the first after ``ttft_ms``."""

    tokens: int = 100
    rate: int = 0
    ttft_ms: int = 0

    def named(self, model: bytes) -> "Pace":
        """This pace with what a model name says about it."""
        said = {key: int(number) for key, number in PACE.findall(model)}
        return Pace(said.get(b"t", self.tokens), said.get(b"r", self.rate), said.get(b"f", self.ttft_ms))


def value_after(body: bytes, key: bytes) -> bytes:
    """The 64 bytes after ``"key":``, blanks stripped; empty when the body has no such key.

    Inside a JSON string a quote is escaped, so ``"key":`` can only be a key: looking for it needs no parser.
    """
    wanted = b'"' + key + b'":'
    for part in (body[:EDGE_BYTES], body[-EDGE_BYTES:], body if len(body) > 2 * EDGE_BYTES else b""):
        at = part.find(wanted)
        if at >= 0:
            return part[at + len(wanted) : at + len(wanted) + 64].lstrip()
    return b""


def string_after(body: bytes, key: bytes) -> bytes:
    """The string value of a key, as bytes; empty when absent."""
    found = value_after(body, key)
    return found[1:].split(b'"', 1)[0] if found.startswith(b'"') else b""


def tool_offered(body: bytes) -> bytes:
    """The name of the first tool on offer; empty when the request offers none."""
    if not re.match(rb"\[\s*\{", value_after(body, b"tools")):
        return b""
    at = body.find(b'"tools":')
    return string_after(body[at : at + EDGE_BYTES], b"name")


def prompt_tokens(body: bytes) -> int:
    """Of token ids their number; of a text a fourth of its bytes."""
    at = body.find(b'"token_ids":[')
    return len(body) // 4 if at < 0 else body.count(b",", at, body.find(b"]", at)) + 1


def chunk(data: bytes) -> bytes:
    """One chunk of HTTP/1.1 chunked transfer coding. Source: RFC 9112 §7.1."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Conversation(asyncio.Protocol):
    """One keep-alive connection: one request at a time, no pipelining."""

    calls = itertools.count(1)

    def __init__(self, engine: "FakeEngine") -> None:
        self.engine = engine
        self.inbox = bytearray()
        self.head_bytes = 0
        self.whole_bytes = 0
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport  # asyncio and uvloop set TCP_NODELAY themselves
        self.loop = asyncio.get_running_loop()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timer:
            self.timer.cancel()

    def data_received(self, data: bytes) -> None:
        self.inbox += data
        if not self.whole_bytes:
            at = self.inbox.find(b"\r\n\r\n")
            if at < 0:
                return
            head = bytes(self.inbox[:at]).lower()
            length = re.search(rb"\r\ncontent-length:\s*(\d+)", head)
            if length is None and b"\r\ntransfer-encoding:" in head:
                return self.refuse(b"411 Length Required", b"send a Content-Length")
            self.head_bytes = at + 4
            self.whole_bytes = self.head_bytes + (int(length[1]) if length else 0)
        if len(self.inbox) >= self.whole_bytes:
            path = bytes(self.inbox[: self.head_bytes]).split(b" ", 2)[1]
            body = bytes(self.inbox[self.head_bytes : self.whole_bytes])
            del self.inbox[: self.whole_bytes]
            self.whole_bytes = 0
            self.answer(path, body)

    def refuse(self, status: bytes, message: bytes) -> None:
        body = b'{"error":{"message":"%b","type":"invalid_request_error","param":null,"code":null}}' % message
        self.reply(status, body)
        self.transport.close()

    def reply(self, status: bytes, body: bytes) -> None:
        head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
        self.transport.write(head + body)

    def answer(self, path: bytes, body: bytes) -> None:
        if path.endswith(b"/models"):
            return self.reply(b"200 OK", self.engine.models)
        if path.endswith(b"/health"):
            return self.reply(b"200 OK", b"{}")
        form = self.engine.forms.get(path.rsplit(b"/", 1)[1])
        if form is None:
            return self.refuse(b"404 Not Found", b"this engine has chat/completions, responses and models under /v1")
        if not value_after(body, b"stream").startswith(b"true"):
            return self.refuse(b"400 Bad Request", b"this engine only streams")
        model = string_after(body, b"model")
        self.pace = self.engine.pace.named(model)
        asked = Asked(model, self.pace.tokens, tool_offered(body), prompt_tokens(body), next(self.calls))
        self.events, self.closing = form(asked)
        self.sent = 0
        self.started = time.perf_counter() + self.pace.ttft_ms / 1000
        if self.pace.ttft_ms:
            self.timer = self.loop.call_later(self.pace.ttft_ms / 1000, self.send_due)
        else:
            self.send_due()

    def send_due(self) -> None:
        """Send every token that is due: token i at ``started + i / rate``, so that lateness never adds up."""
        rate, whole = self.pace.rate, len(self.events)
        elapsed = max(0.0, time.perf_counter() - self.started)
        due = min(whole, int(elapsed * rate) + 1) if rate else whole
        if due > self.sent:
            data = b"".join(self.events[self.sent : due])
            first = HEAD if self.sent == 0 else b""
            self.sent = due
            if due == whole:
                self.transport.write(first + chunk(data + self.closing) + END)
                return
            self.transport.write(first + chunk(data))
        # Loops count in milliseconds; rounding up avoids waking early, and then again at once.
        wait_ms = max(1, -(-(self.sent / rate - elapsed) * 1000 // 1))
        self.timer = self.loop.call_later(wait_ms / 1000, self.send_due)


def model_list(names: Sequence[str]) -> bytes:
    """The answer to ``GET /v1/models``. Any name is served, but some servers in front ask only for listed ones."""
    models = [{"id": name, "object": "model", "created": 1, "owned_by": "benchmarks"} for name in names]
    return json.dumps({"object": "list", "data": models}).encode()


@dataclass(frozen=True, slots=True)
class FakeEngine:
    """What all its connections know: the pace of who names none, the body of ``/v1/models``, forms by their path."""

    pace: Pace
    models: bytes
    forms: Mapping[bytes, Callable[[Asked], Answer]]


async def serve(port: int, engine: FakeEngine) -> None:
    """Serve on loopback until cancelled; the port goes to standard output, alone on its line."""
    server = await asyncio.get_running_loop().create_server(lambda: Conversation(engine), "127.0.0.1", port)
    print(server.sockets[0].getsockname()[1], flush=True)
    gc.collect()
    gc.freeze()
    async with server:
        await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fake_engine", description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--tokens", type=int, default=100, help="text tokens a turn")
    parser.add_argument("--rate", type=int, default=0, help="tokens a second; 0: as fast as it goes")
    parser.add_argument("--ttft-ms", type=int, default=0, help="before the first token")
    parser.add_argument("--models", default="fake", help="the names /v1/models lists, comma-separated")
    parser.add_argument("--tokenizer", type=Path, help="answer in its ids, too, on /inference/v1/generate")
    parser.add_argument("--harmony", action="store_true", help="the same for gpt-oss, of models called …harmony…")
    options = parser.parse_args()
    forms: dict[bytes, Callable[[Asked], Answer]] = {b"completions": chat, b"responses": responses}
    in_ids = {b"ids": hermes(options.tokenizer)} if options.tokenizer else {}
    if options.harmony:
        in_ids[b"harmony"] = harmony()
    if in_ids:
        forms[b"generate"] = lambda asked: in_ids[asked.model.split(b"-")[1]](asked)
    pace = Pace(options.tokens, options.rate, options.ttft_ms)
    try:
        from uvloop import run
    except ImportError:
        from asyncio import run
    try:
        run(serve(options.port, FakeEngine(pace, model_list(options.models.split(",")), forms)))
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
