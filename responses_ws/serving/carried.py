"""What classifiers are given of the turns before: the end of what was said, on either side."""

from collections.abc import Mapping, Sequence

import msgspec

from responses_ws.connection.log import SharedLog
from responses_ws.protocol.items import Item
from responses_ws.safety.base import Side
from responses_ws.safety.passages import passages_of
from responses_ws.safety.registry import Seat

ITEMS_DERIVED_FROM = 64
"""How far back it is looked for where a chain is read back from what was stored of it."""


class Carried(msgspec.Struct, frozen=True):
    """What travels along a chain: by the name of each classifier, no more than that declares."""

    inputs: Mapping[str, str] = {}
    outputs: Mapping[str, str] = {}
    instructions: bytes = b""
    """Digest of the last ones in which nothing was found: they need no second look."""


def is_carried(seat: Seat, carried: Carried | None) -> bool:
    """Whether it need not be derived. The last turns may have been no business of this classifier."""
    if not seat.classifier.carries:
        return True
    return carried is not None and (seat.name in carried.inputs or seat.name in carried.outputs)


def derived(items: SharedLog[Item], seats: Sequence[Seat]) -> Carried:
    """The same from the end of a chain's items. Costs no more for a longer chain."""
    said: dict[Side, list[str]] = {"input": [], "output": []}
    for item in items.since(max(0, len(items) - ITEMS_DERIVED_FROM)):
        is_made = item.get("role") == "assistant" or str(item.get("type")).endswith("_call")
        said["output" if is_made else "input"] += [passage.text for passage in passages_of([item])[1]]
    carriers = [(seat.name, seat.classifier.carries) for seat in seats if seat.classifier.carries]
    return Carried(
        inputs={name: tail(said["input"], carries) for name, carries in carriers},
        outputs={name: tail(said["output"], carries) for name, carries in carriers},
    )


def tail(texts: Sequence[str], length: int) -> str:
    """The last characters of the texts together."""
    pieces: list[str] = []
    for text in reversed(texts):
        if length <= 0:
            break
        pieces.append(text[-length:])
        length -= len(pieces[-1])
    return "".join(reversed(pieces))
