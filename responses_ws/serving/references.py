"""Item references: an id that stands for an item the server already has."""

from collections.abc import Iterable, Sequence

from responses_ws.connection.chain import Link
from responses_ws.protocol.errors import InvalidRequest
from responses_ws.protocol.items import Item
from responses_ws.runtime import dbpool
from responses_ws.stores import conversations, rows


async def resolved(items: Sequence[Item], *, project_id: int, links: Iterable[Link] = ()) -> list[Item]:
    """The items, each reference replaced by what it stands for: looked for in ``links``, then in what is stored.

    Raises:
        InvalidRequest: unknown, foreign, deleted and expired look the same.
    """
    wanted = {item["id"] for item in items if item.get("type") == "item_reference"}
    if not wanted:
        return list(items)
    found: dict[str, Item] = {}
    for link in links:
        found |= {item["id"]: item for item in link.items if item["id"] in wanted and item["id"] not in found}
    if missing := wanted - found.keys():
        found |= await dbpool.run(_stored, project_id, missing)
    for item_id in wanted - found.keys():
        raise InvalidRequest(f"Item with id '{item_id}' not found.", code="invalid_request_error", param="input")
    return [found[item["id"]] if item.get("type") == "item_reference" else item for item in items]


def _stored(project_id: int, item_ids: set[str]) -> dict[str, Item]:
    return conversations.find_items(project_id, item_ids) | rows.find_items(project_id, item_ids)
