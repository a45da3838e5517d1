"""The contract of a hosted tool: what we run for the model, within its turn."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from responses_ws.rendering.hosted import HostedFunction

__all__ = ["HostedFunction", "HostedTool", "Job", "Outcome", "Progress", "ToolError"]


Progress = Callable[[str], None]
"""Tells how far a call is: a word of the item's events, as ``searching``."""


class ToolError(Exception):
    """A call that came to nothing. The model is told ``message``, and so is the client: no URL, no key in it.

    ``fields`` are what the item says of it, as ``{"error": {"type": "http_error", "code": 503, "message": …}}``.
    """

    def __init__(self, message: str, fields: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.fields = dict(fields or {})


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One call to run."""

    tool: dict[str, Any]
    """The request's tool, with its keys and headers: never to be logged."""
    name: str
    """Of the function."""
    arguments: dict[str, Any]
    """As the model made them: not checked against the function's parameters."""
    project_id: int
    """Whose turn it is."""
    include: frozenset[str] = frozenset()
    """What else the client wants to be told: the request's ``include``."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a call gave."""

    output: str
    """What the model is told. Content like any other to it: never instructions of ours."""
    fields: dict[str, Any] = {}
    """What the item says beyond what it began with."""
    sources: dict[str, str] = {}
    """Titles of pages, by URL. Where the model's text names one, it is told as a citation."""


class HostedTool(ABC):
    """Something that we run for the model, while its response is under way.

    One instance per process and configured name, for many turns at once on one event loop. ``options`` is its dict
    from ``RESPONSES_WS["TOOLS"][name]`` without the key ``TOOL``; a wrong option raises ValueError with the key's name.

    It answers for the request's tools whose ``type`` is in ``types``. For each of these it offers the model some
    `functions`; a call of one is an item of the kind that the function names, and is `run` once the model has ended its
    sampling step, beside the other calls of that step. What it gives is put into the context, and the model goes on.

    Items are of the official kinds, which clients can read: ``web_search_call``, ``file_search_call``, or
    ``mcp_call`` with a ``server_label``, which fits everything else.

    A call that takes longer than ``seconds`` is cancelled, and so is every call when its response ends: let
    CancelledError pass. More than ``output_bytes`` of output are cut off. Raise `ToolError` for what went wrong, and
    the model is told; anything else is logged, and it is told that something went wrong.
    """

    types: ClassVar[frozenset[str]] = frozenset()
    seconds: float = 30.0
    """A call may take so long; listing may, too."""
    output_bytes: int = 64 * 1024
    """The model is told so much of an output."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self.name = name
        self.options = options

    def check(self, tool: dict[str, Any], where: str) -> None:
        """Refuse a request's tool, found at ``where``, that could never be run. Raises InvalidRequest."""

    def label(self, tool: dict[str, Any]) -> str | None:
        """Under which label the tool's functions have to be listed before they can be offered; None: they need not."""
        return None

    async def listed(self, tool: dict[str, Any]) -> list[dict[str, Any]]:
        """What is listed, as the ``tools`` of an ``mcp_list_tools`` item. Raises ToolError."""
        raise NotImplementedError("a tool without a label lists nothing")

    @abstractmethod
    def functions(self, tool: dict[str, Any], listing: Sequence[Mapping[str, Any]]) -> list[HostedFunction]:
        """What the model may call. ``listing``: what was listed under the tool's label."""

    @abstractmethod
    async def run(self, job: Job, progress: Progress) -> Outcome:
        """Run one call. Raises ToolError."""
