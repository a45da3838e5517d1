"""The documents are there for everybody, unless they are switched off; the page asks nobody else."""

import io
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.core.management import call_command
from django.test import Client, override_settings

from responses_ws.transports.schema.asyncapi import asyncapi
from responses_ws.transports.schema.openapi import openapi

STATIC = Path(__file__).resolve().parents[3] / "responses_ws" / "static" / "responses_ws"


def test_openapi_is_served_without_a_key(client: Client) -> None:
    answer = client.get("/v1/openapi.json")

    assert answer.json() == msgspec.to_builtins(openapi(base="/v1"))


def test_asyncapi_names_the_host_that_was_asked(client: Client) -> None:
    answer = client.get("/v1/asyncapi.json", headers={"Host": "localhost:9000"})

    assert answer.json() == msgspec.to_builtins(asyncapi(host="localhost:9000"))


@pytest.mark.parametrize("path", ["openapi.json", "asyncapi.json", "docs"])
def test_they_can_be_switched_off(client: Client, settings: Any, path: str) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "API_DOCS": False}

    answer = client.get(f"/v1/{path}")

    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize("path", ["/v1/docs", "/v1/docs/"])
def test_the_page_works_under_its_own_policy(client: Client, path: str) -> None:
    answer = client.get(path)

    page = answer.content.decode()
    policy = answer["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    # Nothing inline: every script and style is a file of ours.
    assert re.findall(r"<script(?![^>]* src=\"/static/)", page) == []
    assert "<style" not in page and " style=" not in page and not re.search(r" on\w+=", page)
    assert 'data-openapi="/v1/openapi.json"' in page and 'data-asyncapi="/v1/asyncapi.json"' in page


@override_settings(STATIC_URL="https://static.example.com/files/")
def test_static_files_on_another_host_are_allowed(client: Client) -> None:
    answer = client.get("/v1/docs")

    assert "script-src 'self' https://static.example.com;" in answer["Content-Security-Policy"]


@pytest.mark.parametrize("name", ["docs.js", "docs.css"])
def test_its_files_ask_nobody_else(name: str) -> None:
    text = (STATIC / name).read_text()

    assert "://" not in text.replace("${server.protocol}://", "")
    assert "innerHTML" not in text and "eval(" not in text and ".style" not in text


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param([], openapi(), id="openapi by default"),
        pytest.param(["--openapi"], openapi(), id="openapi"),
        pytest.param(["--asyncapi"], asyncapi(), id="asyncapi"),
    ],
)
def test_the_command_prints_a_document(options: list[str], expected: dict[str, Any]) -> None:
    out = io.StringIO()

    call_command("responses_ws_schema", *options, stdout=out)

    assert msgspec.json.decode(out.getvalue()) == msgspec.to_builtins(expected)
