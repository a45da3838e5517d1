"""Rules from the admin: regular expressions, block lists, secrets and keys."""

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from django.db import transaction
from django.db.models.signals import post_delete, post_save

from responses_ws.models import SafetyRule
from responses_ws.runtime import dbpool, logs

from .base import CLEAN, Capabilities, Classifier, Finding, Material, Side, Span, Verdict
from .ruleset import MISSING, Match, Rule, Ruleset, re2

logger = logging.getLogger(__name__)

SECONDS_FRESH = 5.0
"""A change made by another process is in force here after this; one made in this process at once."""
SECONDS_TO_RELOAD = 0.25
# About 0.2 ms of looking. Beyond, a thread looks while the loop goes on.
CHARACTERS_INLINE = 64 * 1024
# Of a match that is still growing and is to be redacted: beyond, its end could not be told from innocent text.
GROWING_CHARACTERS = 192


class RulesOptions(msgspec.Struct, rename="upper", forbid_unknown_fields=True):
    """Options of `Rules`."""

    holds_back: int = 64
    """Characters of an answer that are held back, where there are rules for answers."""


class Rules(Classifier):
    """Looks for the rows of `SafetyRule`, in every text by itself and across the seams between them.

    The rows are held in memory, and read again when they may have changed. For a project where none of them redacts
    input, it runs beside the engine; where none of them is for answers, nothing is held back.
    """

    carries = 256

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        super().__init__(name, options)
        try:
            self._options = msgspec.convert(dict(options), RulesOptions)
        except msgspec.ValidationError as exc:
            raise ValueError(str(exc)) from exc
        if re2 is None:
            raise ValueError(MISSING)
        self._rules: _Loaded | None = None
        self._fresh_until = 0.0
        self._changes = -1
        self._loading: asyncio.Task[None] | None = None

    def capabilities_for(self, project_id: int) -> Capabilities:
        known = self._rules
        return Capabilities(
            # Until they are known, there may be any.
            redacts=known is None or known.ruleset(project_id, "input").redacts,
            reads_output=known is None or bool(known.ruleset(project_id, "output")),
            holds_back=self._options.holds_back,
        )

    async def check(self, material: Material) -> Verdict:
        ruleset = (await self._current()).ruleset(material.project_id, material.side)
        if not ruleset:
            return CLEAN
        if sum(len(passage.text) for passage in material.passages) > CHARACTERS_INLINE:
            return await asyncio.to_thread(_look, ruleset, material)
        return _look(ruleset, material)

    async def _current(self) -> "_Loaded":
        """The rules in force: read again once for all who wait. With the database away the known ones stay."""
        known = self._rules
        if known is not None and self._changes == _changes and time.monotonic() < self._fresh_until:
            return known
        loop = asyncio.get_running_loop()
        if self._loading is None or self._loading.done() or self._loading.get_loop() is not loop:
            self._loading = loop.create_task(self._load(), context=logs.of_nobody())
        try:
            async with asyncio.timeout(None if known is None else SECONDS_TO_RELOAD):
                # Shielded: others wait for the same rows.
                await asyncio.shield(self._loading)
        except Exception as exc:
            if known is None:
                raise
            self._fresh_until = time.monotonic() + SECONDS_FRESH
            logger.warning("The safety rules cannot be read again: %s", type(exc).__name__)
        assert self._rules is not None, "they have been read, or the reading has failed"
        return self._rules

    async def _load(self) -> None:
        changes = _changes
        self._rules = await dbpool.run(load, self._rules)
        self._changes, self._fresh_until = changes, time.monotonic() + SECONDS_FRESH


class _Loaded:
    """The rules in force, compiled: those for all projects, and for each that has its own, those with them."""

    def __init__(self, rows: list[Rule]) -> None:
        self.rows = rows
        rules = [rule for rule in rows if _compiles(rule)]
        self._rulesets: dict[tuple[int | None, Side], Ruleset] = {}
        sides: tuple[Side, ...] = ("input", "output")
        for project_id in {None, *(rule.project_id for rule in rules)}:
            for side in sides:
                self._rulesets[project_id, side] = Ruleset(
                    [rule for rule in rules if rule.scope in (side, "both") and rule.project_id in (None, project_id)]
                )

    def ruleset(self, project_id: int, side: Side) -> Ruleset:
        found = self._rulesets.get((project_id, side))
        return self._rulesets[None, side] if found is None else found


def load(known: _Loaded | None) -> _Loaded:
    """The rules in force; ``known`` where nothing has changed. In a thread of the database pool."""
    rows = [
        Rule(row.name, row.kind, row.pattern, row.action, row.scope, row.project_id)
        for row in SafetyRule.objects.in_force()
    ]
    return known if known is not None and known.rows == rows else _Loaded(rows)


def _compiles(rule: Rule) -> bool:
    try:
        Ruleset([rule])
    except ValueError as exc:
        # Written past the admin, which would have refused it.
        logger.error("The safety rule %r is not in force: %s", rule.name, exc)
        return False
    return True


def _look(ruleset: Ruleset, material: Material) -> Verdict:
    findings: list[Finding] = []
    before = material.before
    for index, passage in enumerate(material.passages):
        text = passage.text
        matches = list(ruleset.matches(text))
        if before and text:
            matches += _across(ruleset, before, text)
        findings += [_finding(match, index, text, material.side) for match in matches]
        before = (before + text[-Rules.carries :])[-Rules.carries :]
    return Verdict(findings) if findings else CLEAN


def _across(ruleset: Ruleset, before: str, text: str) -> list[Match]:
    """What begins in ``before`` and ends in ``text``."""
    beginning = text[: Rules.carries]
    found = [match for match in ruleset.matches(before + beginning) if match.start < len(before) < match.end]
    if len(beginning) < len(text) and any(match.end == len(before) + len(beginning) for match in found):
        # It may be longer still.
        found = [match for match in ruleset.matches(before + text) if match.start < len(before) < match.end]
    return [
        msgspec.structs.replace(match, start=match.start - len(before), end=match.end - len(before)) for match in found
    ]


def _finding(match: Match, index: int, text: str, side: Side) -> Finding:
    is_growing = match.end == len(text) and match.end - match.start >= GROWING_CHARACTERS
    action = "refuse" if side == "output" and match.action == "redact" and is_growing else match.action
    return Finding(match.category, action, spans=(Span(index, max(match.start, 0), match.end),))


_changes = 0
"""How often this process has changed a rule."""


def _changed(**_kwargs: Any) -> None:
    transaction.on_commit(_count_change)


def _count_change() -> None:
    global _changes
    _changes += 1


post_save.connect(_changed, sender=SafetyRule)
post_delete.connect(_changed, sender=SafetyRule)
