"""Rules from the admin: regular expressions, block lists, secrets and keys."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from django.db import transaction
from django.db.models.signals import post_delete, post_save

from responses_ws.models import SafetyRule
from responses_ws.runtime import dbpool

from .base import CLEAN, Classifier, Finding, Material, Side, Span, Verdict
from .ruleset import MISSING, Match, Rule, Ruleset, re2

logger = logging.getLogger(__name__)

SECONDS_FRESH = 5.0
"""A change made by another process is in force here after this; one made in this process at once."""
SECONDS_TO_RELOAD = 0.25
# About 0.2 ms of looking. Beyond, a thread looks while the loop goes on.
CHARACTERS_INLINE = 64 * 1024
PROJECTS_KEPT = 1000
# Of a match that is still growing and is to be redacted: beyond, its end could not be told from innocent text.
GROWING_CHARACTERS = 192


class RulesOptions(msgspec.Struct, rename="upper", forbid_unknown_fields=True):
    """Options of `Rules`."""

    holds_back: int = 64
    """Characters of an answer that are held back, where there are rules for answers."""


class Rules(Classifier):
    """Looks for the rows of `SafetyRule`, in every text by itself and across the seams between them.

    The rows are held in memory, and looked for anew when they have changed. Where none of them redacts input, it runs
    beside the engine; where none of them is for answers, nothing is held back.
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
        self._rules: Sequence[Rule] | None = None
        self._rulesets: dict[tuple[int, Side], Ruleset] = {}
        self._fresh_until = 0.0
        self._changes = -1
        self._loading: asyncio.Task[None] | None = None

    @property
    def redacts(self) -> bool:
        # Until they are known, it may be.
        return self._has(lambda rule: rule.action == "redact" and rule.scope != "output")

    @property
    def reads_output(self) -> bool:
        return self._has(lambda rule: rule.scope != "input")

    @property
    def holds_back(self) -> int:
        return self._options.holds_back

    async def check(self, material: Material) -> Verdict:
        await self._refresh()
        ruleset = self._ruleset(material.project_id, material.side)
        if not ruleset:
            return CLEAN
        if sum(len(passage.text) for passage in material.passages) > CHARACTERS_INLINE:
            return await asyncio.to_thread(_look, ruleset, material)
        return _look(ruleset, material)

    def _has(self, is_such: Any) -> bool:
        return self._rules is None or any(map(is_such, self._rules))

    def _ruleset(self, project_id: int, side: Side) -> Ruleset:
        key = (project_id, side)
        found = self._rulesets.get(key)
        if found is None:
            if len(self._rulesets) >= PROJECTS_KEPT:
                self._rulesets.clear()
            rules = [
                rule
                for rule in self._rules or ()
                if rule.scope in (side, "both") and rule.project_id in (None, project_id)
            ]
            found = self._rulesets[key] = Ruleset(rules)
        return found

    async def _refresh(self) -> None:
        """Look for changes, once for all who wait. With the database away the known rules stay in force."""
        if self._changes == _changes and time.monotonic() < self._fresh_until:
            return
        loop = asyncio.get_running_loop()
        if self._loading is None or self._loading.done() or self._loading.get_loop() is not loop:
            self._loading = loop.create_task(self._load())
        try:
            async with asyncio.timeout(None if self._rules is None else SECONDS_TO_RELOAD):
                # Shielded: others wait for the same rows.
                await asyncio.shield(self._loading)
        except Exception as exc:
            if self._rules is None:
                raise
            self._fresh_until = time.monotonic() + SECONDS_FRESH
            logger.warning("The safety rules cannot be read again: %s", type(exc).__name__)

    async def _load(self) -> None:
        changes = _changes
        rules = await dbpool.run(load)
        if rules != self._rules:
            self._rules, self._rulesets = rules, {}
        self._changes, self._fresh_until = changes, time.monotonic() + SECONDS_FRESH


def load() -> list[Rule]:
    """The rules in force, without those that do not compile. In a thread of the database pool."""
    rules = []
    for row in SafetyRule.objects.in_force():
        rule = Rule(row.name, row.kind, row.pattern, row.action, row.scope, row.project_id)
        try:
            Ruleset([rule])
        except ValueError as exc:
            # Written past the admin, which would have refused it.
            logger.error("The safety rule %r is not in force: %s", row.name, exc)
        else:
            rules.append(rule)
    return rules


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
