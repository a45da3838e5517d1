"""The reference names what the code can say, and nothing else."""

import re

import pytest
from django.core.management import get_commands

from responses_ws.connection.limits import Limits
from responses_ws.protocol import errors

from .pages import DOCS, ROOT

APP = ROOT / "responses_ws"


def test_every_system_check_is_listed() -> None:
    sources = (APP / "checks.py").read_text() + (APP / "service_checks.py").read_text()
    made = set(re.findall(r'id="(responses_ws\.[EW]\d+)"', sources))

    listed = re.findall(r"^\| `(responses_ws\.[EW]\d+)`", (DOCS / "reference" / "checks.md").read_text(), re.MULTILINE)

    assert sorted(listed) == sorted(made)


def test_every_command_is_listed() -> None:
    ours = sorted(name for name, app in get_commands().items() if app == "responses_ws")

    page = (DOCS / "reference" / "commands.md").read_text()

    assert re.findall(r"^## (\w+)$", page, re.MULTILINE) == ours


def test_every_time_is_in_the_table_of_times() -> None:
    page = (DOCS / "howto" / "production.md").read_text()
    table = page[page.index("## Times") : page.index("## Sizes")]

    times = [name for name in Limits.__struct_fields__ if name.endswith("_seconds")]

    assert {name for name in times if f'["{name}"]' not in table} == set()


@pytest.mark.parametrize("room", ["protocol", "connection", "serving", "transports"])
def test_every_error_code_is_listed(room: str) -> None:
    said = "".join(path.read_text() for path in (APP / room).rglob("*.py"))
    codes = set(re.findall(r'\bcode="([a-z_]+)"', said))
    if room == "protocol":
        kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.ApiError)]
        codes |= {kind.code for kind in kinds if kind.code is not None}

    page = (DOCS / "reference" / "protocol.md").read_text()

    assert {code for code in codes if f"`{code}`" not in page} == set()
