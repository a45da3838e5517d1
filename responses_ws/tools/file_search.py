"""``file_search``: the model looks something up in documents, wherever these are kept."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from responses_ws.protocol.errors import InvalidRequest
from responses_ws.runtime import options as options_module

from .base import HostedFunction, Job, Outcome, Progress, ToolError
from .search import SearchProvider, SearchTool, query_of, query_schema, share_found

_RESULTS = 10  # Where the request does not say.
_MOST_RESULTS = 50  # Source: the official type.


class Passage(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a document that was found."""

    file_id: str
    filename: str
    text: str
    score: float
    """Between 0 and 1."""
    attributes: dict[str, str | float | bool] = {}


class FileSearchProvider(SearchProvider, ABC):
    """An index of documents, in vector stores by the official word; what they are is for the provider to know."""

    @abstractmethod
    async def search(
        self, query: str, *, vector_store_ids: Sequence[str], tool: Mapping[str, Any], project_id: int
    ) -> Sequence[Passage]:
        """Passages, the best one first. ``tool``: the request's, with ``filters`` and ``ranking_options``.

        Ids of stores that are not this project's are as good as unknown ones. Raises ToolError.
        """


class FileSearch(SearchTool[FileSearchProvider]):
    """The official ``file_search``. ``PROVIDER``: the dotted path of a `FileSearchProvider`."""

    types: ClassVar[frozenset[str]] = frozenset({"file_search"})
    providers = FileSearchProvider

    def check(self, tool: dict[str, Any], where: str) -> None:
        ids = tool.get("vector_store_ids")
        if not (isinstance(ids, list) and ids and all(isinstance(one, str) for one in ids)):
            raise InvalidRequest("Expected a list of ids.", param=f"{where}.vector_store_ids")
        count = tool.get("max_num_results")
        if count is not None and not (type(count) is int and 1 <= count <= _MOST_RESULTS):
            raise InvalidRequest(f"Expected 1 to {_MOST_RESULTS}.", param=f"{where}.max_num_results")

    def functions(self, tool: dict[str, Any], listing: Sequence[Mapping[str, Any]]) -> list[HostedFunction]:
        return [
            HostedFunction(
                tool=tool,
                name="file_search",
                description="Search the user's documents. Returns passages, each with the name of its file.",
                parameters=query_schema("What to look for."),
                item={"type": "file_search_call", "queries": []},
            )
        ]

    async def run(self, job: Job, progress: Progress) -> Outcome:
        query = query_of(job.arguments)
        fields: dict[str, Any] = {"queries": [query]}
        progress("searching")
        ids = job.tool["vector_store_ids"]
        try:
            found = await self.provider.search(query, vector_store_ids=ids, tool=job.tool, project_id=job.project_id)
        except ToolError as exc:
            raise ToolError(exc.message, fields) from exc
        results = [msgspec.to_builtins(one) for one in found[: job.tool.get("max_num_results") or _RESULTS]]
        if "file_search_call.results" in job.include:
            fields["results"] = results
        told = [{"filename": one["filename"], "text": one["text"]} for one in results]
        return Outcome(output=msgspec.json.encode(told).decode(), fields=fields)


class FolderOptions(msgspec.Struct, rename="upper"):
    """Options of `TextsInFolder`."""

    path: str
    """Of a folder that holds a folder for each vector store, named by its id, of text files."""


class TextsInFolder(FileSearchProvider):
    """Paragraphs of text files, found by their words: for demos and tests. All projects share them."""

    def __init__(self, where: str, options: Mapping[str, Any]) -> None:
        folder = Path(options_module.read(where, options, FolderOptions).path)
        try:
            self._stores = {
                store.name: [passage for path in sorted(store.iterdir()) for passage in _passages(path)]
                for store in folder.iterdir()
            }
        except (OSError, ValueError) as exc:
            raise ValueError(f"{where}['PATH']: {exc}") from exc

    async def search(
        self, query: str, *, vector_store_ids: Sequence[str], tool: Mapping[str, Any], project_id: int
    ) -> Sequence[Passage]:
        passages = [passage for store in vector_store_ids for passage in self._stores.get(store, ())]
        scored = [msgspec.structs.replace(one, score=share_found(query, one.text)) for one in passages]
        return sorted((one for one in scored if one.score), key=lambda one: -one.score)


def _passages(path: Path) -> list[Passage]:
    name = path.name
    paragraphs = [text.strip() for text in path.read_text(encoding="utf-8").split("\n\n")]
    return [Passage(file_id=f"file-{name}", filename=name, text=text, score=0.0) for text in paragraphs if text]
