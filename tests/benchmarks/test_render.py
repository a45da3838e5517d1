"""The rendering benchmark runs, takes the way that it says, and tells where."""

import json
from pathlib import Path

import pytest

from benchmarks.render import main
from tests.rendering import families


def test_one_round_of_a_short_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(families.document(families.CHATML)))

    assert main(["--sizes", "500,1500", "--rounds", "1", "--tokenizer", str(path)]) == 0

    told = capsys.readouterr().out
    assert "- command: `python -m benchmarks.render" in told
    assert [line.split(" | ")[0] for line in told.splitlines() if line.startswith("| ")][1:] == [
        "| ---:",
        "| 500",
        "| 1500",
    ]
