"""Compaction: a long context made short, and carried on in one sealed item."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from .errors import InvalidRequest
from .items import Item, listed
from .request import JsonObject, Request, bad_json
from .shapes import shape
from .usage import Usage

COMPACTION = "compaction"
TRIGGER = "compaction_trigger"
"""The last input item of a request that wants its context compacted, and no answer."""
SUMMARY = "compaction_summary"
"""Stands within a sealed context for all that was folded into it: ``{type, text}``. Never on the wire."""

INSTRUCTION = (
    "Pause here and write a summary of the conversation so far, for yourself: from now on it takes the place of "
    "everything but the messages of the user, which stay. Say what has been asked and decided, what has been done and "
    "found out (with the exact names, paths, values and quotations that are still needed), what failed, and what is "
    "left to do next. Do not answer anything and do not use any tool; write only the summary."
)
INTRODUCTION = "Summary of what was said and done before, written by the assistant:"


class CompactRequest(msgspec.Struct, kw_only=True):
    """The body of ``POST /v1/responses/compact``. Fields that we do not know are ignored.

    Source: OpenAI ``ResponseCompactParams``.
    """

    model: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    input: str | list[Annotated[JsonObject, shape("InputItem")]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None

    def as_turn(self) -> Request:
        """A request for a turn that does the same, and is not stored."""
        given = self.input or []
        if not given and self.previous_response_id is None:
            raise InvalidRequest(
                "Missing required parameter: 'input'.", code="missing_required_parameter", param="input"
            )
        if isinstance(given, str):
            given = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": given}]}]
        return Request(
            model=self.model,
            input=[*given, {"type": TRIGGER}],
            instructions=self.instructions,
            previous_response_id=self.previous_response_id,
            prompt_cache_key=self.prompt_cache_key,
            service_tier=self.service_tier,
            store=False,
        )


_decode = msgspec.json.Decoder(CompactRequest).decode


def decode_compact_request(body: bytes) -> CompactRequest:
    """The request in an HTTP body. Raises InvalidRequest."""
    try:
        return _decode(body)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise bad_json(exc) from exc


def compaction_object(
    *, compaction_id: str, created_at: int, context: Sequence[Item], item: Item, usage: JsonObject | None
) -> JsonObject:
    """What compact answers: the user's messages of the ``context`` in full form, then the one compaction item."""
    users = [listed(one) for one in context if _is_message(one) and one.get("role") == "user"]
    return {
        "id": compaction_id,
        "object": "response.compaction",
        "created_at": created_at,
        "output": [*users, item],
        "usage": usage or Usage().wire(),
    }


_SHARE = 0.8
"""Of a model's context that may be used before it is compacted, where the client does not say: an answer has to fit."""


def threshold_of(given: Sequence[JsonObject] | None, context_tokens: int | None) -> float | None:
    """Tokens above which a context is to be compacted; None: never."""
    for entry in given or ():
        if entry.get("compact_threshold") is not None:
            return float(entry["compact_threshold"])
        return None if context_tokens is None else _SHARE * context_tokens
    return None


def asks_compaction(items: Sequence[Item]) -> bool:
    """Whether these input items end with a trigger."""
    return bool(items) and items[-1].get("type") == TRIGGER


_WORTH = 0.1
"""Of a context that must be there to be folded: a summary costs all of it."""


def is_worth_folding(items: Sequence[Item]) -> bool:
    """Whether a summary would make this context noticeably shorter."""
    foldable = whole = 0
    for item in items:
        size = len(msgspec.json.encode(item))
        whole += size
        if not _is_kept(item) and item.get("type") != SUMMARY:
            foldable += size
    return foldable > _WORTH * whole


def compacted(items: Sequence[Item], summary: str | None) -> list[Item]:
    """What stands for a context from now on: without a summary, all of it.

    With one, the messages of user, system and developer stay as they are, and so do settings. What the assistant said
    and did is folded into the summary, which stands where the last of that stood.
    """
    items = [item for item in items if item.get("type") != TRIGGER]
    if summary is None:
        return items
    kept: list[Item] = []
    place = 0
    for item in items:
        if _is_kept(item):
            kept.append(item)
        else:
            place = len(kept)
    return [*kept[:place], {"type": SUMMARY, "text": summary}, *kept[place:]]


def in_place(items: Sequence[Item]) -> list[Item]:
    """A context as it counts, given its items with compactions opened: ``{type, items}``.

    The last compaction takes the place of everything before it that it was made from. What remains before it is what
    a client has put there since, as some put instructions and the user's newest words: messages, not by the assistant,
    and settings that it does not hold.
    """
    last = max((index for index, item in enumerate(items) if item.get("type") == COMPACTION), default=None)
    if last is None:
        return list(items)
    restored: list[Item] = items[last]["items"]
    held = {_said(item) for item in restored if _is_kept(item)}
    before = [item for item in items[:last] if _is_kept(item) and _said(item) not in held]
    return [*before, *restored, *items[last + 1 :]]


def _is_message(item: Item) -> bool:
    return (item.get("type") or "message") == "message"


_SETTINGS = frozenset({"additional_tools", "configuration_update"})
"""Items that say how to go on. Folded, they would be forgotten."""


def _is_kept(item: Item) -> bool:
    return item.get("type") in _SETTINGS or (_is_message(item) and item.get("role") != "assistant")


def _said(item: Item) -> tuple[Any, bytes]:
    """Who said what, whatever the form and the id."""
    if _is_message(item):
        who, what = item.get("role"), listed(item)["content"]
    else:
        who, what = item["type"], {name: value for name, value in item.items() if name != "id"}
    return who, msgspec.json.encode(what, order="deterministic")
