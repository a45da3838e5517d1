"""Tables, targets, claims and pictures say what was found."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import charts, peers
from benchmarks.figures import Figure, Findings, said


@pytest.mark.parametrize(
    ("value", "shown"), [(0.864, "0.86"), (12.34, "12.3"), (44612.4, "44612"), (0, "0.00"), (-1.5, "-1.50")]
)
def test_a_number_has_the_places_that_are_worth_reading(value, shown):
    assert said(value) == shown


@pytest.mark.parametrize(
    ("figure", "is_met", "target"),
    [
        pytest.param(Figure("t", "r", "c", [1, 2, 9], at_most=2), True, "≤ 2.00", id="the median is at most that"),
        pytest.param(Figure("t", "r", "c", [1, 3, 9], at_most=2), False, "≤ 2.00", id="it is more"),
        pytest.param(Figure("t", "r", "c", [5], at_least=5), True, "≥ 5.00", id="it is at least that"),
        pytest.param(Figure("t", "r", "c", [4], at_least=5), False, "≥ 5.00", id="it is less"),
    ],
)
def test_a_target_is_compared_with_the_median_of_the_rounds(figure, is_met, target):
    assert figure.is_met is is_met
    assert figure.target == target


def test_a_table_has_a_row_for_each_and_a_missed_target_is_told(capsys):
    findings = Findings("benchmarks.test", 3, ["--quick"], notes=["Nothing else ran."])
    findings.add("turns", "ws", "ms", [1, 2, 3], at_most=1)
    findings.add("turns", "http", "CPU ms", [4])

    findings.tell()

    printed = capsys.readouterr().out
    assert "- command: `python -m benchmarks.test --quick`" in printed
    assert "| | ms | CPU ms |" in printed
    assert "| ws | 2.00 (1.00–3.00) |  |" in printed
    assert "| http |  | 4.00 |" in printed
    assert "| ws: ms | 2.00 | ≤ 1.00 | **missed** |" in printed
    assert printed.endswith("Nothing else ran.\n")


@pytest.mark.parametrize(
    ("theirs", "is_lost"), [pytest.param(2.0, False, id="slower than we are"), pytest.param(0.5, True, id="faster")]
)
def test_a_claim_is_lost_to_whoever_adds_less(theirs, is_lost):
    findings = Findings("benchmarks.peers", 1, [])
    findings.add("chains", "responses_ws ws", peers.ADDED, [1.0])
    findings.add("chains", "agentic-api ws", peers.ADDED, [theirs])

    told, has_lost = peers.claims(findings)

    assert has_lost is is_lost
    assert f"| adds less to a turn than agentic-api's socket | 1.00 | {said(theirs)} |" in told[2]
    assert told[3].endswith("| not measured |")
    assert peers.winners(findings)[2].startswith(
        f"| added ms/turn | {'agentic-api ws | 0.50' if is_lost else 'responses_ws ws | 1.00'} |"
    )


def test_pictures_are_drawn_of_what_was_found(tmp_path: Path):
    found, images = tmp_path / "found", tmp_path / "images"
    found.mkdir()
    load = {"turns": 100, "tokens": 100, "rate": 1000, "engine": "ids"}
    rollouts = [{"load": load, "way": way, "seconds": seconds} for way, seconds in (("ws", 10.4), ("http-new", 20.9))]
    series = {
        f"{way}, ids": [1.0 + number * step for number in range(20)] for way, step in (("ws", 0), ("http-keep", 2))
    }
    (found / "agent_loop.json").write_text(json.dumps({"series": {"rollouts": rollouts}}))
    (found / "turn_overhead.json").write_text(json.dumps({"series": series}))

    assert charts.main(["--found", str(found), "--into", str(images)]) == 0

    assert sorted(path.name for path in images.iterdir()) == ["agent-loop.svg", "turn-overhead.svg"]
    for path in images.iterdir():
        drawn = path.read_text()
        ElementTree.fromstring(drawn)
        assert "prefers-color-scheme: dark" in drawn
    words = (images / "agent-loop.svg").read_text()
    assert all(shown in words for shown in ("10.4 s", "20.9 s", "9.90 s"))
