"""The classifiers of one process, and which of them look at a turn."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from responses_ws.conf import app_settings

from .base import Classifier


class Terms(msgspec.Struct, rename="upper", kw_only=True):
    """What an entry of ``SAFETY`` may say beside its classifier's own options."""

    classifier: str
    """Dotted path of a `Classifier`."""
    name: str = ""
    """What flags and logs call it; empty: its class's name in small letters."""
    seconds: float = 2.0
    """Its time limit for one look."""
    fail: Literal["open", "closed"] = "closed"
    """When it raises or is late. Open: the text passes unseen. Closed: no answer, but an error worth another try; an
    answer that streams is cut."""
    models: list[str] = []
    """Only turns of these models, by the client's names; empty: all."""
    projects: list[int] = []
    """Only turns of the projects with these ids; empty: all."""
    when_asked: bool = False
    """Only turns whose client asks for it by ``moderation``."""


TERMS = tuple(field.encode_name for field in msgspec.structs.fields(Terms))


class Seat(msgspec.Struct, frozen=True):
    """A classifier and the terms on which it looks."""

    name: str
    classifier: Classifier
    terms: Terms

    @property
    def fails_closed(self) -> bool:
        return self.terms.fail == "closed"

    def looks_at(self, model: str, project_id: int, moderation_model: str | None) -> bool:
        """Whether a turn is its business. ``moderation_model``: the one that the client asks for."""
        is_asked = moderation_model is not None and self.classifier.moderation_model == moderation_model
        terms = self.terms
        return (
            (is_asked or not terms.when_asked)
            and (not terms.models or model in terms.models)
            and (not terms.projects or project_id in terms.projects)
        )


class ClassifierRegistry:
    """Classifiers as configured, in order, built at first use, one instance each per process."""

    def __init__(self) -> None:
        self._seats: list[Seat] | None = None

    def seats(self) -> Sequence[Seat]:
        """All of them. Raises ValueError: an entry of the settings is wrong."""
        if self._seats is None:
            self._seats = build(app_settings.SAFETY)
        return self._seats

    def install(self, classifier: Classifier, **terms: Any) -> None:
        """One more, whatever the settings say; ``terms`` as in the settings: for tests and embedding projects."""
        given = msgspec.convert({"CLASSIFIER": "", **terms}, Terms)
        self._seats = [*self.seats(), Seat(classifier.name, classifier, given)]

    async def aclose_all(self) -> None:
        """Give everything back; the next use builds anew."""
        seats, self._seats = self._seats or [], None
        for seat in seats:
            await seat.classifier.aclose()

    def reset(self) -> None:
        """Forget everything without closing it, as after a change of settings."""
        self._seats = None


def build(entries: Sequence[Mapping[str, Any]]) -> list[Seat]:
    """The classifiers of ``SAFETY``. Raises ValueError: an entry is wrong; the message says where."""
    seats: list[Seat] = []
    for index, entry in enumerate(entries):
        where = f"SAFETY[{index}]"
        options = {key: value for key, value in entry.items() if key not in TERMS}
        try:
            terms = msgspec.convert({key: entry[key] for key in TERMS if key in entry}, Terms, strict=False)
        except msgspec.ValidationError as exc:
            raise ValueError(f"{where}: {exc}") from exc
        try:
            factory = import_string(terms.classifier)
        except ImportError as exc:
            raise ValueError(f"{where}['CLASSIFIER']: cannot import {terms.classifier!r}: {exc}") from exc
        if not (isinstance(factory, type) and issubclass(factory, Classifier)):
            raise ValueError(f"{where}['CLASSIFIER']: {terms.classifier!r} is not a Classifier")
        name = terms.name or factory.__name__.lower()
        if any(seat.name == name for seat in seats):
            raise ValueError(f"{where}: a second classifier is called {name!r}; give it a NAME")
        try:
            seats.append(Seat(name, factory(name, options), terms))
        except ValueError as exc:
            raise ValueError(f"{where}: {exc}") from exc
    return seats


classifiers = ClassifierRegistry()


def _reset_after_change(*, setting: str, **_kwargs: Any) -> None:
    if setting == "RESPONSES_WS":
        classifiers.reset()


setting_changed.connect(_reset_after_change)
