"""Tools: from the client's words to the engine's, and calls back again."""

from collections.abc import Sequence
from typing import Any

import msgspec

from responses_ws.protocol.sampling import CallArguments, CallEnd, CallStart, Delta

_encode = msgspec.json.Encoder().encode

_CUSTOM_PARAMETERS = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


def flat_name(namespace: str | None, name: str) -> str:
    """The one name an engine sees for a tool that may live in a namespace."""
    return f"{namespace}__{name}" if namespace else name


class ToolSet:
    """The tools of a request: what the engine is offered, and what each name stood for.

    ``function``, ``custom`` and the tools inside a ``namespace`` are offered; hosted kinds that we do not run are
    left out (refusing them would lock out clients that always send them).
    """

    __slots__ = ("source", "encoded", "_known")

    def __init__(self, tools: Sequence[dict[str, Any]]) -> None:
        self.source = tools
        """As the client sent them; compared to reuse this set on the next turn."""
        self._known: dict[str, tuple[str, str | None, bool]] = {}
        offered: list[dict[str, Any]] = []
        for tool in tools:
            if tool.get("type") == "namespace":
                for inner in tool.get("tools") or ():
                    self._offer(offered, inner, tool.get("name"))
            else:
                self._offer(offered, tool, None)
        self.encoded: bytes | None = _encode(offered) if offered else None
        """JSON array of chat-completions tools, or None when there is nothing to offer."""

    def _offer(self, offered: list[dict[str, Any]], tool: dict[str, Any], namespace: str | None) -> None:
        kind = tool.get("type")
        if kind not in ("function", "custom"):
            return
        name = flat_name(namespace, tool["name"])
        self._known[name] = (tool["name"], namespace, kind == "custom")
        function: dict[str, Any] = {"name": name}
        if tool.get("description"):
            function["description"] = tool["description"]
        if kind == "custom":
            function["parameters"] = _CUSTOM_PARAMETERS
        else:
            function["parameters"] = tool.get("parameters") or {"type": "object", "properties": {}}
            if tool.get("strict"):
                function["strict"] = True
        offered.append({"type": "function", "function": function})

    def resolve(self, name: str) -> tuple[str, str | None, bool]:
        """(name, namespace, is custom) behind an offered name; an unknown name stands for itself."""
        return self._known.get(name, (name, None, False))


class CallTranslator:
    """Turns calls as the engine says them into calls as the client offered them.

    A custom tool was offered as a function with one string parameter ``input``: its arguments are held back until
    the call is whole, then given as the bare string. Arguments that are not of that form pass unchanged, so that
    nothing the model said is lost.
    """

    __slots__ = ("_tools", "_custom")

    def __init__(self, tools: ToolSet) -> None:
        self._tools = tools
        self._custom: dict[int, list[str]] = {}

    def feed(self, delta: Delta) -> list[Delta]:
        """The deltas to hand on for one delta of the engine."""
        if isinstance(delta, CallStart):
            name, namespace, custom = self._tools.resolve(delta.name)
            if custom:
                self._custom[delta.index] = []
            return [CallStart(delta.index, name, delta.call_id, namespace, custom)]
        if isinstance(delta, CallArguments) and delta.index in self._custom:
            self._custom[delta.index].append(delta.text)
            return [CallArguments(delta.index, "", delta.tokens)]
        if isinstance(delta, CallEnd) and delta.index in self._custom:
            text = _bare_input("".join(self._custom.pop(delta.index)))
            return [CallArguments(delta.index, text, 0), delta]
        return [delta]


def _bare_input(arguments: str) -> str:
    try:
        decoded = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return arguments
    if isinstance(decoded, dict) and isinstance(decoded.get("input"), str):
        return str(decoded["input"])
    return arguments
