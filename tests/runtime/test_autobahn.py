"""RFC 6455 by Autobahn's cases, against our server."""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .echo import echoing

# Sizes and times (9) take minutes; 12 and 13 are about compression.
QUICK = ("1.*", "2.*", "3.*", "4.*", "5.*", "6.*", "7.*", "10.*")
LONG = ("9.*", "12.*", "13.*")
Figure = Callable[..., None]
PASSED = {"OK", "NON-STRICT", "INFORMATIONAL"}

# In a process of its own: what it brings of autobahn does not get on with the package.
COMMAND = [sys.executable, "-c", "from kosoku._cli import main; main()", "-m", "fuzzingclient"]


async def verdicts(directory: Path, cases: tuple[str, ...], *, at_once: int) -> dict[str, tuple[str, str]]:
    """What became of each case: of its messages, and of its end."""
    included = [word for case in cases for word in ("-i", case)]
    async with echoing() as port:
        arguments = [*included, "-p", str(at_once), "-o", str(directory), f"ws://127.0.0.1:{port}"]
        process = await asyncio.create_subprocess_exec(*COMMAND, *arguments, stdout=asyncio.subprocess.DEVNULL)
        await process.wait()
    (results,) = json.loads((directory / "index.json").read_text()).values()
    return {case: (result["behavior"], result["behaviorClose"]) for case, result in results.items()}


async def test_every_case_passes(tmp_path: Path, figure: Figure) -> None:
    results = await verdicts(tmp_path, QUICK, at_once=16)

    failed = {case: found for case, found in results.items() if not set(found) <= PASSED}
    figure(
        7, "Autobahn cases 1-7 and 10", target="247 of 247", measured=f"{len(results) - len(failed)} of {len(results)}"
    )
    assert failed == {}
    assert len(results) == 247


@pytest.mark.chaos
async def test_large_messages_pass_and_compression_is_declined(tmp_path: Path, settings: Any, figure: Figure) -> None:
    """Here more and longer messages are sent than a client of ours may."""
    limits = {"frames_per_second": 1e6, "frames_at_once": 10**6, "message_fragments": 10**6, "message_seconds": 600}
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "LIMITS": limits}

    results = await verdicts(tmp_path, LONG, at_once=2)

    failed = {case: found for case, found in results.items() if not PASSED | {"UNIMPLEMENTED"} >= set(found)}
    declined = sum("UNIMPLEMENTED" in found for found in results.values())
    said = f"{len(results) - len(failed)} of {len(results)}, {declined} of them not implemented"
    figure(8, "Autobahn cases 9, 12 and 13", target="all, or not implemented", measured=said)
    assert failed == {}
    assert all(case.startswith(("12.", "13.")) for case, found in results.items() if "UNIMPLEMENTED" in found)
