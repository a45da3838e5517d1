"""The renderers of one process: made from files of the operator's, once each, held in memory."""

import logging
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.utils.module_loading import import_string

from responses_ws.rendering.base import Renderer
from responses_ws.rendering.templates import TEMPLATES

logger = logging.getLogger(__name__)

TEMPLATE_RENDERER = "responses_ws.rendering.template.TemplateRenderer"
_BESIDE = frozenset({".json", ".jinja"})
"""Files that may belong to one that an option names."""
_MOST_BYTES_BESIDE = 64 << 20
_EXTRAS = {"tokenizers": "tokens", "jinja2": "tokens", "openai_harmony": "harmony", "renderers": "renderers"}
"""Which of our extras brings a package."""

_loaded: dict[str, Renderer] = {}


class NoSuchFile(ValueError):
    """An option names a file that is not there."""


def load(options: Mapping[str, Any]) -> Renderer:
    """The renderer of these options, ``RENDERER`` in the settings; the same object for the same options and files.

    ``CLASS`` is the dotted path of a `Renderer`, by default the one that renders by chat templates; the other keys are
    for its ``from_options``, paths of files replaced by what is in them.

    Raises:
        ValueError: an option is wrong, or a file cannot be read.
    """
    factory = class_of(options)
    given = {name: value for name, value in options.items() if name != "CLASS"}
    states = []
    for name in sorted(factory.file_options & given.keys()):
        paths = _paths(name, given[name])
        states += [(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in paths]
    key = repr((sorted(options.items()), states))
    renderer = _loaded.get(key)
    if renderer is None:
        for name in factory.file_options & given.keys():
            if paths := _paths(name, given[name]):
                given[name] = {path.name: _content(name, path) for path in paths}
        try:
            renderer = _loaded[key] = factory.from_options(given)
        except ValueError as exc:
            raise ValueError(f"RENDERER: {exc}") from exc
        for note in renderer.notes:
            logger.warning("renderer %r: %s", dict(options), note)
    return renderer


def check(options: Mapping[str, Any]) -> None:
    """What can be told without reading files. Raises ValueError, as `load` does."""
    factory = class_of(options)
    given = {name: value for name, value in options.items() if name != "CLASS"}
    try:
        factory.check_options(given)
    except ValueError as exc:
        raise ValueError(f"RENDERER: {exc}") from exc
    for name in factory.file_options & given.keys():
        _paths(name, given[name])


def class_of(options: Mapping[str, Any]) -> type[Renderer]:
    """The class that is meant. Raises ValueError: it cannot be imported, or is none of renderers."""
    path = options.get("CLASS", TEMPLATE_RENDERER)
    try:
        factory = import_string(path)
    except ImportError as exc:
        extra = _EXTRAS.get(exc.name or "")
        hint = f": pip install 'responses-ws[{extra}]'" if extra else ""
        raise ValueError(f"RENDERER['CLASS']: cannot import {path!r}: {exc}{hint}") from exc
    if not (isinstance(factory, type) and issubclass(factory, Renderer)):
        raise ValueError(f"RENDERER['CLASS']: {path!r} is not a Renderer")
    return factory


def _paths(name: str, value: Any) -> list[Path]:
    """The files that an option names; none where it is the name of something of ours."""
    if name == "TEMPLATE" and value in TEMPLATES:
        return []
    if not isinstance(value, str | Path):
        raise ValueError(f"RENDERER[{name!r}] is not a path: {value!r}")
    path = Path(value)
    if path.is_dir():
        first, folder = [], path
    elif path.is_file():
        first, folder = [path], path.parent
    else:
        hint = f", nor one of ours ({', '.join(TEMPLATES)})" if name == "TEMPLATE" else ""
        raise NoSuchFile(f"RENDERER[{name!r}]: there is no file {value}{hint}")
    if path.suffix not in _BESIDE | {""}:
        return first
    beside = [one for one in sorted(folder.iterdir()) if one.suffix in _BESIDE and one.is_file()]
    return first + [one for one in beside if one != path and one.stat().st_size <= _MOST_BYTES_BESIDE]


def _content(name: str, path: Path) -> bytes | memoryview:
    try:
        if path.suffix != ".gguf":
            return path.read_bytes()
        # Most of it is weights, which stay where they are.
        with open(path, "rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as exc:
        raise ValueError(f"RENDERER[{name!r}]: cannot read {path}: {exc}") from exc
