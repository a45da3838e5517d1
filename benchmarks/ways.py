"""The ways of running one agent loop: each says how a turn is asked for and how its answer is read.

A way is one rollout: it holds its connection and the history as its client would keep it, in JSON pieces, so that a
re-send costs the client a join.
"""

import json
import re
import socket
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

from .fake_answers import TOOL, text_of
from .wire import (
    BenchmarkError,
    Heard,
    connect,
    frame,
    frame_events,
    hear,
    http_ended,
    request_head,
    sse_events,
    turn_ended,
    upgrade,
)

TASK = "Read the files of the standard library one by one and tell me what you think of each."
DESCRIPTION = "Read a part of a file."
PARAMETERS = {
    "type": "object",
    # Short, so that a model which fills it by grammar comes to an end.
    "properties": {"path": {"type": "string", "description": "Where the file is.", "maxLength": 32}},
    "required": ["path"],
    "additionalProperties": False,
}
CHAT_TOKEN = re.compile(rb'"content": ?"[^"]')
TOKEN = re.compile(rb'"type": ?"response\.(?:output_text|function_call_arguments)\.delta"')
WAITING = re.compile(rb'"type": ?"(?:response\.(?:done|completed|failed|incomplete)|error)"')
TERMINAL = re.compile(rb'"type": ?"(?:response\.(?:completed|failed|incomplete)|error)"')


def dumps(value: Any) -> bytes:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":")).encode()


CHAT_TOOLS = dumps(
    [{"type": "function", "function": {"name": TOOL, "description": DESCRIPTION, "parameters": PARAMETERS}}]
)
TOOLS = dumps(
    [{"type": "function", "name": TOOL, "description": DESCRIPTION, "parameters": PARAMETERS, "strict": True}]
)


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is spoken to: ``url`` ends in ``/v1``. ``timeout`` in seconds bounds a turn.

    ``is_forced``: the model is made to call the tool, since it would not by itself. ``is_ours``: its events are held
    to the whole grammar; of somebody else's, what the loop needs must be right.
    """

    url: str
    key: str
    model: str
    timeout: float = 60.0
    is_forced: bool = False
    is_ours: bool = True

    @property
    def parts(self) -> SplitResult:
        return urlsplit(self.url)

    def connect(self) -> socket.socket:
        assert self.parts.hostname, "a URL with a host"
        return connect(self.parts.hostname, self.parts.port or 80, timeout=self.timeout)


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn took, in seconds from the moment the client set out to ask, and what it was worth.

    ``input_tokens`` is the usage the server reports, 0 where it reports none yet, and ``cached_tokens`` what of it the
    engine had read before; ``deltas`` the text events.
    """

    seconds: float
    first_token: float
    sent_bytes: int
    input_tokens: int
    deltas: int
    cached_tokens: int = 0


class Way:
    """One rollout: ``open``, then ``turn`` by ``turn``, then ``close``. Subclasses fill in ``ask`` and ``learn``."""

    name: str
    keeps_connection = True

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.sock: socket.socket | None = None
        self.call_id = ""
        base = peer.parts
        self.host, self.path = base.netloc, base.path.rstrip("/")

    def open(self) -> None:
        """Connect, where the way keeps its connection."""
        if self.keeps_connection:
            self.sock = self.peer.connect()

    def close(self) -> None:
        if self.sock:
            self.sock.close()
            self.sock = None

    def turn(self, output: str) -> Turn:
        """Run one turn. ``output`` is the result of the last turn's call; in the first turn there is none: empty.

        Raises:
            BenchmarkError: the turn failed, or its answer is not the one the engine made.
        """
        started = time.perf_counter()
        if self.sock is None:
            self.sock = self.peer.connect()
        sent_bytes, heard = self.ask(output)
        if not self.keeps_connection:
            self.close()
        input_tokens, cached_tokens, deltas = self.learn(heard)
        if not heard.first_at:
            raise BenchmarkError(f"{self.name}: a turn without a token")
        return Turn(heard.ended_at - started, heard.first_at - started, sent_bytes, input_tokens, deltas, cached_tokens)

    def post(self, resource: str, body: bytes, first: re.Pattern) -> tuple[int, Heard]:
        """POST a JSON body and read the answer to its end."""
        assert self.sock, "connected by turn"
        headers = {
            "Authorization": f"Bearer {self.peer.key}",
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "Connection": "keep-alive" if self.keeps_connection else "close",
            "Content-Length": str(len(body)),
        }
        request = request_head("POST", self.path + resource, self.host, headers) + b"\r\n" + body
        self.sock.sendall(request)
        return len(request), hear(self.sock, first=first, ended=http_ended, timeout=self.peer.timeout)

    def ask(self, output: str) -> tuple[int, Heard]:
        """Send the turn's request and hear its answer; also the bytes sent."""
        raise NotImplementedError

    def learn(self, heard: Heard) -> tuple[int, int, int]:
        """Check the answer and keep what the next turn needs; gives input tokens, cached ones and text events."""
        raise NotImplementedError

    def check_text(self, text: str) -> None:
        """Compare a text with what our engine says for this model; another model's may be anything."""
        told = re.search(r"fake(-ids|-harmony)?-t(\d+)", self.peer.model)
        if told is None:
            return
        due = text_of(int(told[2]))
        # A word may be two ids, or two words one: of ids it is as long as it gets.
        is_right = bool(text) and text_of(2 * int(told[2])).startswith(text) if told[1] else text == due
        if not is_right:
            raise BenchmarkError(f"{self.name}: the text is not the engine's: {text[:200]!r}")


class EngineDirect(Way):
    """The same loop straight against the engine: chat completions, keep-alive, the whole history each turn."""

    name = "engine"

    def __init__(self, peer: Peer) -> None:
        super().__init__(peer)
        self.messages = [dumps({"role": "user", "content": TASK})]

    def ask(self, output: str) -> tuple[int, Heard]:
        if self.call_id:
            self.messages.append(dumps({"role": "tool", "tool_call_id": self.call_id, "content": output}))
        head = b'{"model":"%b","stream":true,"stream_options":{"include_usage":true},"tools":%b,"messages":['
        body = head % (self.peer.model.encode(), CHAT_TOOLS) + b",".join(self.messages) + b"]}"
        return self.post("/chat/completions", body, CHAT_TOKEN)

    def learn(self, heard: Heard) -> tuple[int, int, int]:
        events = sse_events(heard.data)
        deltas = [choice["delta"] for event in events for choice in event["choices"]]
        texts = [delta["content"] for delta in deltas if delta.get("content")]
        pieces = [piece for delta in deltas for piece in delta.get("tool_calls", ())]
        usage = events[-1].get("usage")
        if not pieces or not usage:
            raise BenchmarkError(f"{self.name}: no call or no usage; last event {events[-1:]}")
        self.check_text("".join(texts))
        self.call_id = pieces[0]["id"]
        arguments = "".join(piece["function"].get("arguments", "") for piece in pieces)
        call = {"id": self.call_id, "type": "function", "function": {"name": TOOL, "arguments": arguments}}
        self.messages.append(dumps({"role": "assistant", "content": "".join(texts), "tool_calls": [call]}))
        return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], len(texts)


class ResponsesWay(Way):
    """What the ways over the Responses API share: the items of a turn and the grammar of its events."""

    response_id = ""

    def new_items(self, output: str) -> bytes:
        """The turn's new input items, as JSON without brackets."""
        if not self.call_id:
            return dumps({"type": "message", "role": "user", "content": TASK})
        return dumps({"type": "function_call_output", "call_id": self.call_id, "output": output})

    def body(self, items: bytes, *, store: bool, head: bytes = b'"stream":true,') -> bytes:
        """A create body; ``head`` is what stands before the model."""
        previous = b'"previous_response_id":"%b",' % self.response_id.encode() if self.response_id else b""
        forced = b'"tool_choice":"required",' if self.peer.is_forced else b""
        fixed = b'{%b"model":"%b","store":%b,%b%b"tools":%b,"input":['
        stored = b"true" if store else b"false"
        return fixed % (head, self.peer.model.encode(), stored, previous, forced, TOOLS) + items + b"]}"

    def events(self, heard: Heard) -> list[dict[str, Any]]:
        return sse_events(heard.data)

    def learn(self, heard: Heard) -> tuple[int, int, int]:
        events = self.events(heard)
        last = events[-1] if events else {}
        if last.get("type") != "response.completed":
            raise BenchmarkError(f"{self.name}: the turn ended with {json.dumps(last)[:500]}")
        if self.peer.is_ours:
            self.check_grammar(events)
        response = last["response"]
        calls = [item for item in response["output"] if item["type"] == "function_call"]
        if len(calls) != 1 or not calls[0]["call_id"] or calls[0]["name"] != TOOL:
            raise BenchmarkError(f"{self.name}: one call of {TOOL} was due: {response['output']}")
        texts = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
        self.check_text("".join(texts))
        self.call_id = calls[0]["call_id"]
        self.keep(response)
        usage = response["usage"]
        return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], len(texts)

    def check_grammar(self, events: list[dict[str, Any]]) -> None:
        """That these are a whole turn, without a gap."""
        if events[0]["type"] != "response.created" or any(event["type"] == "error" for event in events):
            raise BenchmarkError(f"{self.name}: not a turn: {[event['type'] for event in events]}")
        if [event["sequence_number"] for event in events] != list(range(len(events))):
            raise BenchmarkError(f"{self.name}: sequence numbers with a gap")

    def keep(self, response: dict[str, Any]) -> None:
        """Keep what the next turn needs of a completed response."""
        self.response_id = response["id"]


class HttpNew(ResponsesWay):
    """HTTP as stateless clients do it: a new connection and the whole history each turn, nothing stored."""

    name = "http-new"
    keeps_connection = False

    def __init__(self, peer: Peer) -> None:
        super().__init__(peer)
        self.items: list[bytes] = []

    def ask(self, output: str) -> tuple[int, Heard]:
        self.items.append(self.new_items(output))
        return self.post("/responses", self.body(b",".join(self.items), store=False), TOKEN)

    def keep(self, response: dict[str, Any]) -> None:
        self.items.extend(dumps(item) for item in response["output"])


class HttpKeep(HttpNew):
    """The whole history each turn, on one keep-alive connection."""

    name = "http-keep"
    keeps_connection = True


class HttpPrevious(ResponsesWay):
    """HTTP keep-alive with ``previous_response_id``: only new items are sent, and the server stores each response."""

    name = "http-prev"

    def ask(self, output: str) -> tuple[int, Heard]:
        return self.post("/responses", self.body(self.new_items(output), store=True), TOKEN)


class WebSocket(ResponsesWay):
    """WebSocket mode: one socket, ``previous_response_id``, only new items, nothing stored."""

    name = "ws"
    is_stored = False
    headers: dict[str, str] = {}
    """More headers for the handshake."""

    def open(self) -> None:
        super().open()
        assert self.sock, "connected just now"
        headers = {"Authorization": f"Bearer {self.peer.key}", **self.headers}
        upgrade(self.sock, f"{self.path}/responses", self.host, headers)

    def ask(self, output: str) -> tuple[int, Heard]:
        assert self.sock, "opened before the first turn"
        head = b'"type":"response.create",'
        message = frame(self.body(self.new_items(output), store=self.is_stored, head=head))
        self.sock.sendall(message)
        heard = hear(self.sock, first=TOKEN, ended=turn_ended(TERMINAL), timeout=self.peer.timeout)
        return len(message), heard

    def events(self, heard: Heard) -> list[dict[str, Any]]:
        assert self.sock, "the turn was heard on it"
        return frame_events(self.sock, heard.data)


class WebSocketStored(WebSocket):
    """The same, and each response is stored."""

    name = "ws-stored"
    is_stored = True


class OneLongResponse(WebSocket):
    """The whole loop as one response that waits at its calls: what WebSocket mode should come close to.

    There is no terminal event and so no usage before the loop ends: its turns report no input tokens.
    """

    name = "ws-long"
    headers = {"OpenAI-Beta": "responses_rollout=v1"}
    next_number = 0

    def ask(self, output: str) -> tuple[int, Heard]:
        assert self.sock, "opened before the first turn"
        if self.response_id:
            fixed = b'{"type":"response.append","response_id":"%b","input":['
            body = fixed % self.response_id.encode() + self.new_items(output) + b"]}"
        else:
            body = self.body(self.new_items(output), store=False, head=b'"type":"response.create",')
        message = frame(body)
        self.sock.sendall(message)
        return len(message), hear(self.sock, first=TOKEN, ended=turn_ended(WAITING), timeout=self.peer.timeout)

    def learn(self, heard: Heard) -> tuple[int, int, int]:
        events = self.events(heard)
        last = events[-1] if events else {}
        if last.get("type") != "response.done" or len(last["required"]) != 1 or last["required"][0]["name"] != TOOL:
            raise BenchmarkError(f"{self.name}: the step ended with {json.dumps(last)[:500]}")
        numbers = [event["sequence_number"] for event in events]
        if numbers != list(range(self.next_number, self.next_number + len(events))):
            raise BenchmarkError(f"{self.name}: sequence numbers with a gap")
        self.next_number += len(events)
        texts = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
        self.check_text("".join(texts))
        self.response_id = last["response_id"]
        self.call_id = last["required"][0]["call_id"]
        return 0, 0, len(texts)


WAYS: dict[str, type[Way]] = {
    way.name: way
    for way in (EngineDirect, HttpNew, HttpKeep, HttpPrevious, WebSocket, WebSocketStored, OneLongResponse)
}
