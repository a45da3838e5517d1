"""List objects, and how a query asks for one page of them. Source: OpenAI's lists."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from responses_ws.protocol.errors import InvalidRequest
from responses_ws.protocol.items import Item


class PageAsked(msgspec.Struct, frozen=True):
    """One page: ``limit`` 1–100 (20), ``order`` desc or asc, ``after`` an item's id."""

    after: str | None
    limit: int
    is_ascending: bool


def page_asked(query: Mapping[str, str]) -> PageAsked:
    """What a query string asks for. Raises InvalidRequest."""
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest(f"Invalid value: {order!r}.", param="order")
    limit = query.get("limit", "20")
    if not limit.isascii() or not limit.isdigit() or len(limit) > 3 or not 1 <= int(limit) <= 100:
        raise InvalidRequest(f"Invalid value: {limit[:20]!r}; expected 1 to 100.", param="limit")
    return PageAsked(query.get("after"), int(limit), order == "asc")


def page_of(items: Sequence[Item], asked: PageAsked) -> dict[str, Any]:
    """The list object of that page of ``items``, which are in ascending order."""
    ordered = list(items if asked.is_ascending else reversed(items))
    if asked.after is not None:
        positions = [index for index, item in enumerate(ordered) if item["id"] == asked.after]
        if not positions:
            raise no_such_item(asked.after)
        # Ids may repeat, where clients made them. The furthest counts, so that paging always goes on.
        ordered = ordered[positions[-1] + 1 :]
    page = ordered[: asked.limit]
    return list_object(page, has_more=len(ordered) > len(page))


def list_object(items: Sequence[Item], *, has_more: bool) -> dict[str, Any]:
    """These items as one page."""
    return {
        "object": "list",
        "data": items,
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": has_more,
    }


def no_such_item(after: str) -> InvalidRequest:
    """``after`` names nothing in this list."""
    return InvalidRequest(f"No such item: {after[:128]!r}.", param="after")
