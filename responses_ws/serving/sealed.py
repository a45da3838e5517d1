"""Items that clients carry for us: reasoning and compacted contexts, sealed and opened again."""

from collections.abc import Sequence

import msgspec

from responses_ws.protocol.compaction import COMPACTION
from responses_ws.protocol.errors import InvalidEncryptedContent
from responses_ws.protocol.items import Item
from responses_ws.runtime.sealing import seal, unseal

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


def opened_input(
    items: Sequence[Item], *, project_id: int, model: str | None, within: str = "input", may_be_old: bool = False
) -> list[Item]:
    """A request's input with its seals opened, as ``model`` is to see it; compactions as ``{type, items}``.

    Raises:
        InvalidEncryptedContent: ``param`` names the place.
    """
    return [
        _opened(item, project_id, f"{within}[{index}].encrypted_content", model=model, may_be_old=may_be_old)
        for index, item in enumerate(items)
    ]


def opened_context(items: Sequence[Item], *, project_id: int) -> list[Item]:
    """The same for items that were kept here: as old as they are, and whichever model wrote them.

    Raises:
        InvalidEncryptedContent: the key is gone.
    """
    return [_opened(item, project_id, "previous_response_id", model=None, may_be_old=True) for item in items]


def opened_compaction(item: Item, *, project_id: int) -> list[Item]:
    """The context in a compaction item of our own making."""
    (opened,) = opened_context([item], project_id=project_id)
    items: list[Item] = opened["items"]
    return items


def _opened(item: Item, project_id: int, param: str, *, model: str | None, may_be_old: bool) -> Item:
    """``model``: who is to see it; None: whoever."""
    kind, sealed = item.get("type"), item.get("encrypted_content")
    if kind not in (COMPACTION, _REASONING) or not isinstance(sealed, str) or (kind == _REASONING and not sealed):
        return item
    content = unseal(sealed, purpose=kind, project_id=project_id, param=param, may_be_old=may_be_old)
    try:
        if kind == COMPACTION:
            return {"type": COMPACTION, "items": msgspec.json.decode(content, type=list[Item])}
        reasoning = msgspec.json.decode(content, type=_Reasoning)
    except msgspec.DecodeError as exc:
        raise InvalidEncryptedContent(param) from exc
    if model is not None and reasoning.model != model:
        return item
    return {**item, "content": [{"type": "reasoning_text", "text": reasoning.text}]}
