"""The database goes away while turns run: who was told of an end was told the truth, and the books learn it later."""

import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.live import until

from .checker import check
from .rig import Rig, Web

pytestmark = pytest.mark.stack

SAID = "!tokens 40 !rate 20 while it goes away"
KILL_SESSIONS = """
from django.db import connection
with connection.cursor() as cursor:
    cursor.execute("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid != pg_backend_pid()"
                   " AND datname = current_database()")
    print(cursor.fetchone()[0])
"""
LOOK_FOR_IDLE = """
import time
from collections import Counter
from django.db import connection
seen, looks, end = Counter(), 0, time.monotonic() + 1.5
while time.monotonic() < end:
    looks += 1
    with connection.cursor() as cursor:
        cursor.execute("SELECT pid, xact_start FROM pg_stat_activity"
                       " WHERE state LIKE 'idle in transaction%' AND datname = current_database()")
        seen.update(cursor.fetchall())
    time.sleep(0.01)
print(max(seen.values(), default=0) / looks)
"""
"""In which part of many looks the same transaction is open, and does nothing."""


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    # Not pytest's directory, which is closed to the user as whom PostgreSQL runs.
    with tempfile.TemporaryDirectory(prefix="responses_ws_rig_") as directory:
        with Rig(Path(directory), postgres=True) as rig:
            yield rig


@pytest.fixture(scope="module")
def web(rig: Rig) -> Web:
    return rig.web("web")


def record_of(rig: Rig, response_id: str | None) -> dict[str, object]:
    return next((one for one in rig.books()["records"] if one["response_id"] == response_id), {})


def test_turns_that_end_without_a_database_are_told_the_truth_and_counted_later(rig: Rig, web: Web) -> None:
    client = web.client()
    assert client.turn("before", input="!tokens 5 hello").is_acknowledged

    with ThreadPoolExecutor(2) as pool, client.socket() as stored, client.socket() as unstored:
        running = [
            pool.submit(socket.turn, f"store={store}", input=SAID, store=store)
            for socket, store in ((stored, True), (unstored, False))
        ]
        # Both have their records, or no output would have come.
        until(lambda: all(turn.has_output for turn in rig.history.turns()), "the first output of both")
        rig.database_link.refuse()
        kept, failed = running[1].result(60), running[0].result(60)
        _, begun = client.ask("POST", "/responses", {"model": "fake-chat", "input": "hello", "store": False})
        # Whose key has to be looked for.
        refused, told = web.client("sk-nobody-knows").ask("GET", "/models")
        rig.database_link.accept()

    assert kept.is_acknowledged
    assert failed.kinds[-1] == "response.failed"
    assert begun["status"] == "failed"
    assert refused == 503 and told["error"]["code"] == "server_is_overloaded"
    ends = (
        {"response_id": kept.response_id, "status": "completed"},
        {"response_id": failed.response_id, "status": "failed"},
    )
    for end in ends:
        until(lambda end=end: record_of(rig, end["response_id"]).get("status") == end["status"], str(end), seconds=30)
    assert client.turn("after", input="!tokens 5 hello").is_acknowledged
    assert record_of(rig, kept.response_id)["output_tokens"] == kept.response["usage"]["output_tokens"]
    check(rig, web)


def test_no_transaction_is_open_while_turns_stream(rig: Rig, web: Web) -> None:
    client = web.client()

    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(client.turn, f"stream {number}", input=SAID) for number in range(4)]
        until(lambda: any(turn.has_output for turn in rig.history.turns()), "the first output")
        share = float(rig.run(LOOK_FOR_IDLE).split()[-1])
    turns = [turn.result() for turn in running]

    # One that was held for a stream would be there all the time.
    assert share < 0.5
    assert all(turn.is_acknowledged for turn in turns), [turn.kinds[-1:] for turn in turns]
    check(rig, web)


def test_sessions_that_the_server_ends_cost_no_turn(rig: Rig, web: Web) -> None:
    client = web.client()

    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(client.turn, f"turn {number}", input=SAID) for number in range(4)]
        until(lambda: all(turn.has_output for turn in rig.history.turns()), "the first output of all")
        ended = 0
        for _ in range(3):
            ended += int(rig.run(KILL_SESSIONS).split()[-1])
            time.sleep(0.5)
    turns = [turn.result() for turn in running]

    assert ended > 0
    assert all(turn.is_acknowledged for turn in turns), [turn.kinds[-1:] for turn in turns]
    check(rig, web)
