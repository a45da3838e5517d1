"""An engine's options: a dict from the settings, read into a struct."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from responses_ws.runtime import options as options_module

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
    return options_module.read(f"ENGINES[{name!r}]", options, kind)
