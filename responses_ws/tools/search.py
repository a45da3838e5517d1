"""What both kinds of search share: a provider from the settings, one query, a few results."""

from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

from django.utils.module_loading import import_string

from .base import HostedTool, ToolError


class SearchProvider:
    """Who searches. ``options`` is the tool's dict from the settings, without ``TOOL``, ``PROVIDER`` and ``SECONDS``;
    ``where`` names it in messages. A wrong option raises ValueError."""

    def __init__(self, where: str, options: Mapping[str, Any]) -> None:
        raise NotImplementedError


P = TypeVar("P", bound=SearchProvider)


class SearchTool(HostedTool, Generic[P]):
    """A tool whose work is done by the provider that its options name."""

    providers: ClassVar[type[Any]]
    """What ``PROVIDER`` has to be a kind of: P."""
    provider: P

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        super().__init__(name, options)
        where = f"TOOLS[{name!r}]"
        path = options.get("PROVIDER")
        try:
            factory = import_string(path)
        except ImportError as exc:
            raise ValueError(f"{where}['PROVIDER']: cannot import {path!r}: {exc}") from exc
        if not (isinstance(factory, type) and issubclass(factory, self.providers)):
            raise ValueError(f"{where}['PROVIDER']: {path!r} is not a {self.providers.__name__}")
        seconds = options.get("SECONDS", self.seconds)
        if not isinstance(seconds, int | float) or seconds <= 0:
            raise ValueError(f"{where}['SECONDS']: {seconds!r} is not a number of seconds")
        self.seconds = seconds
        rest = {key: value for key, value in options.items() if key not in ("PROVIDER", "SECONDS")}
        self.provider = factory(where, rest)


def query_of(arguments: dict[str, Any]) -> str:
    """What the model wants to know. Raises ToolError."""
    query = arguments.get("query")
    if not isinstance(query, str) or not query.strip():
        raise ToolError("Say in 'query' what to look for.")
    return query.strip()


def query_schema(description: str) -> dict[str, Any]:
    """JSON Schema of the arguments: one text, ``query``."""
    return {
        "type": "object",
        "properties": {"query": {"type": "string", "description": description}},
        "required": ["query"],
        "additionalProperties": False,
    }


def share_found(query: str, text: str) -> float:
    """How many of the query's words are in the text: from 0 to 1."""
    asked = _words(query)
    return len(asked & _words(text)) / len(asked) if asked else 0.0


def _words(text: str) -> set[str]:
    return {"".join(filter(str.isalnum, word)).lower() for word in text.split()} - {""}
