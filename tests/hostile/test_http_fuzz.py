"""Requests made from our own OpenAPI document, the right ones and the wrong ones, many thousands of them."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.raw import Door
from tests.live import Server

pytestmark = [pytest.mark.stack, pytest.mark.chaos]

SECONDS = int(os.environ.get("FUZZ_SECONDS", "300"))
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "ignored_auth",
    "unsupported_method",
    "missing_required_header",
)


def test_no_request_breaks_a_view_or_gets_what_is_not_documented(
    door: Door, server: Server, tmp_path: Path, figure: Callable[..., None]
) -> None:
    pytest.importorskip("schemathesis")

    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/v1/openapi.json"]
    command += ["--header", f"Authorization: {door.headers['Authorization']}"]
    command += ["--max-time", str(SECONDS), "--continue-on-failure", "--checks", ",".join(CHECKS)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS + 120)
    found = re.search(r"(\d+) generated", run.stdout)

    figure(
        10,
        f"requests made from the OpenAPI document for {SECONDS} s",
        target="0 x 5xx, 0 that the document does not describe",
        measured=run.returncode,
        requests=int(found[1]) if found else 0,
    )
    assert run.returncode == 0, run.stdout
