"""The `mcp` tool against a real server of the official SDK."""

import asyncio
import logging
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from responses_ws.protocol.errors import InvalidRequest
from responses_ws.runtime.http import Gate
from responses_ws.tools.base import Job, ToolError
from responses_ws.tools.mcp import Mcp
from tests.fakes.mcp_server import KEY
from tests.live import McpServer


@pytest.fixture
def mcp(mcp_server: McpServer) -> Mcp:
    return Mcp("mcp", {"TRUSTED": [mcp_server.origin], "SECONDS": 5})


def tool(url: str, **fields: Any) -> dict[str, Any]:
    return {"type": "mcp", "server_label": "notes", "server_url": url, **fields}


def job(given: dict[str, Any], name: str, **arguments: Any) -> Job:
    return Job(tool=given, name=name, arguments=arguments, project_id=1)


def ignore(_word: str) -> None:
    pass


@pytest.mark.parametrize("path", ["/mcp", "/sse"])
async def test_a_server_is_listed_and_called(mcp: Mcp, mcp_server: McpServer, path: str) -> None:
    given = tool(mcp_server.origin + path)

    listing = await mcp.listed(given)
    outcome = await mcp.run(job(given, "echo", text="hi"), ignore)

    assert [one["name"] for one in listing] == ["echo", "delete", "fail", "slow", "big"]
    assert listing[0]["description"] == "Gives the text back."
    assert listing[0]["input_schema"]["required"] == ["text"]
    assert listing[0]["annotations"] == {"readOnlyHint": True}
    assert outcome.output == "echo: hi"


@pytest.mark.parametrize(
    ("fields", "is_let_in"),
    [
        pytest.param({"authorization": KEY}, True, id="a token"),
        pytest.param({"headers": {"Authorization": f"Bearer {KEY}"}}, True, id="a header"),
        pytest.param({"authorization": "wrong"}, False, id="a wrong token"),
        pytest.param({}, False, id="none"),
    ],
)
async def test_credentials_are_handed_to_the_server(
    mcp: Mcp, mcp_server: McpServer, fields: dict[str, Any], is_let_in: bool
) -> None:
    given = tool(f"{mcp_server.origin}/private/mcp", **fields)

    if is_let_in:
        assert (await mcp.run(job(given, "echo", text="hi"), ignore)).output == "echo: hi"
        return
    with pytest.raises(ToolError) as failure:
        await mcp.run(job(given, "echo", text="hi"), ignore)
    message = "The MCP server answered with the status 401."
    assert failure.value.fields == {"error": {"type": "http_error", "code": 401, "message": message}}


async def test_a_tool_that_fails_says_so_in_its_own_words(mcp: Mcp, mcp_server: McpServer) -> None:
    with pytest.raises(ToolError) as failure:
        await mcp.run(job(tool(mcp_server.url), "fail"), ignore)

    error = failure.value.fields["error"]
    assert error["type"] == "mcp_tool_execution_error"
    assert "the ink is dry" in error["content"][0]["text"]


async def test_an_unknown_tool_is_an_error_of_the_tool_or_the_protocol(mcp: Mcp, mcp_server: McpServer) -> None:
    with pytest.raises(ToolError) as failure:
        await mcp.run(job(tool(mcp_server.url), "nothing"), ignore)

    assert failure.value.fields["error"]["type"] in ("mcp_protocol_error", "mcp_tool_execution_error")


async def test_a_server_that_is_not_there_is_an_http_error(mcp: Mcp, mcp_server: McpServer) -> None:
    with pytest.raises(ToolError) as failure:
        await mcp.listed(tool(f"{mcp_server.origin}/gone"))

    assert failure.value.fields["error"]["code"] == 404


async def test_a_port_where_nobody_listens_is_an_http_error() -> None:
    mcp = Mcp("mcp", {"TRUSTED": ["http://127.0.0.1:9"]})

    with pytest.raises(ToolError) as failure:
        await mcp.listed(tool("http://127.0.0.1:9/mcp"))

    assert failure.value.fields["error"]["message"] == "The MCP server could not be reached."


async def test_an_answer_that_is_too_long_is_not_read_to_its_end(mcp_server: McpServer) -> None:
    mcp = Mcp("mcp", {"TRUSTED": [mcp_server.origin], "MAX_BYTES": 100_000, "SECONDS": 5})

    with pytest.raises(ToolError):
        await asyncio.wait_for(mcp.run(job(tool(mcp_server.url), "big", size=1_000_000), ignore), 10)


async def test_a_name_that_leads_inside_is_not_connected_to(mcp_server: McpServer) -> None:
    asked = []

    async def inside(host: str, _port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    mcp = Mcp("mcp", {"PORTS": [443, int(mcp_server.origin.rpartition(":")[2])]})
    mcp.gate = Gate(schemes=frozenset({"http"}), ports=mcp.gate.ports, resolve=inside)
    before = mcp_server.calls()

    with pytest.raises(ToolError, match="must not be reached"):
        await mcp.listed(tool(mcp_server.url.replace("127.0.0.1", "rebound.example")))

    assert asked == ["rebound.example"]
    assert mcp_server.calls() == before


async def test_a_server_is_known_by_its_name_and_not_by_the_address_that_was_pinned(tmp_path: Path) -> None:
    names: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*signed_by_nobody(tmp_path, "mcp.example"))
    context.sni_callback = lambda _socket, name, _context: names.append(name)  # type: ignore[assignment, func-returns-value]
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    origin = f"https://mcp.example:{server.sockets[0].getsockname()[1]}"

    async def loopback(_host: str, _port: int) -> list[str]:
        return ["127.0.0.1"]

    mcp = Mcp("mcp", {"TRUSTED": [origin], "SECONDS": 5})
    mcp.gate = Gate(trusted=mcp.gate.trusted, resolve=loopback)
    async with server:
        with pytest.raises(ToolError, match="could not be reached"):
            await mcp.listed(tool(f"{origin}/mcp"))

    assert names and set(names) == {"mcp.example"}


def signed_by_nobody(directory: Path, name: str) -> tuple[Path, Path]:
    """Paths of a certificate for ``name`` that nobody trusts, and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = directory / "certificate.pem", directory / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
    return paths


async def test_keys_and_paths_are_not_logged(mcp: Mcp, mcp_server: McpServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    given = tool(f"{mcp_server.origin}/private/mcp?secret=canary-of-a-path", authorization=KEY)

    await mcp.run(job(given, "echo", text="canary-of-a-text"), ignore)
    with pytest.raises(ToolError):
        await mcp.listed({**given, "authorization": "canary-of-a-wrong-key"})

    assert "canary" not in caplog.text


LISTING: list[dict[str, Any]] = [
    {"name": "read", "input_schema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
    {"name": "write", "input_schema": {"type": "object"}},
]


@pytest.mark.parametrize(
    ("allowed", "names"),
    [
        (None, ["read", "write"]),
        (["write"], ["write"]),
        ([], []),
        ({"tool_names": ["read", "other"]}, ["read"]),
        ({"read_only": True}, ["read"]),
        ({"read_only": False}, ["write"]),
    ],
)
def test_only_allowed_tools_are_offered(allowed: Any, names: list[str]) -> None:
    functions = Mcp("mcp", {}).functions(tool("https://ok.example/", allowed_tools=allowed), LISTING)

    assert [function.name for function in functions] == names


@pytest.mark.parametrize(
    ("approval", "names"),
    [
        pytest.param(None, ["read", "write"], id="the default"),
        pytest.param("always", ["read", "write"], id="always"),
        pytest.param("never", [], id="never"),
        pytest.param({"never": {"read_only": True}}, ["write"], id="never for reading"),
        pytest.param({"never": {"tool_names": ["write"]}}, ["read"], id="never for these"),
        pytest.param({"always": {"tool_names": ["write"]}}, ["write"], id="always for these"),
        pytest.param({"always": {"tool_names": ["read"]}, "never": {"read_only": True}}, ["read", "write"], id="both"),
        pytest.param({}, ["read", "write"], id="nothing said"),
    ],
)
def test_approval_is_asked_for_as_the_request_wants(approval: Any, names: list[str]) -> None:
    functions = Mcp("mcp", {}).functions(tool("https://ok.example/", require_approval=approval), LISTING)

    assert [one.name for one in functions if one.item["type"] == "mcp_approval_request"] == names


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"server_label": None}, "server_label"),
        ({"server_label": "a b"}, "server_label"),
        ({"server_label": 1}, "server_label"),
        ({"server_url": None, "connector_id": "connector_gmail"}, "server_url"),
        ({"server_url": "http://ok.example/"}, "server_url"),
        ({"server_url": "https://127.1/"}, "server_url"),
        ({"server_url": "https://ok.example:22/"}, "server_url"),
        ({"headers": {"Host": "a"}}, "headers"),
        ({"headers": {"X-A": "a\r\nX-B: b"}}, "headers"),
        ({"headers": {"X A": "a"}}, "headers"),
        ({"headers": {"X-A": 1}}, "headers"),
        ({"authorization": "a\nb"}, "authorization"),
        ({"allowed_tools": "read"}, "allowed_tools"),
        ({"allowed_tools": [1]}, "allowed_tools"),
        ({"require_approval": "sometimes"}, "require_approval"),
        ({"require_approval": {"always": ["read"]}}, "require_approval.always"),
    ],
)
def test_what_could_never_be_run_is_refused_with_its_place(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        Mcp("mcp", {}).check({**tool("https://ok.example/mcp"), **fields}, "tools[0]")

    assert refusal.value.param == f"tools[0].{param}"
