"""The benchmark runs and checks what it should. How fast anything is, is not for a test to say."""

import json

import pytest

from benchmarks.agent_loop import main, measure
from benchmarks.fake_answers import text_of
from benchmarks.fake_engine import Pace, prompt_tokens, tool_offered, value_after
from benchmarks.loop import Load, Rollout, run, tool_outputs
from benchmarks.report import table
from benchmarks.ways import WAYS, Peer, Turn, WebSocket
from benchmarks.wire import BenchmarkError, frame, frames


@pytest.mark.parametrize("rate", [0, 2000])
def test_three_turns_straight_against_the_engine(engine, rate):
    load = Load(turns=3, tokens=5, rate=rate)

    rollout = run("engine", load, Peer(engine.url, "", load.model), pid=engine.pid)

    assert [turn.deltas for turn in rollout.turns] == [5, 5, 5]
    assert all(0 < turn.first_token <= turn.seconds for turn in rollout.turns)
    sent = [turn.sent_bytes for turn in rollout.turns]
    assert sent[1] - sent[0] > 2048
    assert sent[2] - sent[1] > 2048
    assert [turn.input_tokens for turn in rollout.turns] == sorted({turn.input_tokens for turn in rollout.turns})


def test_the_table_has_a_line_for_each_way_and_the_file_every_turn(engine, tmp_path, capsys):
    path = tmp_path / "turns.json"

    code = main(
        ["-K", "3", "--paces", "5x0", "--engines", "chat", "--ways", "engine", "--rounds", "2", "--json", str(path)]
    )

    assert code == 0
    printed = capsys.readouterr().out
    assert "| 3 | 5 × max (at once) | engine |" in printed
    assert "- machine: " in printed
    written = json.loads(path.read_text())
    assert [len(rollout["turns"]) for rollout in written["series"]["rollouts"]] == [3, 3]


def test_a_text_that_is_not_the_engines_is_refused():
    way = WebSocket(Peer("http://127.0.0.1:1/v1", "", "fake-t5-r0-f0"))

    way.check_text(text_of(5))
    with pytest.raises(BenchmarkError, match="not the engine's"):
        way.check_text(text_of(4))


def test_a_server_that_forgets_the_history_ends_the_benchmark(engine):
    load = Load(turns=3, tokens=5, rate=0)

    # The engine's own Responses API keeps nothing.
    with pytest.raises(BenchmarkError, match="did not get the history"):
        measure([load], ["http-prev"], 1, engine=engine, server=engine)


@pytest.mark.parametrize(
    ("edges", "growth"),
    [pytest.param((0.01, 0.01), 1.0, id="flat"), pytest.param((0.01, 0.03), 3.0, id="growing")],
)
def test_growth_compares_the_last_ten_turns_with_the_first_ten(edges, growth):
    first, last = edges
    rollout = Rollout(Load(turns=30, tokens=5, rate=0), "ws")
    rollout.turns = [Turn(first if number < 20 else last, first, 1, 1, 1) for number in range(30)]

    assert rollout.growth == pytest.approx(growth)
    assert "| 30 | 5 × max (at once) | ws |" in table([rollout])


@pytest.mark.parametrize("size", [0, 125, 126, 65535, 65536])
def test_frames_carry_their_payload_as_it_is(size):
    payload = b"x" * size
    sent = frame(payload)

    # A server's frame is the client's without mask: the bit off, the four zeros gone.
    head = len(sent) - size - 4
    received = bytearray(bytes([sent[0], sent[1] & 127]) + sent[2:head] + payload)

    assert [(opcode, bytes(received[start:end])) for opcode, start, end in frames(received)] == [(1, payload)]
    assert list(frames(received[:-1])) == []


@pytest.mark.parametrize(
    ("body", "tool"),
    [
        pytest.param(b'{"model":"fake","tools":[],"messages":[]}', b"", id="none"),
        pytest.param(b'{"messages":[{"content":"\\"tools\\":[{\\"name\\":\\"x\\"}]"}]}', b"", id="only in a string"),
        pytest.param(b'{"tools": [{"type": "function", "function": {"name": "f"}}]}', b"f", id="with blanks"),
        pytest.param(
            b'{"m":"' + b"x" * 99999 + b'","tools":[{"function":{"name":"f"}}]}', b"f", id="after a long history"
        ),
    ],
)
def test_the_engine_finds_the_tools_without_parsing(body, tool):
    assert tool_offered(body) == tool


def test_a_model_name_sets_the_pace():
    assert Pace(100, 0, 0).named(b"fake-t20-r65-f120") == Pace(20, 65, 120)
    assert Pace(100, 0, 7).named(b"fake") == Pace(100, 0, 7)
    assert value_after(b'{"stream": true}', b"stream").startswith(b"true")
    assert len(text_of(12).split()) == 12


def test_the_engine_counts_the_ids_of_a_prompt_and_guesses_at_a_text():
    assert prompt_tokens(b'{"token_ids":[1,22,333],"model":"m","stop":[1,2]}') == 3
    assert prompt_tokens(b'{"messages":[{"content":"four"}]}') == len(b'{"messages":[{"content":"four"}]}') // 4


def test_tool_outputs_are_the_same_for_every_way():
    first, again = tool_outputs(), tool_outputs()

    assert [next(first) for _ in range(120)] == [next(again) for _ in range(120)]
    assert len(next(first)) == 2048


@pytest.mark.stack
@pytest.mark.parametrize("engine_asked", ["chat", "ids"])
def test_every_way_runs_its_turns_against_the_server(engine, server, engine_asked):
    ways = list(WAYS)

    rollouts = measure([Load(3, 5, 0, engine=engine_asked)], ways, 1, engine=engine, server=server)

    assert [(rollout.way, len(rollout.turns)) for rollout in rollouts] == [(way, 3) for way in ways]
