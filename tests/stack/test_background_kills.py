"""Background responses whose process is killed: another one goes on with them, or says how far they were."""

import http.client
import json
import signal
import subprocess
import threading
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.live import until

from .checker import check
from .rig import Rig, Web
from .turns import SECONDS, TERMINAL, Client, Turn

pytestmark = pytest.mark.stack

INPUT = "!tokens 80 !rate 100 once upon a time"

SOME = [("queue.after:1", True), ("output.after:20", True), ("output.after:20", False), ("end.written:1", False)]
"""Where the process is killed, and whether the response is streamed: queued; under way; about to be durable."""
ALL = [
    *((fault, True) for fault in ("queue.after:1", "engine.before:1", "engine.after:1", "output.before:1")),
    *((fault, True) for fault in ("output.after:20", "end.before:1", "end.begun:1", "end.written:1", "end.durable:1")),
    *((fault, False) for fault in ("queue.after:1", "engine.after:1", "output.before:1", "output.after:20")),
    *((fault, False) for fault in ("end.before:1", "end.written:1", "end.durable:1")),
]


def listen(client: Client, turn: Turn, method: str, path: str, body: dict[str, Any] | None = None) -> None:
    """Server-sent events, up to the end of the stream or of the server."""
    address = urlsplit(client.url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=SECONDS)
    headers = {**client.headers, "Content-Type": "application/json"}
    try:
        connection.request(method, f"/v1{path}", None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        while line := answer.readline():
            if line.startswith(b"data: {"):
                turn.events.append(json.loads(line.removeprefix(b"data: ")))
    except (OSError, http.client.HTTPException):
        # Killed.
        pass
    finally:
        connection.close()


def ask_in_background(client: Client, label: str, *, stream: bool) -> Turn:
    turn = client.begin(label, background=True, stream=stream, input=INPUT)
    if stream:
        listen(client, turn, "POST", "/responses", turn.asked)
    else:
        try:
            turn.label = client.ask("POST", "/responses", turn.asked)[1]["id"]
        except OSError:
            pass
    return turn


@pytest.mark.parametrize(
    "faults", [pytest.param(SOME, id="some"), pytest.param(ALL, id="all", marks=pytest.mark.chaos)]
)
def test_a_background_response_outlives_its_process_wherever_that_is_killed(
    rig: Rig, well: Web, faults: list[tuple[str, bool]]
) -> None:
    before = ended(rig)
    doomed = [rig.web(f"doomed{number}", fault=f"{fault}:kill") for number, (fault, _) in enumerate(faults)]
    turns: dict[int, Turn] = {}

    def be_killed(number: int) -> None:
        fault, stream = faults[number]
        turns[number] = ask_in_background(doomed[number].client(), f"{fault}, stream {stream}", stream=stream)

    threads = [threading.Thread(target=be_killed, args=(number,)) for number in range(len(faults))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for web in doomed:
        be_dead(web)
    # On a slow machine one of them may have taken over what another had left.
    rig.interrupted(2 * len(faults))
    client = well.client()
    # Output that comes in fewer runs than expected ends before the process does.
    told = {
        turn.response_id
        for turn in turns.values()
        if turn.has_output and turn.terminal is None and "end.durable" not in turn.label
    }
    for turn in turns.values():
        if turn.response_id is not None and turn.terminal is None:
            after = turn.events[-1]["sequence_number"]
            listen(client, turn, "GET", f"/responses/{turn.response_id}?stream=true&starting_after={after}")
    # Also those whose client has not even heard an id.
    until(lambda: len(ended(rig).keys() - before.keys()) == len(faults), "all of them to end", seconds=30)
    statuses = {response_id: status for response_id, status in ended(rig).items() if response_id not in before}
    heard = {turn.response_id: turn for turn in turns.values() if turn.response_id is not None}
    books = check(rig, well)

    for response_id, turn in heard.items():
        # What has been told once is not told again, and what has not been told may be told from the start.
        assert [kind for kind in turn.kinds if kind in TERMINAL] == turn.kinds[-1:], turn.label
        assert turn.response["status"] == statuses[response_id]
        assert statuses[response_id] == "failed" or response_id not in told, turn.label
    polled = {status for response_id, status in statuses.items() if response_id not in heard}
    assert polled == {"completed"}
    assert len(books["records"]) == len(faults)


def be_dead(web: Web) -> None:
    """Killed where it was told to be; or, where a slow machine has not come that way, wherever it is."""
    try:
        assert web.died() == -signal.SIGKILL
    except subprocess.TimeoutExpired:
        web.signal(signal.SIGKILL)
        web.died()


def ended(rig: Rig) -> dict[str, str]:
    """The responses that have ended, by their ids."""
    stored = rig.books()["stored"]
    return {response_id: status for response_id, status in stored.items() if status in ("completed", "failed")}
