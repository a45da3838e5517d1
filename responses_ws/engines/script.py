"""What the scripted engine answers: a plan from the request's newest messages. Pure and deterministic."""

import hashlib
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, get_args

import msgspec

from responses_ws.protocol.sampling import (
    CallArguments,
    CallEnd,
    CallStart,
    Delta,
    FinishReason,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)

from .base import ChatRequest, ErrorKind
from .synthesis import arguments_for, is_command_name, synthesise

QUOTED_CHARACTERS = 200  # of an output or a question, in an answer

_PIECE = re.compile(r"\s*\S{1,10}|\s+")
_DIRECTIVE = re.compile(
    r"(?<!\S)!(?:(?P<number>tokens|rate|ttft|reason|break|stall|calls|rounds)\s+(?P<value>\d+(?:\.\d+)?)"
    r"|(?P<flag>refuse|cut|filter)\b|fail\s+(?P<kind>\w+)|call\s+(?P<tool>[\w.-]+)\s*(?=\{))"
)
# Agent programs wrap what the user typed, and add notes of their own as user messages.
_NOTES = re.compile(r"<(environment[\w-]*|system-reminder|user_instructions|INSTRUCTIONS)\b[^>]*>.*?</\1>", re.DOTALL)
_WRAPPERS = re.compile(r"</?(?:task|user_input|user_message|user_query|feedback)\b[^>]*>")
_WORDS = re.compile(r"[a-z]{3,}|[A-Z][a-z]+")
_WANTS_SHELL = re.compile(r"\b(?:shell|run|runs|running|execute|command|terminal|bash)\b", re.IGNORECASE)
_SHELL_WORDS = frozenset({"shell", "exec", "command", "commands", "bash", "terminal"})
_NOISE = frozenset(
    {"the", "and", "for", "with", "from", "that", "this", "you", "your", "are", "can", "not", "any", "all", "what"}
    | {"whats", "how", "who", "use", "using", "used", "into", "please", "when", "will", "its", "has", "have", "was"}
    | {"one", "out", "get", "tool"}
)

REFUSAL = "I cannot help with that."


class Call(msgspec.Struct, frozen=True):
    """A tool call to make; ``arguments`` are JSON text."""

    name: str
    arguments: str


class Plan(msgspec.Struct, kw_only=True):
    """One answer before it is told: pieces of one token each, and when to tell them."""

    reasoning_tokens: int = 0
    text: list[str] | None = None
    """Pieces of visible text; None: ``filler_tokens`` words of filler."""
    filler_tokens: int = 0
    refused: bool = False
    calls: list[Call] = msgspec.field(default_factory=list)
    finish: FinishReason = "stop"
    fail: ErrorKind | None = None
    """Refuse the call with this."""
    break_after: int | None = None
    """Break after so many tokens."""
    tokens_per_second: float = 0.0
    """0: as fast as it goes."""
    ttft_seconds: float = 0.0
    stall_seconds: float = 0.0
    """A pause after the first token."""

    def deltas(self, call_key: str) -> Iterator[Delta]:
        """Everything but Started and Finished. ``call_key`` makes the call ids unique."""
        yield from itertools.islice(_REASONING, self.reasoning_tokens)
        if self.text is None:
            yield from itertools.islice(_TEXT, self.filler_tokens)
        else:
            kind = RefusalDelta if self.refused else TextDelta
            for piece in self.text:
                yield kind(piece)
        for index, call in enumerate(self.calls):
            digest = hashlib.sha256(f"{call_key}:{index}".encode()).hexdigest()
            yield CallStart(index, call.name, f"call_{digest[:24]}")
            for piece in pieces_of(call.arguments):
                yield CallArguments(index, piece)
            yield CallEnd(index)


def pieces_of(text: str) -> list[str]:
    """Scripted tokens: words, the space before each included, long ones in pieces. Joined they are ``text``."""
    return _PIECE.findall(text)


FILLER = (
    "This text is made by a script and means nothing. It has as many words as were asked for, "
    "so that counts can be compared to the last token."
)


class _Filler:
    """The same filler from the beginning on each iteration; its deltas are made once."""

    def __init__(self, kind: type[TextDelta] | type[ReasoningDelta]) -> None:
        first, *others = pieces_of(FILLER)
        self._first = kind(first)
        self._others = [kind(word) for word in (*others, f" {first}")]

    def __iter__(self) -> Iterator[Delta]:
        yield self._first
        yield from itertools.cycle(self._others)


_TEXT = _Filler(TextDelta)
_REASONING = _Filler(ReasoningDelta)


def plan_for(request: ChatRequest, defaults: Plan) -> Plan:
    """The answer to ``request``: its last user text decides, then tool outputs that came after it.

    Reads messages back to the last user message only. ``defaults`` supply pace and length.
    """
    asked, newest, rounds = _question(request)
    text, directives = _directives(asked)
    plan = Plan(
        reasoning_tokens=int(directives.get("reason", 0)),
        fail=_error_kind(directives["fail"]) if "fail" in directives else None,
        break_after=int(directives["break"]) if "break" in directives else None,
        tokens_per_second=directives.get("rate", defaults.tokens_per_second),
        ttft_seconds=directives["ttft"] / 1000 if "ttft" in directives else defaults.ttft_seconds,
        stall_seconds=directives.get("stall", 0.0),
    )
    filler = int(directives.get("tokens", defaults.filler_tokens))
    if "refuse" in directives:
        plan.text, plan.refused = pieces_of(REFUSAL), True
        return plan
    tools = _tools(request.tools)
    explicit = [Call(name, arguments) for name, arguments in directives["call"]] if not rounds else []
    if explicit:
        plan.calls = explicit
    elif tools and _must_call(request, rounds, _rounds_wanted(directives, text)):
        tool = _chosen(tools, text, request.tool_choice)
        count = int(directives.get("calls", 1)) if request.parallel_tool_calls is not False else 1
        call = Call(tool["name"], _compact(arguments_for(tool.get("parameters") or {}, text)))
        plan.calls = [call] * max(count, 1)
    if plan.calls:
        plan.text, plan.finish = [], "tool_calls"
        if "tokens" in directives:
            plan.text, plan.filler_tokens = None, filler
    elif filler:
        plan.filler_tokens = filler
    else:
        plan.text = pieces_of(_answer(request, text, newest))
    for flag, finish in (("cut", "length"), ("filter", "content_filter")):
        if flag in directives:
            plan.filler_tokens //= 2
            plan.text = plan.text and plan.text[: len(plan.text) // 2]
            plan.calls, plan.finish = [], finish  # type: ignore[assignment]
    return plan


def chosen_tool(request: ChatRequest) -> dict[str, Any] | None:
    """The ``function`` of the tool that is forced or fits the last user message best; None: none is offered."""
    tools = _tools(request.tools)
    if not tools:
        return None
    return _chosen(tools, _question(request)[0], request.tool_choice)


def _question(request: ChatRequest) -> tuple[str, list[str], int]:
    """(last user text, outputs of the newest round after it, how many rounds of outputs came after it)."""
    newest: list[str] = []
    rounds = 0
    previous = ""
    for message in request.prompt.newest_first():
        role = message.get("role")
        if role == "user":
            text = _WRAPPERS.sub("", _NOTES.sub("", _text_of(message.get("content")))).strip()
            if text:
                return text, newest[::-1], rounds
        elif role == "tool":
            rounds += previous != "tool"
            if rounds == 1:
                newest.append(_text_of(message.get("content")))
        previous = role or ""
    return "", newest[::-1], rounds


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text") or "" for part in content or () if isinstance(part, dict))


def _directives(text: str) -> tuple[str, dict[str, Any]]:
    """The text without its directives, and these: numbers, flags as True, ``call`` as (name, JSON) pairs."""
    found: dict[str, Any] = {"call": []}
    rest: list[str] = []
    position = 0
    for match in _DIRECTIVE.finditer(text):
        if match.start() < position:
            continue
        end = match.end()
        if match["tool"]:
            try:
                _, end = json.JSONDecoder().raw_decode(text, match.end())
            except ValueError:
                continue
            found["call"].append((match["tool"], text[match.end() : end]))
        elif match["number"]:
            found[match["number"]] = float(match["value"])
        elif match["kind"]:
            found["fail"] = match["kind"]
        else:
            found[match["flag"]] = True
        rest.append(text[position : match.start()])
        position = end
    rest.append(text[position:])
    return " ".join("".join(rest).split()) if position else text, found


def _error_kind(word: str) -> ErrorKind:
    word = word.removeprefix("engine_")
    return word if word in get_args(ErrorKind) else "engine"  # type: ignore[return-value]


def _tools(encoded: bytes | None) -> list[dict[str, Any]]:
    tools = msgspec.json.decode(encoded) if encoded else []
    return [tool["function"] for tool in tools if isinstance(tool.get("function"), dict)]


def _must_call(request: ChatRequest, rounds: int, wanted_rounds: int) -> bool:
    if request.tool_choice == "none":
        return False
    if request.tool_choice == "required" or isinstance(request.tool_choice, dict):
        return True
    return rounds < wanted_rounds


def _rounds_wanted(directives: dict[str, Any], text: str) -> int:
    if "rounds" in directives:
        return int(directives["rounds"])
    if "calls" in directives:
        return 1
    # Who asks for a text of some shape wants that text.
    return 0 if not text or directives.keys() & {"tokens", "cut", "filter"} else 1


def _chosen(tools: list[dict[str, Any]], text: str, tool_choice: Any) -> dict[str, Any]:
    """The forced tool, else the one whose words the text shares most; ties go to a shell if the text wants one."""
    if isinstance(tool_choice, dict):
        name = (tool_choice.get("function") or {}).get("name")
        return next((tool for tool in tools if tool["name"] == name), tools[0])
    shell = next((tool for tool in tools if _is_shell(tool)), None)
    wants_shell = _WANTS_SHELL.search(text) is not None
    if shell is not None and wants_shell and "`" in text:
        return shell
    asked = _words(text)
    scores = [_score(tool, asked) for tool in tools]
    best = max(scores)
    ties = [tool for tool, score in zip(tools, scores, strict=True) if score == best]
    if wants_shell:
        return next((tool for tool in ties if _is_shell(tool)), ties[0])
    return ties[0]


def _score(tool: dict[str, Any], asked: set[str]) -> int:
    name = _words(tool["name"])
    # The first words of a description say what a tool is for; long manuals would win on length alone.
    description = _words((tool.get("description") or "")[:200]) - name
    return 3 * len(asked & name) + len(asked & description)


def _is_shell(tool: dict[str, Any]) -> bool:
    properties = (tool.get("parameters") or {}).get("properties") or {}
    return bool(_words(tool["name"]) & _SHELL_WORDS) or any(map(is_command_name, properties))


def _words(text: str) -> set[str]:
    return {word.lower() for word in _WORDS.findall(text)} - _NOISE


def _answer(request: ChatRequest, text: str, outputs: list[str]) -> str:
    wanted = request.response_format or {}
    if wanted.get("type") == "json_schema":
        return _compact(synthesise((wanted.get("json_schema") or {}).get("schema") or {}, text))
    if outputs:
        share = max(QUOTED_CHARACTERS // len(outputs), 20)
        quotes = "; ".join(f'"{_shortened(output, share)}"' for output in outputs)
        answer = f"The {'tool' if len(outputs) == 1 else 'tools'} returned {quotes}."
    elif text:
        answer = f'You said: "{_shortened(text, QUOTED_CHARACTERS)}"'
    else:
        answer = "There is no text to answer."
    return _compact({"answer": answer}) if wanted.get("type") == "json_object" else answer


def _shortened(text: str, characters: int) -> str:
    text = text.strip()
    return text if len(text) <= characters else text[: characters - 1] + "…"


def _compact(value: Any) -> str:
    return msgspec.json.encode(value).decode()
