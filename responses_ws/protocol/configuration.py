"""What items of a context say about the responses after them."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from .items import Item
from .request import JsonObject, Request


class Configuration(msgspec.Struct, frozen=True):
    """Settings and tools that came as items and last for the rest of the chain.

    What a request says for itself goes before, for that response.

    Source: OpenAI's ``configuration_update`` and ``additional_tools`` items; each setting stays until a later item
    replaces it.
    """

    effort: str | None = None
    """``reasoning.effort``."""
    text_format: JsonObject | None = None
    """``text.format``."""
    tools: tuple[JsonObject, ...] = ()
    """In order of their first appearance; one that comes again under its type and name takes its old place."""
    listings: Mapping[str, Sequence[JsonObject]] = {}
    """What MCP servers offer, by label: ``{name, description?, input_schema, annotations?}``, as it was last listed.
    The same object as long as nothing was."""

    def after(self, items: Sequence[Item]) -> "Configuration":
        """The configuration once these items have followed. Costs what is new; mostly it stays the same."""
        changes: dict[str, Any] = {}
        tools: dict[tuple[str, str], JsonObject] | None = None
        for item in items:
            kind = item.get("type")
            if kind == "configuration_update":
                effort = (item.get("reasoning") or {}).get("effort")
                text_format = (item.get("text") or {}).get("format")
                if effort is not None:
                    changes["effort"] = effort
                if text_format is not None:
                    changes["text_format"] = text_format
            elif kind == "additional_tools":
                if tools is None:
                    tools = {_key(tool): tool for tool in self.tools}
                tools.update((_key(tool), tool) for tool in item["tools"])
            elif kind == "mcp_list_tools" and item.get("error") is None:
                listings = changes.get("listings", self.listings)
                changes["listings"] = {**listings, item["server_label"]: item["tools"]}
        if tools is not None:
            changes["tools"] = tuple(tools.values())
        return msgspec.structs.replace(self, **changes) if changes else self

    def applied(self, request: Request) -> Request:
        """The request with what it does not say itself filled in; its tools are left alone."""
        changes: dict[str, Any] = {}
        reasoning, text = request.reasoning or {}, request.text or {}
        if self.effort is not None and reasoning.get("effort") is None:
            changes["reasoning"] = {**reasoning, "effort": self.effort}
        if self.text_format is not None and text.get("format") is None:
            changes["text"] = {**text, "format": self.text_format}
        return msgspec.structs.replace(request, **changes) if changes else request


def _key(tool: JsonObject) -> tuple[str, str]:
    # Of kinds that we do not know the name may be anything.
    return tool["type"], str(tool.get("name"))
