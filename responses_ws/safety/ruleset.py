"""Rules compiled: all patterns tried in one pass over a text, in linear time.

RE2 never backtracks, so no pattern can be slow on some text; what it cannot promise that for, it refuses to compile.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

try:
    import re2
except ImportError:  # the extra "safety"
    re2 = None

from .base import Action
from .secrets import SECRETS

MAX_AUTOMATON_BYTES = 64 * 1024 * 1024
MISSING = "The rules classifier needs google-re2: pip install 'responses-ws[safety]'"


class Rule(msgspec.Struct, frozen=True):
    """One row of `SafetyRule`."""

    name: str
    kind: str
    pattern: str
    action: Action
    scope: str
    project_id: int | None


class Match(msgspec.Struct, frozen=True):
    """Characters ``start`` to ``end`` of a text."""

    category: str
    action: Action
    start: int
    end: int


class Ruleset:
    """Rules that are looked for together."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        """Raises ValueError: a pattern that does not compile."""
        self.redacts = any(rule.action == "redact" for rule in rules)
        self._patterns: list[tuple[str, Action, Any]] = []
        for rule in rules:
            for category, pattern in patterns_of(rule):
                self._patterns.append((category, rule.action, compiled(pattern)))
        self._set = re2.Set.SearchSet(_options()) if self._patterns else None
        if self._set is not None:
            for _category, _action, pattern in self._patterns:
                self._set.Add(pattern.pattern)
            self._set.Compile()

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def matches(self, text: str) -> Iterator[Match]:
        """Everything that is found; a text in which there is nothing costs one pass, however many the rules."""
        if self._set is None:
            return
        for index in self._set.Match(text) or ():
            category, action, pattern = self._patterns[index]
            for match in pattern.finditer(text):
                yield Match(category, action, match.start(), match.end())


def patterns_of(rule: Rule) -> list[tuple[str, str]]:
    """What a rule looks for: ``(category, pattern)``."""
    if rule.kind == "secrets":
        return list(SECRETS.items())
    if rule.kind == "pattern":
        return [(rule.name, rule.pattern)]
    words = [line.strip() for line in rule.pattern.splitlines() if line.strip()]
    return [(rule.name, "(?i)(?:" + "|".join(map(_whole, words)) + ")")]


def compiled(pattern: str) -> Any:
    """The pattern, ready to use. Raises ValueError: it cannot be used, and why."""
    if re2 is None:
        raise ValueError(MISSING)
    try:
        ready = re2.compile(pattern, _options())
    except re2.error as exc:
        reason = exc.args[0]
        said = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise ValueError(f"RE2 does not take this pattern: {said}") from exc
    if ready.search("") is not None:
        raise ValueError("This pattern matches everywhere: the empty text fits it")
    return ready


def _whole(word: str) -> str:
    """A word as it stands, not as a part of another; phrases with any space between their words."""
    inner = r"\s+".join(re2.escape(part) for part in word.split())
    before = r"\b" if _is_word(word[0]) else ""
    after = r"\b" if _is_word(word[-1]) else ""
    return before + inner + after


def _is_word(char: str) -> bool:
    # RE2 knows boundaries of ASCII words only.
    return char.isascii() and (char.isalnum() or char == "_")


def _options() -> Any:
    options = re2.Options()
    options.log_errors = False
    # Of its automaton, which forgets states that it has room for no longer; a block list of thousands fits.
    options.max_mem = MAX_AUTOMATON_BYTES
    return options
