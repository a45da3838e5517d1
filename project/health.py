"""The health checks of the containers: ``python -m project.health http URL`` and ``… file NAME SECONDS``."""

import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path


def var_path(name: str) -> Path:
    return Path(os.environ.get("RESPONSES_WS_VAR", "var")) / name


def mark_alive(name: str) -> None:
    """Say that a process without a port is at work."""
    var_path(name).touch()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=4) as response:  # noqa: S310  our own address
            return response.status == 200
    except (urllib.error.URLError, OSError):
        return False


def is_recent(name: str, seconds: float) -> bool:
    """Whether ``mark_alive`` was called within the last ``seconds``."""
    try:
        return time.time() - var_path(name).stat().st_mtime < seconds
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    kind, *arguments = sys.argv[1:]
    is_well = answers(arguments[0]) if kind == "http" else is_recent(arguments[0], float(arguments[1]))
    sys.exit(not is_well)
