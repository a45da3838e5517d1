"""An engine's options: a dict from the settings, read into a struct."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)


class Timeouts(msgspec.Struct, frozen=True, rename="upper", forbid_unknown_fields=True):
    """Seconds. How long an answer may take is the caller's business."""

    connect: float = 5.0
    models: float = 10.0
    """For the list of models, from connect to the last byte."""


def read_options(name: str, options: Mapping[str, Any], kind: type[T]) -> T:
    """``options`` of the engine called ``name`` as a ``kind``, whose fields are the keys in capitals.

    Raises:
        ValueError: an unknown, missing or mistyped key; the message names it.
    """
    known = [field.encode_name for field in msgspec.structs.fields(kind)]
    for key in options:
        if key not in known:
            raise ValueError(f"ENGINES[{name!r}][{key!r}] is not an option; there are {', '.join(known)}")
    for field in msgspec.structs.fields(kind):
        if field.required and field.encode_name not in options:
            raise ValueError(f"ENGINES[{name!r}][{field.encode_name!r}] is missing")
    try:
        return msgspec.convert(dict(options), kind)
    except msgspec.ValidationError as exc:
        what, _, where = str(exc).partition(" - at `$.")
        key = where.rstrip("`").split(".")[0].split("[")[0]
        raise ValueError(f"ENGINES[{name!r}][{key!r}]: {what}") from exc
