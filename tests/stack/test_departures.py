"""Whoever leaves, and whoever is held up, is on the books as the engine made it, once."""

import secrets
import threading
from collections.abc import Callable

import pytest

from tests.live import until

from .checker import check
from .rig import REAP, Rig, Web

pytestmark = pytest.mark.stack


def test_a_client_that_leaves_at_any_event_pays_for_what_was_made(
    rig: Rig, well: Web, figure: Callable[..., None]
) -> None:
    client, left_at = well.client(), 0
    said = {"input": f"!tokens 6 !rate 40 leaving zdr-{secrets.token_hex(8)}", "store": False}
    for model in ("scripted", "fake-chat"):
        whole = client.turn(f"whole on {model}", model=model, **said)
        for number in range(1, len(whole.events)):
            with client.socket() as socket:
                socket.turn(f"left at {number} on {model}", stop_after=number, model=model, **said)
                socket.drop()
            left_at += 1

    books = check(rig, well)

    statuses = [record["status"] for record in books["records"]]
    # The others had ended before the server heard of it.
    assert statuses.count("cancelled") > left_at / 4
    figure("E-11", "clients cut at every event boundary (E-11)", target="billed is what was made", measured=left_at)


def test_the_reaper_and_a_living_owner_never_both_close_a_record(rig: Rig, well: Web) -> None:
    slow = rig.web("slow", fault="end.before:1:sleep:2")
    said = {"input": "!tokens 30 !rate 100 held up"}
    asking = threading.Thread(target=slow.client().turn, args=("held up",), kwargs=said)

    asking.start()
    turn = until(lambda: next((turn for turn in rig.history.turns() if turn.has_output), None), "output")
    assert turn.response_id is not None
    rig.engine.tokens.call(turn.response_id)
    closed = int(rig.run(REAP))
    asking.join(30)
    slow.stop()
    rig.excuse(slow)
    books = check(rig, well)

    assert closed == 1
    assert turn.kinds[-1] == "response.failed"
    assert [record["status"] for record in books["records"]] == ["abandoned"]
