"""The renderers of one process: made from files of the operator's, once each, held in memory."""

from collections.abc import Mapping
from typing import Any

from django.utils.module_loading import import_string

from responses_ws.rendering.base import Renderer

_loaded: dict[str, Renderer] = {}


def load(options: Mapping[str, Any]) -> Renderer:
    """The renderer of these options, ``RENDERER`` in the settings; the same object for the same options.

    ``CLASS`` is the dotted path of a `Renderer`; its class method ``from_options`` gets the other keys.

    Raises:
        ValueError: an option is wrong, or a file cannot be read.
    """
    key = repr(sorted(options.items()))
    renderer = _loaded.get(key)
    if renderer is None:
        path = options.get("CLASS", "")
        try:
            factory = import_string(path)
        except ImportError as exc:
            raise ValueError(f"RENDERER['CLASS']: cannot import {path!r}: {exc}") from exc
        rest = {name: value for name, value in options.items() if name != "CLASS"}
        renderer = _loaded[key] = factory.from_options(rest)
    return renderer
