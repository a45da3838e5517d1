"""``web_search``: the model looks something up, at whichever search engine is configured."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlencode, urlsplit

import msgspec

from responses_ws.protocol.errors import InvalidRequest
from responses_ws.runtime import options as options_module
from responses_ws.runtime.http import FetchFailed, Gate, Refused, fetch, origin_of

from .base import HostedFunction, Job, Outcome, Progress, ToolError
from .search import SearchProvider, SearchTool, query_of, query_schema, share_found

_RESULTS = {"low": 3, "medium": 6, "high": 10}
"""How many results the model is told, by the request's ``search_context_size``."""


class WebResult(msgspec.Struct, frozen=True):
    """A page that was found."""

    url: str
    title: str
    text: str
    """What it says, or a piece of it."""


class WebSearchProvider(SearchProvider, ABC):
    """A search engine."""

    @abstractmethod
    async def search(self, query: str, *, count: int, tool: Mapping[str, Any]) -> Sequence[WebResult]:
        """About ``count`` results, the best one first. ``tool``: the request's, with ``user_location`` and ``filters``,
        which are seen to afterwards too. Raises ToolError."""


class WebSearch(SearchTool[WebSearchProvider]):
    """The official ``web_search``, in whichever edition. ``PROVIDER``: the dotted path of a `WebSearchProvider`."""

    types: ClassVar[frozenset[str]] = frozenset(
        {"web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"}
    )
    providers = WebSearchProvider

    def check(self, tool: dict[str, Any], where: str) -> None:
        filters = tool.get("filters") or {}
        domains = (filters.get("allowed_domains") or []) if isinstance(filters, dict) else filters
        if not (isinstance(domains, list) and all(isinstance(one, str) for one in domains)):
            raise InvalidRequest("Expected a list of domains.", param=f"{where}.filters.allowed_domains")

    def functions(self, tool: dict[str, Any], listing: Sequence[Mapping[str, Any]]) -> list[HostedFunction]:
        return [
            HostedFunction(
                tool=tool,
                name="web_search",
                description="Search the web. Returns the address, the title and a passage of each page found.",
                parameters=query_schema("What to look for, in the words that a page about it would use."),
                item={"type": "web_search_call", "action": {"type": "search", "query": ""}},
            )
        ]

    async def run(self, job: Job, progress: Progress) -> Outcome:
        query = query_of(job.arguments)
        action: dict[str, Any] = {"type": "search", "query": query, "queries": [query]}
        progress("searching")
        count = _RESULTS.get(str(job.tool.get("search_context_size")), _RESULTS["medium"])
        try:
            found = await self.provider.search(query, count=count, tool=job.tool)
        except ToolError as exc:
            raise ToolError(exc.message, {"action": action}) from exc
        results = [result for result in found if _is_allowed(result.url, job.tool)][:count]
        if "web_search_call.action.sources" in job.include:
            action["sources"] = [{"type": "url", "url": result.url} for result in results]
        sources = {result.url: result.title for result in results}
        return Outcome(output=msgspec.json.encode(results).decode(), fields={"action": action}, sources=sources)


def _is_allowed(url: str, tool: Mapping[str, Any]) -> bool:
    """Source: ``filters.allowed_domains``: these and their subdomains."""
    domains = (tool.get("filters") or {}).get("allowed_domains")
    host = (urlsplit(url).hostname or "").lower()
    return not domains or any(host == one.lower() or host.endswith(f".{one.lower()}") for one in domains)


class SearxngOptions(msgspec.Struct, rename="upper"):
    """Options of `Searxng`."""

    url: str
    """Of the server. Its ``json`` format has to be switched on."""
    max_bytes: int = 4 * 1024 * 1024
    """Of one answer."""


class _Found(msgspec.Struct):
    url: str
    title: str = ""
    content: str | None = None


class _Answer(msgspec.Struct):
    results: list[_Found]


class Searxng(WebSearchProvider):
    """A SearXNG server of the operator's, or anything that answers like one. Source: SearXNG's search API."""

    def __init__(self, where: str, options: Mapping[str, Any]) -> None:
        self._options = options_module.read(where, options, SearxngOptions)
        try:
            self._gate = Gate(trusted=frozenset({origin_of(self._options.url)}))
        except ValueError as exc:
            raise ValueError(f"{where}['URL']: {exc}") from exc

    async def search(self, query: str, *, count: int, tool: Mapping[str, Any]) -> Sequence[WebResult]:
        asked = urlencode({"q": query, "format": "json"})
        url = f"{self._options.url.rstrip('/')}/search?{asked}"
        try:
            # The tool's own patience is shorter.
            body = await fetch(url, self._gate, max_bytes=self._options.max_bytes, seconds=3600)
            answer = msgspec.json.decode(body, type=_Answer)
        except (FetchFailed, Refused) as exc:
            raise ToolError(f"The search engine did not answer: {exc}.") from exc
        except msgspec.DecodeError as exc:
            raise ToolError("The search engine's answer could not be read.") from exc
        return [WebResult(one.url, one.title, one.content or "") for one in answer.results]


class FileOptions(msgspec.Struct, rename="upper"):
    """Options of `PagesInFile`."""

    path: str
    """Of a file of JSON lines, each a page: ``{"url": …, "title": …, "text": …}``."""


class PagesInFile(WebSearchProvider):
    """Pages in a file, found by their words: for demos and tests, where there is no search engine."""

    def __init__(self, where: str, options: Mapping[str, Any]) -> None:
        path = Path(options_module.read(where, options, FileOptions).path)
        try:
            lines = path.read_bytes().splitlines()
            self._pages = [msgspec.json.decode(line, type=WebResult) for line in lines if line.strip()]
        except (OSError, msgspec.DecodeError) as exc:
            raise ValueError(f"{where}['PATH']: {exc}") from exc

    async def search(self, query: str, *, count: int, tool: Mapping[str, Any]) -> Sequence[WebResult]:
        scored = [(share_found(query, f"{page.title} {page.text}"), page) for page in self._pages]
        best = sorted((one for one in scored if one[0]), key=lambda one: -one[0])
        return [page for _, page in best[:count]]
