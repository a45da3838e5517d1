"""The wheel: what pip brings into someone else's project."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from openai import OpenAI

from tests.ports import free_port

from .fresh_project import FreshProject

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: a build leaves directories behind, and takes in what an earlier one left."""
    directory = tmp_path_factory.mktemp("wheel")
    source = directory / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "responses_ws", source / "responses_ws", ignore=shutil.ignore_patterns("__pycache__"))
    pip("wheel", "--no-deps", "--wheel-dir", str(directory), str(source))
    (built,) = directory.glob("*.whl")
    return built


def pip(*arguments: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_wheel_holds_every_file_of_the_app(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("responses_ws/")}
        others = {name.split("/")[0] for name in archive.namelist()} - {"responses_ws"}

    ours = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "responses_ws").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == ours
    assert [name for name in others if not name.endswith(".dist-info")] == []


def test_a_project_runs_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    pip("install", "--no-deps", "--target", str(site), str(wheel))
    directory = tmp_path / "project"
    directory.mkdir()
    fresh = FreshProject(directory)
    fresh.environment["PYTHONPATH"] = str(site)
    key = fresh.build()
    port = free_port()

    with fresh.serving("manage.py", "responses_ws_serve", "--port", str(port), port=port) as url:
        with OpenAI(base_url=url, api_key=key) as client:
            response = client.responses.create(model="scripted", input="Hello")
    where = fresh.run("-c", "import responses_ws; print(responses_ws.__file__)").strip()

    assert response.output_text == 'You said: "Hello"'
    assert Path(where).is_relative_to(site)
