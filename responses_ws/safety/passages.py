"""The texts within items: read out for classifiers, and put back where they were changed."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from responses_ws.protocol.items import Item

from .base import Passage

REDACTED = "[redacted]"
"""Stands where something was taken out."""
REMOVED = "[removed]"
"""Stands for a text that was refused whole."""

Place = tuple[int, str, int]
"""Index of the item, field, index of the part; -1 where the field itself is the text."""

# Whatever the type of the item: these hold what somebody has said. The second line: of hosted tools' items.
_FIELDS = (
    *("content", "output", "arguments", "input", "summary"),
    *("reason", "results", "queries", "action.query", "error.message", "error.content"),
)
_PARTS = ("text", "refusal")
_MEDIA = frozenset({"input_image", "input_file"})


def passages_of(items: Sequence[Item]) -> tuple[list[Place], list[Passage]]:
    """Every text of the items, in order, and where each is. Images, files and what is sealed are not among them."""
    places: list[Place] = []
    passages: list[Passage] = []
    for index, item in enumerate(items):
        source = _source(item)
        for field in _FIELDS:
            value = _read(item, field)
            if isinstance(value, str):
                places.append((index, field, -1))
                passages.append(Passage(value, source))
            elif isinstance(value, list):
                for number, part in enumerate(value):
                    text = _text_of(part)
                    if text is not None:
                        places.append((index, field, number))
                        passages.append(Passage(text, source))
    return places, passages


def rewritten(items: Sequence[Item], texts: Mapping[Place, str]) -> list[Item]:
    """The items with these texts in those places; those without a change are the same objects.

    Arguments of calls are JSON, which a change would break: they become an empty object.
    """
    changed = list(items)
    for (index, field, number), text in texts.items():
        item = changed[index]
        if number < 0:
            value: Any = "{}" if field == "arguments" else text
        else:
            value = list(_read(item, field))
            part = value[number]
            value[number] = text if isinstance(part, str) else {**part, _name_of(part): text}
        changed[index] = _written(item, field, value)
    return changed


def blanked(items: Sequence[Item]) -> list[Item]:
    """The items without anything that was said in them: their places, ids and calls are left."""
    places, _ = passages_of(items)
    shells = rewritten(items, dict.fromkeys(places, REMOVED))
    for index, item in enumerate(shells):
        for field in _FIELDS:
            parts = item.get(field)
            if isinstance(parts, list) and any(_is_media(part) for part in parts):
                kept = [{"type": "input_text", "text": REMOVED} if _is_media(part) else part for part in parts]
                item = shells[index] = {**item, field: kept}
    return shells


def merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same spans in order, those that touch as one."""
    whole: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if whole and start <= whole[-1][1]:
            whole[-1] = (whole[-1][0], max(end, whole[-1][1]))
        else:
            whole.append((start, end))
    return whole


def redacted(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """``text`` with a mark in the place of each span."""
    pieces: list[str] = []
    at = 0
    for start, end in merged(spans):
        pieces += [text[at:start], REDACTED]
        at = end
    return "".join([*pieces, text[at:]])


def _source(item: Item) -> str:
    kind = item.get("type") or "message"
    if kind == "message":
        return str(item.get("role"))
    return "reasoning" if kind == "reasoning" else "tool"


def _read(item: Item, field: str) -> Any:
    outer, dot, inner = field.partition(".")
    value = item.get(outer)
    if not dot:
        return value
    return value.get(inner) if isinstance(value, dict) else None


def _written(item: Item, field: str, value: Any) -> Item:
    outer, dot, inner = field.partition(".")
    return {**item, outer: {**item[outer], inner: value} if dot else value}


def _text_of(part: Any) -> str | None:
    if isinstance(part, str):
        return part
    name = _name_of(part) if isinstance(part, dict) else ""
    return part[name] if name else None


def _name_of(part: dict[str, Any]) -> str:
    return next((name for name in _PARTS if isinstance(part.get(name), str)), "")


def _is_media(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in _MEDIA
