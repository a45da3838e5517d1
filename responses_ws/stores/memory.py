"""This process's hot tier: stored responses ready to be continued without any look-up."""

import time
from collections import OrderedDict

from responses_ws.conf import app_settings
from responses_ws.connection.chain import Link

_MOST_FORGOTTEN = 100_000
"""Newer deletions than that are remembered: some 20 MB at most."""


class HotTier:
    """The most recently used links of stored responses, bounded by number and by bytes.

    A link holds the rendered prompt too, so that an HTTP continuation costs what is new. Links of one chain share
    their past, whose bytes count once, for as long as any link of it is here. Only stored responses ever come in.
    """

    def __init__(self) -> None:
        self._links: OrderedDict[tuple[int, str], Link] = OrderedDict()
        self._logs: dict[int, tuple[int, int]] = {}
        """By identity of the shared log: how many links share it, and the bytes of its longest."""
        self._bytes = 0
        self._forgotten: OrderedDict[tuple[int, str], None] = OrderedDict()

    def get(self, project_id: int, response_id: str) -> Link | None:
        """The link, if this project owns such a response, it is still here and has not expired."""
        link = self._links.get((project_id, response_id))
        if link is None:
            return None
        # Of a conversation there is no response, and it does not expire.
        if link.response and link.response.get("created_at", 0) < time.time() - app_settings.STORE_DAYS * 86_400:
            self._remove((project_id, response_id))
            return None
        self._links.move_to_end((project_id, response_id))
        return link

    def put(self, link: Link) -> None:
        """Keep a link, and let the least recently used ones go for it. One that was deleted meanwhile is not kept."""
        if self.has_forgotten(link.project_id, link.response_id):
            return
        self._remove((link.project_id, link.response_id))
        self._links[link.project_id, link.response_id] = link
        sharing, size = self._logs.get(link.items.identity, (0, 0))
        self._logs[link.items.identity] = (sharing + 1, max(size, link.size))
        self._bytes += max(link.size - size, 0)
        limits = app_settings.limits
        while self._links and (len(self._links) > limits.hot_responses or self._bytes > limits.hot_bytes):
            self._remove(next(iter(self._links)))

    def forget(self, project_id: int, response_ids: set[str]) -> None:
        """These responses were deleted. Whoever has been looking for one has it no more when it is found."""
        for response_id in response_ids:
            self._remove((project_id, response_id))
            self._forgotten[project_id, response_id] = None
        while len(self._forgotten) > _MOST_FORGOTTEN:
            self._forgotten.popitem(last=False)

    def has_forgotten(self, project_id: int, response_id: str) -> bool:
        """Whether it has been deleted, as far as this process has heard."""
        return (project_id, response_id) in self._forgotten

    def clear(self) -> None:
        self._links.clear()
        self._logs.clear()
        self._forgotten.clear()
        self._bytes = 0

    def _remove(self, key: tuple[int, str]) -> None:
        link = self._links.pop(key, None)
        if link is None:
            return
        sharing, size = self._logs.pop(link.items.identity)
        if sharing > 1:
            self._logs[link.items.identity] = (sharing - 1, size)
        else:
            self._bytes -= size

    def __len__(self) -> int:
        return len(self._links)

    @property
    def byte_size(self) -> int:
        return self._bytes


hot_tier = HotTier()
