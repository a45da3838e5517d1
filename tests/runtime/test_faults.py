"""Fault points: declared once, placed somewhere, and doing what they are told."""

import asyncio
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import responses_ws
from responses_ws.runtime import faults
from responses_ws.runtime.faults import POINTS, Fault, arm, faultpoint

PLACED = re.compile(r'\b(?:faultpoint|faults\.sent)\("([^"]+)"\)')


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    arm("")


def test_every_declared_point_is_placed_and_every_placed_one_declared() -> None:
    sources = Path(responses_ws.__file__).parent.rglob("*.py")

    placed = {name for source in sources for name in PLACED.findall(source.read_text())}

    assert placed == set(POINTS)
    assert len(POINTS) == len(set(POINTS))


def test_a_point_breaks_on_the_pass_that_was_named_and_on_no_other() -> None:
    arm("end.before:3:raise")
    raised = []

    for number in range(1, 6):
        faultpoint("end.durable")
        try:
            faultpoint("end.before")
        except Fault:
            raised.append(number)

    assert raised == [3]


def test_a_point_that_is_not_armed_does_nothing_and_one_that_is_not_declared_is_an_error() -> None:
    faultpoint("end.before")
    arm("end.before:1:raise")

    with pytest.raises(AssertionError, match=r"nowhere\.before"):
        faultpoint("nowhere.before")


@pytest.mark.parametrize("text", ["end.soon:1:kill", "end.before:1:tickle", "end.before:1:sleep"])
def test_what_cannot_be_armed_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"fault point"):
        arm(text)


def test_a_point_holds_its_thread_for_so_many_seconds() -> None:
    arm("end.before:1:sleep:0.05")
    began = time.monotonic()

    faultpoint("end.before")

    assert time.monotonic() - began >= 0.05


async def test_a_point_cancels_the_task_that_passes_it() -> None:
    arm("end.before:1:cancel")

    async def work() -> None:
        faultpoint("end.before")
        await asyncio.sleep(0)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(work())


def test_the_environment_kills_a_process() -> None:
    code = f"import sys; sys.path.insert(0, {str(Path(responses_ws.__file__).parent.parent)!r})\n"
    code += "from responses_ws.runtime.faults import faultpoint\n"
    code += "faultpoint('end.before'); print('passed', flush=True); faultpoint('end.before'); print('lived')"

    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"RESPONSES_WS_FAULT": "end.before:2:kill"},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (run.returncode, run.stdout) == (-signal.SIGKILL, "passed\n")


def test_nothing_is_armed_where_the_environment_says_nothing() -> None:
    assert faults.read("") is None
