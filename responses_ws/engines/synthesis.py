"""Values that fit a JSON schema, picked from a text where it offers some. Pure and deterministic."""

import re
import shlex
from typing import Any

MAX_DEPTH = 8  # of nesting; a schema that refers to itself ends here

_BACKQUOTED = re.compile(r"`([^`\n]+)`")
_QUOTED = re.compile(r"\"([^\"\n]+)\"|(?<!\w)'([^'\n]+)'(?!\w)")
_CAPITALISED = re.compile(r"(?<![.!?]\s)(?<!^)\b[A-ZÀ-Þ][\w-]*(?:\s+[A-ZÀ-Þ][\w-]*)*")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w])")
_PATH = re.compile(r"(?<!\w)(?:[~.]?/)?[\w.-]+(?:/[\w.-]+)*\.\w{1,5}\b|(?<!\w)[~.]?/[\w./-]+")
_URL = re.compile(r"https?://\S+")
_WORD = re.compile(r"[^\W\d_]{3,}")

_COMMAND_NAMES = frozenset({"command", "commands", "cmd"})
_WHOLE_TEXT_NAMES = frozenset(
    {"input", "query", "text", "prompt", "message", "question", "content", "task", "description", "objective"}
)
_FORMATS = {
    "date": "2026-01-01",
    "date-time": "2026-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "email": "user@example.com",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "ipv4": "192.0.2.1",
    "hostname": "example.com",
}


def command_in(text: str) -> str:
    """The command a text asks for: what it has in backquotes, else one that only prints the text."""
    found = _BACKQUOTED.search(text)
    return found[1].strip() if found else f"echo {shlex.quote(' '.join(text.split())[:200])}"


def is_command_name(name: str) -> bool:
    """Whether a parameter of that name takes a shell command."""
    return name.lower() in _COMMAND_NAMES


def arguments_for(schema: Any, text: str) -> dict[str, Any]:
    """Arguments that satisfy a tool's ``parameters``: the required ones, and a command if it takes one."""
    value = synthesise(schema, text)
    return value if isinstance(value, dict) else {}


def synthesise(schema: Any, text: str) -> Any:
    """A value for ``schema``: const, an enum's member (one that ``text`` names, else the first), default, first
    example, else made up from ``text``. Objects get their required keys only; what may be null is null."""
    return _Synthesis(schema, text).value(schema, "", 0)


class _Synthesis:
    __slots__ = ("root", "text", "numbers")

    def __init__(self, root: Any, text: str) -> None:
        self.root = root
        self.text = text
        self.numbers = _NUMBER.findall(text)

    def value(self, schema: Any, name: str, depth: int) -> Any:
        schema = self._resolved(schema)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            lowered = self.text.lower()
            named = (m for m in schema["enum"] if isinstance(m, str) and m and m.lower() in lowered)
            return next(named, schema["enum"][0])
        if "default" in schema:
            return schema["default"]
        if schema.get("examples"):
            return schema["examples"][0]
        kind = _kind_of(schema)
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._array(schema, name, depth)
        if kind in ("integer", "number"):
            return self._number(schema, whole=kind == "integer")
        if kind == "boolean":
            return False
        if kind == "null":
            return None
        return self._string(schema, name)

    def _resolved(self, schema: Any) -> dict[str, Any]:
        """The schema with references followed, alternatives chosen and ``allOf`` merged."""
        for _ in range(MAX_DEPTH):
            if not isinstance(schema, dict):
                return {}
            if "$ref" in schema:
                schema = self._target(schema["$ref"])
                continue
            if schema.get("allOf"):
                schema = _merged(schema, [self._resolved(part) for part in schema["allOf"]])
                continue
            alternatives = schema.get("anyOf") or schema.get("oneOf")
            if alternatives:
                # In strict schemas null is how an optional parameter is left out.
                nulls = [one for one in alternatives if isinstance(one, dict) and one.get("type") == "null"]
                rest = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf")}
                schema = _merged(rest, [self._resolved((nulls or alternatives)[0])])
                continue
            return schema
        return {"type": "null"}

    def _target(self, reference: Any) -> Any:
        target = self.root
        for key in str(reference).removeprefix("#").strip("/").split("/"):
            key = key.replace("~1", "/").replace("~0", "~")
            if key:
                target = target.get(key, {}) if isinstance(target, dict) else {}
        return target

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties") or {}
        if depth >= MAX_DEPTH:
            return {}
        wanted = [key for key in schema.get("required") or () if isinstance(key, str)]
        wanted += [key for key in properties if is_command_name(key) and key not in wanted]
        return {key: self.value(properties.get(key) or {}, key, depth + 1) for key in wanted}

    def _array(self, schema: dict[str, Any], name: str, depth: int) -> list[Any]:
        items = self._resolved(schema.get("items") or {})
        if is_command_name(name) and _kind_of(items) == "string":
            command = command_in(self.text)
            # "commands" is a list of lines; "command" as an array is the words of one call.
            return [command] if name.lower() == "commands" else ["bash", "-lc", command]
        if depth >= MAX_DEPTH:
            return []
        first = [self.value(part, name, depth + 1) for part in schema.get("prefixItems") or ()]
        count = max(int(schema.get("minItems") or 0), 0 if schema.get("maxItems") == 0 else 1)
        rest = [self.value(items, name.rstrip("s"), depth + 1) for _ in range(min(count, 64) - len(first))]
        return first + rest

    def _number(self, schema: dict[str, Any], *, whole: bool) -> int | float:
        number = float(self.numbers.pop(0)) if self.numbers else 1.0
        step = schema.get("multipleOf") or (1 if whole else 0)
        low, high = schema.get("minimum"), schema.get("maximum")
        if low is None and schema.get("exclusiveMinimum") is not None:
            low = schema["exclusiveMinimum"] + (step or 1)
        if high is None and schema.get("exclusiveMaximum") is not None:
            high = schema["exclusiveMaximum"] - (step or 1)
        if step:
            number = number // step * step
        if high is not None:
            number = min(number, high)
        if low is not None:
            number = max(number, low)
        return int(number) if whole or number == int(number) else number

    def _string(self, schema: dict[str, Any], name: str) -> str:
        value = self._words_for(schema, name)
        longest = schema.get("maxLength")
        if isinstance(longest, int):
            value = value[:longest]
        return value.ljust(int(schema.get("minLength") or 0), "x")

    def _words_for(self, schema: dict[str, Any], name: str) -> str:
        text = " ".join(self.text.split())
        if is_command_name(name):
            return command_in(self.text)
        lowered = name.lower()
        if lowered in ("url", "uri") or schema.get("format") == "uri":
            found = _URL.search(text)
            return found[0].rstrip(".,;?!)`'\"") if found else _FORMATS["uri"]
        if schema.get("format") in _FORMATS:
            return _FORMATS[schema["format"]]
        for pattern in (_BACKQUOTED, _QUOTED):
            found = pattern.search(text)
            if found:
                return next(group for group in found.groups() if group).strip()
        if "path" in lowered or "file" in lowered or lowered in ("dir", "directory", "folder"):
            found = _PATH.search(text)
            return found[0] if found else ("." if lowered.startswith(("dir", "folder")) else "README.md")
        if lowered in _WHOLE_TEXT_NAMES:
            return text or name
        found = _CAPITALISED.search(text)
        if found:
            return found[0]
        words = _WORD.findall(text)
        return words[-1] if words else (text or name or "text")


def _kind_of(schema: dict[str, Any]) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        return "null" if "null" in kind else str(kind[0]) if kind else "string"
    if isinstance(kind, str):
        return kind
    if "properties" in schema or "required" in schema:
        return "object"
    return "array" if "items" in schema or "prefixItems" in schema else "string"


def _merged(schema: dict[str, Any], parts: list[dict[str, Any]]) -> dict[str, Any]:
    merged = {key: value for key, value in schema.items() if key != "allOf"}
    for part in parts:
        for key, value in part.items():
            if key == "properties":
                merged[key] = {**merged.get(key, {}), **value}
            elif key == "required":
                merged[key] = [*merged.get(key, ()), *(one for one in value if one not in merged.get(key, ()))]
            else:
                merged.setdefault(key, value)
    return merged
