"""Items that clients carry for us: reasoning, sealed and opened again."""

from collections.abc import Sequence

import msgspec

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


def opened_input(items: Sequence[Item], *, project_id: int, model: str) -> list[Item]:
    """A request's input as ``model`` is to see it.

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


def _opened(item: Item, project_id: int, model: str | None, param: str) -> Item:
    sealed = item.get("encrypted_content")
    if item.get("type") != "reasoning" or not sealed:
        return item
    content = unseal(sealed, purpose=_REASONING, project_id=project_id, param=param, may_be_old=model is None)
    try:
        reasoning = msgspec.json.decode(content, type=_Reasoning)
    except msgspec.DecodeError as exc:
        raise InvalidEncryptedContent(param) from exc
    if model is not None and reasoning.model != model:
        return item
    return {**item, "content": [{"type": "reasoning_text", "text": reasoning.text}]}
