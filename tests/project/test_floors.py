"""No dependency is older than what is safe: neither here, nor in what we pin, nor in what we let users install."""

import re
import tomllib
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLOORS: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "security" / "floors.toml").read_text())


def numbers(text: str) -> tuple[int, ...]:
    """``"5.7"`` is ``(5, 7, 0)``."""
    found = [*map(int, re.findall(r"\d+", text.split("rc")[0])), 0, 0]
    return tuple(found[:3])


def floor_of(package: str, found: str) -> str:
    """The floor of its series; of one that is not listed, the highest."""
    floors: list[str] = FLOORS[package]["floors"]
    series = [floor for floor in floors if numbers(floor)[:2] == numbers(found)[:2]]
    return series[0] if series else max(floors, key=numbers)


def is_safe(package: str, found: str) -> bool:
    return numbers(found) >= numbers(floor_of(package, found))


def test_a_floor_is_one() -> None:
    assert [is_safe("Django", found) for found in ("5.2.18", "5.2.19", "6.0.9", "6.0.10", "6.1.2", "6.2")] == [
        False,
        True,
    ] * 3


def test_nothing_installed_is_below_its_floor(figure: Callable[..., None]) -> None:
    installed = {}
    for package in FLOORS:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            continue
    below = {package: found for package, found in installed.items() if not is_safe(package, found)}

    figure(33, "dependencies below their floor", target="0", measured=len(below), looked_at=len(installed))
    assert below == {}
    assert len(installed) >= 10


@pytest.mark.parametrize("package", FLOORS)
def test_nothing_pinned_or_asked_for_is_below_its_floor(package: str) -> None:
    name = re.escape(package)
    said = (ROOT / "requirements.txt").read_text() + (ROOT / "pyproject.toml").read_text()
    found = re.findall(rf"^[\s\"]*{name}(?:\[[\w,]+\])?(?:==|>=)([\d.]+)", said, re.MULTILINE | re.IGNORECASE)

    # Of a lower bound the whole range is open: it must be at the floor of its own series.
    assert [one for one in found if not is_safe(package, one)] == []
