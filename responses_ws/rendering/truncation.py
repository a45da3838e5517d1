"""Contexts that are too long for their engine: what is left without their oldest turns."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from responses_ws.protocol.compaction import SUMMARY
from responses_ws.protocol.items import HOSTED_CALLS

from .chat import ChatPrompt, Medium

Item = dict[str, Any]

_CALLS = frozenset({"function_call", "custom_tool_call"})


def without_oldest(items: Sequence[Item], *, most_tokens: int, takes: frozenset[Medium]) -> list[Item] | None:
    """The items without so many of the oldest turns that the rest fits, by estimate; None if it cannot be made to.

    A turn begins with a user message. Messages of the system and the developer stay, and a call and its output are
    never parted. Where the newest turn alone is too long, the oldest of its calls go, with their outputs, and its
    user message stays. A little more than necessary is left out: the turns that follow are appended again then,
    which engines that cache prefixes reward.
    """
    sizes = [ChatPrompt(takes=takes).extended([item]).estimated_tokens for item in items]
    total = sum(sizes)
    # Of the items before each position: what they take, and what of it stays.
    before = [0, *accumulate(sizes)]
    staying = [0, *accumulate(size if _stays(item) else 0 for item, size in zip(items, sizes, strict=True))]
    newest = max((index for index, item in enumerate(items) if _is_from_user(item)), default=-1)
    cuts = list(_cuts(items, newest))
    for goal in (most_tokens * 3 // 4, most_tokens):
        for cut in cuts:
            pinned = sizes[newest] if 0 <= newest < cut else 0
            if total - before[cut] + staying[cut] + pinned <= goal:
                old = [item for index, item in enumerate(items[:cut]) if _stays(item) or index == newest]
                return [*old, *items[cut:]]
    return None


def _stays(item: Item) -> bool:
    if item.get("type") == SUMMARY:
        # What was left out before is in there.
        return True
    return (item.get("type") or "message") == "message" and item.get("role") in ("system", "developer")


def _is_from_user(item: Item) -> bool:
    return (item.get("type") or "message") == "message" and item.get("role") == "user"


def _cuts(items: Sequence[Item], newest: int) -> Iterator[int]:
    """Positions where a context may begin: at user messages, then, behind the newest of these, after outputs."""
    waiting: set[str] = set()
    for index, item in enumerate(items):
        if index and not waiting:
            before = str(items[index - 1].get("type"))
            is_after_output = before.endswith("_output") or before in HOSTED_CALLS
            if _is_from_user(item) or (index > newest and is_after_output):
                yield index
        kind = item.get("type")
        if kind in _CALLS and item.get("status") != "incomplete":
            waiting.add(item["call_id"])
        elif kind == "mcp_approval_request":
            waiting.add(item["id"])
        elif kind == "mcp_approval_response":
            waiting.discard(item["approval_request_id"])
        elif str(kind).endswith("_output"):
            waiting.discard(item.get("call_id", ""))
