"""The sinks of one process."""

from collections.abc import Sequence
from typing import Any

from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from responses_ws.conf import app_settings

from .base import Sink


class SinkRegistry:
    """Sinks as configured, built at first use, one instance each per process."""

    def __init__(self) -> None:
        self._sinks: list[Sink] | None = None

    def all(self) -> Sequence[Sink]:
        """All of them. Raises ValueError: an entry of the settings is wrong."""
        if self._sinks is None:
            self._sinks = [load(name) for name in app_settings.BILLING_SINKS]
        return self._sinks

    def reset(self) -> None:
        """Forget everything, as after a change of settings."""
        self._sinks = None


def load(name: str) -> Sink:
    """The sink called ``name`` in the settings, made anew. Raises ValueError: its class, or an option, is wrong."""
    entry = app_settings.BILLING_SINKS[name]
    path = entry.get("SINK")
    try:
        factory = import_string(path)
    except ImportError as exc:
        raise ValueError(f"BILLING_SINKS[{name!r}]['SINK']: cannot import {path!r}: {exc}") from exc
    if not (isinstance(factory, type) and issubclass(factory, Sink)):
        raise ValueError(f"BILLING_SINKS[{name!r}]['SINK']: {path!r} is not a Sink")
    return factory(name, {key: value for key, value in entry.items() if key != "SINK"})


sinks = SinkRegistry()


def _reset_after_change(*, setting: str, **_kwargs: Any) -> None:
    if setting == "RESPONSES_WS":
        sinks.reset()


setting_changed.connect(_reset_after_change)
