"""``mcp``: the tools of remote MCP servers. Needs the extra ``[mcp]``."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import msgspec
from mcp import Client, MCPError
from mcp.types import CallToolResult, Tool

from responses_ws.protocol.errors import InvalidRequest
from responses_ws.runtime import options as options_module
from responses_ws.runtime.http import Gate, Refused, origin_of

from .base import HostedFunction, HostedTool, Job, Outcome, Progress, ToolError
from .mcp_client import Unreachable, Use, visit

T = TypeVar("T")
Listing = Mapping[str, Any]

_LABEL = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+\Z")  # Source: RFC 9110's token
_OURS = frozenset({"host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer"})
_MOST_PAGES = 20
_MOST_MESSAGE = 1000  # characters of an error that is somebody else's


class McpOptions(msgspec.Struct, rename="upper"):
    """Options of `Mcp`."""

    seconds: float = 30.0
    """For one call, or one listing."""
    max_bytes: int = 8 * 1024 * 1024
    """Of one answer of a server."""
    max_tools: int = 128
    """Of one server; more are not offered."""
    ports: tuple[int, ...] = (443,)
    """Of the servers that requests may name."""
    trusted: list[str] = []
    """Servers of your own, as ``http://127.0.0.1:9000``: requests may name these although they are not public."""


class Mcp(HostedTool):
    """The official ``mcp`` tool: lists what a server offers, and calls it, where need be once somebody has allowed it.

    Requests name the servers, so they are gone to as `runtime.http.Gate` lets one: by https, to public addresses.
    Every visit is a session of its own: credentials of one client never meet the connection of another.
    """

    types: ClassVar[frozenset[str]] = frozenset({"mcp"})

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        super().__init__(name, options)
        self._options = read = options_module.read(f"TOOLS[{name!r}]", options, McpOptions)
        self.seconds = read.seconds
        try:
            trusted = frozenset(map(origin_of, read.trusted))
        except ValueError as exc:
            raise ValueError(f"TOOLS[{name!r}]['TRUSTED']: {exc}") from exc
        self.gate = Gate(ports=frozenset(read.ports), trusted=trusted)

    def check(self, tool: dict[str, Any], where: str) -> None:
        for field, expected in (("server_label", str), ("server_url", str), ("authorization", str), ("headers", dict)):
            value = tool.get(field)
            if value is not None and not isinstance(value, expected):
                raise _invalid("wrong type", f"{where}.{field}", code="invalid_type")
        if not _LABEL.match(tool.get("server_label") or ""):
            raise _invalid("expected letters, digits, '_' and '-'", f"{where}.server_label")
        if tool.get("server_url") is None:
            raise _invalid("connectors and tunnels are not supported: name a server", f"{where}.server_url")
        try:
            self.gate.target(tool["server_url"])
        except Refused as exc:
            raise _invalid(str(exc), f"{where}.server_url") from exc
        for name, value in (tool.get("headers") or {}).items():
            is_well = _HEADER.match(name) and isinstance(value, str) and value.isascii() and value.isprintable()
            if not is_well or name.lower() in _OURS:
                raise _invalid("this header cannot be sent", f"{where}.headers")
        authorization = tool.get("authorization") or ""
        if not (authorization.isascii() and (authorization.isprintable())):
            raise _invalid("this cannot be sent", f"{where}.authorization")
        _check_filter(tool.get("allowed_tools"), f"{where}.allowed_tools", takes_list=True)
        approval = tool.get("require_approval")
        if isinstance(approval, dict):
            for word in ("always", "never"):
                _check_filter(approval.get(word), f"{where}.require_approval.{word}", takes_list=False)
        elif approval not in (None, "always", "never"):
            raise _invalid("expected 'always', 'never' or an object", f"{where}.require_approval")

    def label(self, tool: dict[str, Any]) -> str:
        return str(tool["server_label"])

    async def listed(self, tool: dict[str, Any]) -> list[dict[str, Any]]:
        found: list[Tool] = []

        async def read(server: Client) -> None:
            cursor: str | None = None
            for _ in range(_MOST_PAGES):
                page = await server.list_tools(cursor=cursor)
                found.extend(page.tools)
                cursor = page.next_cursor
                if cursor is None or len(found) >= self._options.max_tools:
                    return

        await self._visit(tool, read)
        return [_as_listed(one) for one in found[: self._options.max_tools]]

    def functions(self, tool: dict[str, Any], listing: Sequence[Listing]) -> list[HostedFunction]:
        label = self.label(tool)
        return [
            HostedFunction(
                tool=tool,
                name=one["name"],
                namespace=label,
                description=one.get("description"),
                parameters=one.get("input_schema") or {"type": "object", "properties": {}},
                item={
                    "type": "mcp_approval_request" if _needs_approval(tool, one) else "mcp_call",
                    "server_label": label,
                    "name": one["name"],
                },
            )
            for one in listing
            if _is_among(one, tool.get("allowed_tools"))
        ]

    async def run(self, job: Job, progress: Progress) -> Outcome:
        async def call(server: Client) -> CallToolResult:
            return await server.call_tool(job.name, job.arguments, read_timeout_seconds=self.seconds)

        result = await self._visit(job.tool, call)
        text = _text_of(result)
        if result.is_error:
            text = text[: self.output_bytes]
            content = [{"type": "text", "text": text}]
            raise ToolError(text, {"error": {"type": "mcp_tool_execution_error", "content": content}})
        return Outcome(output=text)

    async def _visit(self, tool: dict[str, Any], use: Use[T]) -> T:
        headers = dict(tool.get("headers") or {})
        if tool.get("authorization"):
            headers["Authorization"] = f"Bearer {tool['authorization']}"
        target = self.gate.target(tool["server_url"])
        options = self._options
        try:
            return await visit(
                target, self.gate, use, headers=headers, seconds=options.seconds, max_bytes=options.max_bytes
            )
        except Unreachable as exc:
            raise _error("http_error", exc.status, str(exc)) from exc
        except MCPError as exc:
            raise _error("mcp_protocol_error", exc.code, exc.message) from exc


def _error(kind: str, code: int, message: str) -> ToolError:
    message = message[:_MOST_MESSAGE]
    return ToolError(message, {"error": {"type": kind, "code": code, "message": message}})


def _invalid(message: str, param: str, *, code: str = "invalid_value") -> InvalidRequest:
    return InvalidRequest(f"Invalid value for '{param}': {message}.", code=code, param=param)


def _check_filter(given: Any, where: str, *, takes_list: bool) -> None:
    if given is None:
        return
    names = given.get("tool_names") if isinstance(given, dict) else given
    is_filter = isinstance(given, dict) and isinstance(given.get("read_only"), bool | None)
    is_known = is_filter or (takes_list and isinstance(given, list))
    if not is_known or not isinstance(names, list | None) or not all(isinstance(name, str) for name in names or ()):
        raise _invalid("expected names of tools, or a filter", where, code="invalid_type")


def _is_among(listed: Listing, given: Any) -> bool:
    """Whether a filter lets this tool through; none lets all through."""
    if given is None:
        return True
    if isinstance(given, list):
        return listed["name"] in given
    names, read_only = given.get("tool_names"), given.get("read_only")
    says_read_only = (listed.get("annotations") or {}).get("readOnlyHint") is True
    return (names is None or listed["name"] in names) and read_only in (None, says_read_only)


def _needs_approval(tool: Mapping[str, Any], listed: Listing) -> bool:
    """Source: OpenAI's guide: all calls, unless the request says otherwise. Where it names both those that always need
    it and those that never do, whatever it does not name needs it."""
    approval = tool.get("require_approval") or "always"
    if isinstance(approval, str):
        return approval == "always"
    always, never = approval.get("always"), approval.get("never")
    if always is not None and _is_among(listed, always):
        return True
    if never is not None:
        return not _is_among(listed, never)
    return always is None


def _as_listed(tool: Tool) -> dict[str, Any]:
    """A tool as an ``mcp_list_tools`` item has it."""
    listed: dict[str, Any] = {"name": tool.name, "input_schema": tool.input_schema}
    if tool.description:
        listed["description"] = tool.description
    if tool.annotations is not None:
        listed["annotations"] = tool.annotations.model_dump(mode="json", by_alias=True, exclude_none=True)
    return listed


def _text_of(result: CallToolResult) -> str:
    """What a call gave, as text; a note stands where there is something else."""
    parts: list[str] = []
    for block in result.content:
        resource = getattr(block, "resource", block)
        text = getattr(resource, "text", None)
        parts.append(text if isinstance(text, str) else f"[{block.type} left out: only text can be passed on]")
    if not parts and result.structured_content is not None:
        return msgspec.json.encode(result.structured_content).decode()
    return "\n".join(parts)
