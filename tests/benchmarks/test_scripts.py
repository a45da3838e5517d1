"""Each benchmark runs in small, finds what it names, and complains of a server that does not do its work."""

import contextlib
import json
from pathlib import Path

import pytest

from benchmarks import idle, peers, stream, turn_overhead
from benchmarks.crowd import Crowd
from benchmarks.figures import Findings
from benchmarks.http import DOORS, SOCKET, knocks
from benchmarks.loop import Load
from benchmarks.wire import BenchmarkError

pytestmark = pytest.mark.stack


@pytest.fixture
def findings() -> Findings:
    return Findings("benchmarks.test", 1, [])


def cells(findings: Findings) -> set[tuple[str, str]]:
    return {(figure.row, figure.column) for figure in findings.figures}


def test_turn_overhead_tells_of_every_way_early_and_late(engine, server, findings, tmp_path, capsys):
    load = Load(12, 5, 0)

    turn_overhead.tell(findings, load, turn_overhead.chains(load, turn_overhead.WAYS, 1, engine, server))

    findings.tell(tmp_path / "found.json")
    ours = [way for way in turn_overhead.WAYS if way != "engine"]
    wanted = {(way, column) for way in ours for column in ("added ms/turn", "growth of what is added", "CPU ms/turn")}
    assert wanted | {("ws over ws-long", "added ms/turn")} <= cells(findings)
    written = json.loads((tmp_path / "found.json").read_text())
    assert {name: len(turns) for name, turns in written["series"].items()} == dict.fromkeys(turn_overhead.WAYS, 12)
    assert "| ws: added ms/turn |" in capsys.readouterr().out


def test_stream_counts_every_token_of_every_socket(engine, server, findings):
    stream.full_speed(findings, engine, server, tokens=50, rounds=1)
    stream.burst(findings, server, seconds=0.05, rounds=1)
    stream.scaling(findings, engine, {1: server}, tokens=20, rounds=1)

    assert {("ws", "tokens/s"), ("http-prev", "CPU µs/token"), ("engine", "tokens/s")} <= cells(findings)
    assert all(figure.median > 0 for figure in findings.figures if figure.column.startswith("tokens/s"))


def test_a_token_too_few_ends_the_benchmark(server):
    with Crowd(server, 2) as crowd, pytest.raises(BenchmarkError, match="6 tokens were due in each turn, and 5 came"):
        crowd.turn("fake-t5-r0-f0", 6)


def test_a_turn_that_fails_ends_the_benchmark(server):
    with Crowd(server, 1) as crowd, pytest.raises(BenchmarkError, match="a turn failed"):
        crowd.turn("instant-unknown", 5)


def test_idle_holds_sockets_and_waits_for_a_slow_read(server, monkeypatch):
    monkeypatch.setattr(idle, "SETTLED_SECONDS", 0.05)

    with contextlib.ExitStack() as held:
        kib = idle.a_socket(server, 20, idle.create(idle.ANSWER["chat"]), held)
        ratio = idle.chain_to_json(server, "chat", 1, 2, held)
    alone, beside = idle.beside_a_slow_read(server, 1)

    assert kib < 4096
    assert ratio < 10_000
    assert len(alone) == len(beside) == 1
    with contextlib.ExitStack() as held:
        (sock,) = idle.opened(server, 1, timeout=10)
        held.callback(sock.close)
        with pytest.raises(BenchmarkError, match="not the answer"):
            idle.heard(sock, idle.create("unknown"))


def test_every_door_is_answered(server):
    with contextlib.ExitStack() as held:
        took = {door: knock() for door, knock in knocks(server, held).items()}

    assert took.keys() == {*DOORS, SOCKET}


def test_who_does_not_keep_the_history_drops_out_of_the_race(engine, server, findings):
    # The engine has a Responses API of its own, which remembers nothing.
    race = peers.Race(engine)
    race.join(peers.OURS, server, ["ws"])
    race.join("stateless", engine, ["http-keep", "http-prev"])

    peers.chains(race, findings, Load(12, 5, 0), 1)
    peers.streams(race, findings, 50, 1)

    assert list(race.dropped) == [("stateless", "http-prev")]
    assert "did not get the history" in race.dropped["stateless", "http-prev"]
    assert {(row, "added ms/turn") for row in ("responses_ws ws", "stateless http-keep")} <= cells(findings)


def test_a_product_that_cannot_be_had_is_left_out_with_a_note(engine, tmp_path: Path):
    broken = peers.Product("broken", ("broken==1",), lambda _place: [], ("ws",))
    no_directory = tmp_path / "file"
    no_directory.touch()
    race = peers.Race(engine)

    with contextlib.ExitStack() as stack:
        note = peers.join(race, broken, no_directory, [], stack)

    assert note.startswith("broken is not among them.")
    assert race.entrants == []
