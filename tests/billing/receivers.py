"""Other billing systems, as servers of this machine that remember what they were told."""

import json
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qsl


class Heard(NamedTuple):
    """One POST."""

    headers: dict[str, str]
    """With names in small letters."""
    body: bytes


class Server(ThreadingHTTPServer):
    daemon_threads = True
    # With socketserver's 5 those that come together are told to come again in a second.
    request_queue_size = 64


class Receiver:
    """A context manager. Takes everything, unless ``answer`` gives another status; 0: it hangs up."""

    def __init__(self) -> None:
        self.heard: list[Heard] = []
        self.answer: Callable[[Heard], int] = lambda _heard: 204

    def __enter__(self) -> "Receiver":
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                headers = {name.lower(): value for name, value in self.headers.items()}
                status, said = receiver.take(Heard(headers, self.rfile.read(length)))
                if not status:
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, *_args: Any) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=lambda: self._server.serve_forever(poll_interval=0.02), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def take(self, heard: Heard) -> tuple[int, bytes]:
        """The status and the body of the answer."""
        self.heard.append(heard)
        return self.answer(heard), b""

    @property
    def ids(self) -> list[str]:
        """What each POST calls itself, in order."""
        return [heard.headers["webhook-id"] for heard in self.heard]

    def counted(self) -> dict[str, dict[str, Any]]:
        """By id the data of what was taken, each once."""
        taken = [heard for heard in self.heard if self.answer(heard) < 300]
        return {heard.headers["webhook-id"]: json.loads(heard.body)["data"] for heard in taken}


class Meter(Receiver):
    """Behaves as Stripe's meter events do: knows a customer, counts an identifier once and refuses it then."""

    KEY = "sk_test_meter"

    def __init__(self, *customers: str) -> None:
        super().__init__()
        self.customers = customers
        self.events: dict[str, dict[str, str]] = {}
        self.busy: Counter[str] = Counter()
        self.most_at_once: Counter[str] = Counter()
        """By customer."""
        self.during: Callable[[], object] = lambda: None

    def take(self, heard: Heard) -> tuple[int, bytes]:
        self.heard.append(heard)
        event = dict(parse_qsl(heard.body.decode(), strict_parsing=True))
        customer = event["payload[stripe_customer_id]"]
        self.busy[customer] += 1
        self.most_at_once[customer] = max(self.most_at_once[customer], self.busy[customer])
        self.during()
        self.busy[customer] -= 1
        status = self.answer(heard)
        if status >= 300:
            return status, b'{"error": {"message": "not now"}}'
        if heard.headers["authorization"] != f"Bearer {self.KEY}":
            return 401, b'{"error": {"message": "Invalid API Key provided"}}'
        if customer not in self.customers:
            return 400, b'{"error": {"code": "resource_missing", "message": "No such customer"}}'
        if event["identifier"] in self.events:
            return 400, b'{"error": {"code": "duplicate_meter_event", "message": "A meter event exists"}}'
        int(event["payload[value]"])
        self.events[event["identifier"]] = event
        return 200, b'{"object": "billing.meter_event"}'

    def sums(self) -> dict[str, int]:
        """By customer."""
        sums: dict[str, int] = defaultdict(int)
        for event in self.events.values():
            sums[event["payload[stripe_customer_id]"]] += int(event["payload[value]"])
        return dict(sums)
