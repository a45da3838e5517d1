"""Options: a dict from the settings, read into a struct."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)


def read(where: str, options: Mapping[str, Any], kind: type[T]) -> T:
    """``options``, found at ``where`` in the settings, as a ``kind``, whose fields are the keys in capitals.

    Raises:
        ValueError: an unknown, missing or mistyped key; the message names it.
    """
    known = [field.encode_name for field in msgspec.structs.fields(kind)]
    for key in options:
        if key not in known:
            raise ValueError(f"{where}[{key!r}] is not an option; there are {', '.join(known)}")
    for field in msgspec.structs.fields(kind):
        if field.required and field.encode_name not in options:
            raise ValueError(f"{where}[{field.encode_name!r}] is missing")
    try:
        return msgspec.convert(dict(options), kind)
    except msgspec.ValidationError as exc:
        what, _, place = str(exc).partition(" - at `$.")
        key = place.rstrip("`").split(".")[0].split("[")[0]
        raise ValueError(f"{where}[{key!r}]: {what}") from exc
