"""The hosted tools of one process, by the types that they answer for."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from responses_ws.conf import app_settings
from responses_ws.protocol.errors import InvalidRequest

from .base import HostedFunction, HostedTool

Tools = Sequence[dict[str, Any]]


class ToolRegistry:
    """Hosted tools as configured, built at first use, one instance each per process."""

    def __init__(self) -> None:
        self._by_type: dict[str, HostedTool] | None = None

    def find(self, tool: dict[str, Any]) -> HostedTool | None:
        """Who answers for a request's tool; None: nobody, and it is not offered. Raises ValueError: see `load`."""
        if self._by_type is None:
            self._by_type = {kind: one for name in app_settings.TOOLS for one in [load(name)] for kind in one.types}
        return self._by_type.get(tool["type"])

    def check(self, tools: Tools, *, theirs: frozenset[str] = frozenset()) -> None:
        """Refuse what could never be run; tools of the types that are ``theirs`` are not. Raises InvalidRequest."""
        labels: set[str] = set()
        for index, tool in enumerate(tools):
            hosted = self.find(tool)
            if hosted is None or tool["type"] in theirs:
                continue
            where = f"tools[{index}]"
            hosted.check(tool, where)
            label = hosted.label(tool)
            if label is not None and label in labels:
                raise InvalidRequest(f"Duplicate server label: {label[:100]!r}.", param=f"{where}.server_label")
            labels |= set() if label is None else {label}

    def functions(self, tools: Tools, listings: Mapping[str, Sequence[dict[str, Any]]]) -> list[HostedFunction]:
        """What the model may call, given what was listed, by label."""
        found: list[HostedFunction] = []
        for tool in tools:
            hosted = self.find(tool)
            if hosted is not None:
                label = hosted.label(tool)
                listing = () if label is None else listings.get(label, ())
                found += hosted.functions(tool, listing)
        return found

    def unlisted(self, tools: Tools, listings: Mapping[str, Any]) -> list[tuple[HostedTool, dict[str, Any], str]]:
        """Of whom has to be asked what they offer: (who asks, the request's tool, its label)."""
        found = [(hosted, tool, hosted.label(tool)) for tool in tools if (hosted := self.find(tool)) is not None]
        return [(hosted, tool, label) for hosted, tool, label in found if label is not None and label not in listings]

    def labelled(self, tools: Tools, label: str) -> dict[str, Any] | None:
        """The request's tool with this label."""
        return next((tool for tool in tools if (one := self.find(tool)) is not None and one.label(tool) == label), None)

    def reset(self) -> None:
        """Forget everything, as after a change of settings."""
        self._by_type = None


def load(name: str) -> HostedTool:
    """The tool called ``name`` in the settings, made anew.

    Raises:
        ValueError: its class cannot be imported, or an option is wrong.
    """
    entry = app_settings.TOOLS[name]
    path = entry.get("TOOL")
    try:
        factory = import_string(path)
    except ImportError as exc:
        raise ValueError(f"TOOLS[{name!r}]['TOOL']: cannot import {path!r}: {exc}") from exc
    if not (isinstance(factory, type) and issubclass(factory, HostedTool)):
        raise ValueError(f"TOOLS[{name!r}]['TOOL']: {path!r} is not a HostedTool")
    return factory(name, {key: value for key, value in entry.items() if key != "TOOL"})


tools = ToolRegistry()


def _reset_after_change(*, setting: str, **_kwargs: Any) -> None:
    if setting == "RESPONSES_WS":
        tools.reset()


setting_changed.connect(_reset_after_change)
