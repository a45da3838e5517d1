"""Items that clients carry for us: reasoning and compacted contexts, sealed and opened again."""

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from responses_ws.protocol.compaction import COMPACTION
from responses_ws.protocol.errors import InvalidEncryptedContent
from responses_ws.protocol.items import Item
from responses_ws.runtime.sealing import seal, unseal

T = TypeVar("T")

_REASONING = "reasoning"


class _Reasoning(msgspec.Struct):
    """What is sealed of a reasoning item. Its text is shown again to the model that wrote it, to no other."""

    model: str
    text: str


def seal_reasoning(text: str, *, project_id: int, model: str) -> str:
    """Raw reasoning as ``encrypted_content``."""
    return seal(msgspec.json.encode(_Reasoning(model, text)), purpose=_REASONING, project_id=project_id)


def seal_context(items: Sequence[Item], *, project_id: int) -> str:
    """A compacted context as ``encrypted_content``: for any model, since a conversation may change it."""
    return seal(msgspec.json.encode(items), purpose=COMPACTION, project_id=project_id)


def opened_input(items: Sequence[Item], *, project_id: int, model: str | None) -> list[Item]:
    """A request's input with its seals opened, as ``model`` is to see it; compactions as ``{type, items}``.

    Without a model, as for items that were kept here.

    Raises:
        InvalidEncryptedContent: ``param`` names the place.
    """
    return [_opened(item, project_id, model, f"input[{index}].encrypted_content") for index, item in enumerate(items)]


def opened_context(items: Sequence[Item], *, project_id: int) -> list[Item]:
    """The same for items that were kept here: as old as they are, and whichever model wrote them.

    Raises:
        InvalidEncryptedContent: the key is gone.
    """
    return [_opened(item, project_id, None, "previous_response_id") for item in items]


def opened_compaction(item: Item, *, project_id: int) -> list[Item]:
    """The context in a compaction item of our own making."""
    items: list[Item] = _opened(item, project_id, None, "input")["items"]
    return items


def _opened(item: Item, project_id: int, model: str | None, param: str) -> Item:
    kind, sealed = item.get("type"), item.get("encrypted_content")
    if kind == COMPACTION:
        assert sealed is not None, "input_items has seen to it"
        return {"type": COMPACTION, "items": _unsealed(sealed, kind, list[Item], project_id, model, param)}
    if kind != _REASONING or not sealed:
        return item
    reasoning = _unsealed(sealed, kind, _Reasoning, project_id, model, param)
    if model is not None and reasoning.model != model:
        return item
    return {**item, "content": [{"type": "reasoning_text", "text": reasoning.text}]}


def _unsealed(sealed: str, purpose: str, kind: type[T], project_id: int, model: str | None, param: str) -> T:
    content = unseal(sealed, purpose=purpose, project_id=project_id, param=param, may_be_old=model is None)
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError as exc:
        raise InvalidEncryptedContent(param) from exc
