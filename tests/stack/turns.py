"""What clients asked and what they saw: the history that the checker holds against the books."""

import json
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import Any

from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

TERMINAL = ("response.completed", "response.incomplete", "response.failed", "error")
SECONDS = 30.0
"""For anything, on a machine that does other things, too."""


@dataclass
class Turn:
    """One ``response.create`` and all that came of it, up to its terminal event or the connection's end."""

    label: str
    asked: dict[str, Any]
    key: str
    tenant: str
    """Whose key it was asked with."""
    events: list[dict[str, Any]] = field(default_factory=list)
    first_event_seconds: float | None = None

    @property
    def response_id(self) -> str | None:
        return next((event["response"]["id"] for event in self.events if "response" in event), None)

    @property
    def terminal(self) -> dict[str, Any] | None:
        return next((event for event in self.events if event["type"] in TERMINAL), None)

    @property
    def response(self) -> dict[str, Any]:
        """The final Response. Raises AssertionError: the client has seen none."""
        assert self.terminal is not None and "response" in self.terminal, f"{self.label}: no end in {self.kinds}"
        return self.terminal["response"]

    @property
    def is_acknowledged(self) -> bool:
        return self.terminal is not None and self.terminal["type"] == "response.completed"

    @property
    def has_output(self) -> bool:
        return any(event["type"].endswith(".delta") for event in self.events)

    @property
    def kinds(self) -> list[str]:
        return [event["type"] for event in self.events]


class History:
    """Turns of any number of threads."""

    def __init__(self) -> None:
        self._turns: list[Turn] = []
        self._lock = threading.Lock()

    def add(self, turn: Turn) -> Turn:
        with self._lock:
            self._turns.append(turn)
        return turn

    def turns(self) -> list[Turn]:
        with self._lock:
            return list(self._turns)

    def clear(self) -> None:
        with self._lock:
            self._turns.clear()


class Client:
    """A client of one server with one key; what it sees goes to ``history``."""

    def __init__(self, url: str, key: str, history: History, tenant: str, patience: float = SECONDS) -> None:
        self.url = url
        self.key = key
        self.tenant = tenant
        """Whose key it is: a word that is in this client's prompts only, where it is in any."""
        self.patience = patience
        """Seconds that it waits for any one event."""
        self.headers = {"Authorization": f"Bearer {key}"}
        self.history = history

    @contextmanager
    def socket(self) -> Iterator["Socket"]:
        url = f"ws{self.url.removeprefix('http')}/v1/responses"
        with connect(
            url, additional_headers=self.headers, compression=None, max_size=None, open_timeout=SECONDS, close_timeout=1
        ) as connection:
            yield Socket(connection, self)

    def turn(self, label: str, *, previous: Turn | None = None, **fields: Any) -> Turn:
        """One turn on a socket of its own, as far as it gets."""
        turn = self.begin(label, previous=previous, **fields)
        began = time.monotonic()
        try:
            with self.socket() as opened:
                opened.follow(turn, began)
        except (WebSocketException, OSError, EOFError):
            pass
        return turn

    def begin(self, label: str, *, previous: Turn | None = None, **fields: Any) -> Turn:
        """A turn that is about to be asked for."""
        if previous is not None:
            fields["previous_response_id"] = previous.response["id"]
        asked = {"model": "fake-chat", "store": True, **fields}
        return self.history.add(Turn(label, asked, self.key, self.tenant))

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """An HTTP request below ``/v1``: the status and the body. Raises OSError or HTTPException: nobody answered."""
        with closing(self._connected()) as connection:
            return self._ask(connection, method, path, body)

    def ask_all(self, paths: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
        """GET each of these, on one connection."""
        with closing(self._connected()) as connection:
            for path in paths:
                yield self._ask(connection, "GET", path)

    def _connected(self) -> HTTPConnection:
        return HTTPConnection(self.url.removeprefix("http://"), timeout=SECONDS)

    def _ask(
        self, connection: HTTPConnection, method: str, path: str, body: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        data = None if body is None else json.dumps(body)
        connection.request(method, f"/v1{path}", data, {**self.headers, "Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


class Socket:
    def __init__(self, connection: ClientConnection, client: Client) -> None:
        self.connection = connection
        self.client = client

    def turn(self, label: str, *, stop_after: int | None = None, **fields: Any) -> Turn:
        """A turn up to its end, or up to so many of its events. Raises ConnectionClosed."""
        turn = self.client.begin(label, **fields)
        self.follow(turn, time.monotonic(), stop_after=stop_after)
        return turn

    def follow(self, turn: Turn, began: float, *, stop_after: int | None = None) -> None:
        self.connection.send(json.dumps({"type": "response.create", **turn.asked}))
        while turn.terminal is None and (stop_after is None or len(turn.events) < stop_after):
            turn.events.append(json.loads(self.connection.recv(self.client.patience)))
            if turn.first_event_seconds is None:
                turn.first_event_seconds = time.monotonic() - began

    def drop(self) -> None:
        """Leave as a killed process does: no close frame, and nothing read any more."""
        self.connection.socket.shutdown(socket.SHUT_RDWR)
