"""Tools: from the client's words to the engine's, and calls back again."""

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from responses_ws.protocol.sampling import CallArguments, CallEnd, CallStart, Delta, Finished

from .hosted import HostedFunction

_encode = msgspec.json.Encoder().encode

_CUSTOM_PARAMETERS = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


_MOST_NAME = 64  # Source: what chat-completions servers allow, with the characters below.
_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{_MOST_NAME}}}\Z")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


def flat_name(namespace: str | None, name: str) -> str:
    """The one name an engine sees for a tool that may live in a namespace: always the same for the same tool.

    One that servers would not take is shortened, and told apart by a digest.
    """
    name = f"{namespace}__{name}" if namespace else name
    if _NAME.match(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:10]
    return f"{_NOT_IN_NAMES.sub('_', name)[: _MOST_NAME - 11]}_{digest}"


_NARROWING = frozenset({"function", "custom", "allowed_tools"})


class Offer(msgspec.Struct, frozen=True):
    """What one request's engine call is told of tools, and what it may then call."""

    encoded: bytes | None
    """JSON array of tools, or None: in the form of chat completions, or of the Responses API."""
    choice: str | dict[str, Any] | None
    """``tool_choice``, in the same form."""
    callable_names: frozenset[str] | None
    """Names, as offered, of which a call may come out; None where the client has not narrowed them. A name that the
    model has made up then comes out too: an agent tells its model so, where a failed response would be tried again."""
    hosted: bytes | None = None
    """JSON array of the hosted tools that the engine runs itself, as the client sent them, or None."""


class ToolSet:
    """The tools of a request: what the engine is offered, and what each name stood for.

    ``function``, ``custom`` and the tools inside a ``namespace`` are offered, and the functions of hosted tools that
    we run; hosted kinds that we do not are left out (refusing them would lock out clients that always send them). Of
    two tools that an engine would see under one name, the first is offered.
    """

    __slots__ = ("source", "encoded", "schemas", "hosted", "_known", "_given", "_as_items")

    @property
    def names(self) -> set[str]:
        """Names of the client's own tools as it knows them, without namespaces."""
        return {name for flat, (name, _namespace, _custom) in self._known.items() if flat not in self.hosted}

    def __init__(self, tools: Sequence[dict[str, Any]], hosted: Sequence[HostedFunction] = ()) -> None:
        self.source = tools
        """As the client sent them; compared to reuse this set on the next turn."""
        self.hosted: dict[str, HostedFunction] = {}
        """What is run here, by offered name."""
        self.schemas: dict[str, dict[str, Any]] = {}
        """Parameters of ``strict`` functions, by offered name."""
        self._known: dict[str, tuple[str, str | None, bool]] = {}
        self._given: dict[str, dict[str, Any]] = {}
        """The offered tools as the client sent them, by offered name."""
        self._as_items: dict[bool, bytes] = {}
        offered: list[dict[str, Any]] = []
        for tool in tools:
            if tool.get("type") == "namespace":
                for inner in tool.get("tools") or ():
                    self._offer(offered, inner, tool.get("name"))
            else:
                self._offer(offered, tool, None)
                for function in hosted:
                    if function.tool is tool:
                        self._offer_hosted(offered, function)
        self.encoded: bytes | None = _encode(offered) if offered else None
        """JSON array of chat-completions tools, or None when there is nothing to offer."""

    def _offer(self, offered: list[dict[str, Any]], tool: dict[str, Any], namespace: str | None) -> None:
        kind = tool.get("type")
        if kind not in ("function", "custom"):
            return
        name = flat_name(namespace, tool["name"])
        if name in self._known:
            return
        self._known[name] = (tool["name"], namespace, kind == "custom")
        self._given[name] = tool
        function: dict[str, Any] = {"name": name}
        if tool.get("description"):
            function["description"] = tool["description"]
        if kind == "custom":
            function["parameters"] = _CUSTOM_PARAMETERS
        else:
            function["parameters"] = tool.get("parameters") or {"type": "object", "properties": {}}
            if tool.get("strict"):
                function["strict"] = True
                self.schemas[name] = function["parameters"]
        offered.append({"type": "function", "function": function})

    def _offer_hosted(self, offered: list[dict[str, Any]], function: HostedFunction) -> None:
        name = flat_name(function.namespace, function.name)
        if name not in self._known:
            self.hosted[name] = function
            given = {"type": "function", "name": function.name, "parameters": function.parameters}
            self._offer(offered, {**given, "description": function.description}, function.namespace)

    def offer(
        self,
        choice: str | dict[str, Any] | None,
        *,
        takes_tools: bool,
        obeys_choice: bool,
        as_items: bool = False,
        takes_custom: bool = False,
        passed: frozenset[str] = frozenset(),
    ) -> Offer:
        """The offer under this ``tool_choice``, to an engine that takes tools at all, and obeys the choice or not.

        An engine that obeys is offered all tools, which keeps its prompt the same from turn to turn; one that does
        not is offered only those that may be called. ``allowed_tools`` are a smaller offer to both. ``as_items``: in
        the form of the Responses API, custom tools as such if it ``takes_custom`` ones, and hosted tools of the types
        that are ``passed``.
        """
        offer = self._offer_of_functions(
            choice, takes_tools=takes_tools, obeys_choice=obeys_choice, as_items=as_items, takes_custom=takes_custom
        )
        hosted = self._passed(choice, passed)
        if hosted is None:
            return offer
        is_theirs = isinstance(choice, dict) and choice["type"] in passed
        if is_theirs or (offer.encoded is None and not isinstance(choice, dict)):
            offer = msgspec.structs.replace(offer, choice=choice)
        return msgspec.structs.replace(offer, hosted=hosted)

    def _offer_of_functions(
        self,
        choice: str | dict[str, Any] | None,
        *,
        takes_tools: bool,
        obeys_choice: bool,
        as_items: bool,
        takes_custom: bool,
    ) -> Offer:
        if self.encoded is None or not takes_tools:
            return Offer(None, None, frozenset())
        choice = self._spelt_out(choice)
        names = self._callable_under(choice)
        is_list = isinstance(choice, dict) and choice["type"] == "allowed_tools"
        if not names and (is_list or not obeys_choice):
            return Offer(None, None, frozenset())
        encoded = self._encoded_as_items(takes_custom=takes_custom) if as_items else self.encoded
        if len(names) < len(self._known) and (is_list or not obeys_choice):
            offered = [tool for tool in msgspec.json.decode(encoded) if tool.get("function", tool)["name"] in names]
            encoded = _encode(offered)
        is_narrowed = choice == "none" or (isinstance(choice, dict) and choice["type"] in _NARROWING)
        may_call = names if is_narrowed else None
        if not obeys_choice:
            return Offer(encoded, None, may_call)
        told = _chat_choice(choice, names)
        if as_items and isinstance(told, dict):
            name = told["function"]["name"]
            is_custom = takes_custom and self.resolve(name)[2]
            told = {"type": "custom" if is_custom else "function", "name": name}
        return Offer(encoded, told, may_call)

    def _passed(self, choice: str | dict[str, Any] | None, types: frozenset[str]) -> bytes | None:
        """JSON array of the tools of these types; None where there are none, or none may be called."""
        if not types or choice == "none":
            return None
        if isinstance(choice, dict) and choice["type"] == "allowed_tools":
            types &= {tool["type"] for tool in choice["tools"]}
        tools = [tool for tool in self.source if tool.get("type") in types]
        return _encode(tools) if tools else None

    def _encoded_as_items(self, *, takes_custom: bool) -> bytes:
        """JSON array of Responses tools, made once."""
        encoded = self._as_items.get(takes_custom)
        if encoded is None:
            tools = [self._as_item(name, takes_custom=takes_custom) for name in self._known]
            encoded = self._as_items[takes_custom] = _encode(tools)
        return encoded

    def _as_item(self, name: str, *, takes_custom: bool) -> dict[str, Any]:
        given = self._given[name]
        told = {"type": "function", "name": name}
        if given.get("description"):
            told["description"] = given["description"]
        if given["type"] == "function":
            parameters = given.get("parameters") or {"type": "object", "properties": {}}
            return {**told, "parameters": parameters, "strict": bool(given.get("strict"))}
        if not takes_custom:
            return {**told, "parameters": _CUSTOM_PARAMETERS, "strict": False}
        given_format = {"format": given["format"]} if given.get("format") else {}
        return {**told, "type": "custom", **given_format}

    def _callable_under(self, choice: str | dict[str, Any] | None) -> frozenset[str]:
        """Source: the Open Responses specification: a call outside of ``allowed_tools`` must not come out."""
        if choice == "none":
            return frozenset()
        if isinstance(choice, dict) and choice["type"] in ("function", "custom"):
            return frozenset({self._named(choice)})
        if isinstance(choice, dict) and choice["type"] == "allowed_tools":
            return frozenset(name for tool in choice["tools"] for name in self._meant(tool)) & self._known.keys()
        # Hosted kinds, which we do not run, are as good as "auto".
        return frozenset(self._known)

    def _spelt_out(self, choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
        """The choice of a hosted tool that we run as one of its functions, or as a list of them."""
        if not isinstance(choice, dict) or choice["type"] in _NARROWING:
            return choice
        names = self._meant(choice)
        if len(names) == 1:
            return {"type": "function", "name": names[0]}
        return {"type": "allowed_tools", "mode": "required", "tools": [choice]} if names else choice

    def _meant(self, tool: dict[str, Any]) -> list[str]:
        """Offered names of what an entry of ``allowed_tools``, or a choice, means."""
        if tool["type"] in ("function", "custom"):
            return [self._named(tool)] if isinstance(tool.get("name"), str) else []
        return [
            flat
            for flat, function in self.hosted.items()
            if _kind(tool["type"]) == _kind(function.tool["type"])
            and tool.get("server_label") in (None, function.tool.get("server_label"))
            and tool.get("name") in (None, function.name)
        ]

    def _named(self, tool: dict[str, Any]) -> str:
        """The offered name of a tool that a choice names; the namespace may be left out."""
        name = flat_name(tool.get("namespace"), tool["name"])
        if name in self._known:
            return name
        return next((flat for flat, known in self._known.items() if known[0] == tool["name"]), name)

    def resolve(self, name: str) -> tuple[str, str | None, bool]:
        """(name, namespace, is custom) behind an offered name; an unknown name stands for itself."""
        return self._known.get(name, (name, None, False))


def _kind(tool_type: str) -> str:
    """The type of a tool without its edition: ``web_search_preview_2025_03_11`` is a ``web_search``."""
    return _EDITION.sub("", tool_type)


_EDITION = re.compile(r"(_preview)?(_\d{4}_\d{2}_\d{2})?\Z")


def after_obeyed(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    """The choice that is left in a response once a call has been made: what was forced is forced once."""
    if isinstance(choice, dict) and choice["type"] == "allowed_tools":
        return {**choice, "mode": "auto"}
    return choice if choice in (None, "auto", "none") else "auto"


def _chat_choice(choice: str | dict[str, Any] | None, names: frozenset[str]) -> str | dict[str, Any] | None:
    if not isinstance(choice, dict):
        return choice
    if choice["type"] in ("function", "custom"):
        (name,) = names
        return {"type": "function", "function": {"name": name}}
    return "required" if choice["type"] == "allowed_tools" and choice.get("mode") == "required" else "auto"


class CallTranslator:
    """Turns calls as the engine says them into calls as the client offered them.

    A custom tool was offered as a function with one string parameter ``input``: of its arguments the bare string
    is handed on, as it arrives. Arguments that are not of that form pass unchanged, when the call is whole or cut
    off, so that nothing the model said is lost.
    """

    __slots__ = ("_tools", "_custom")

    def __init__(self, tools: ToolSet) -> None:
        self._tools = tools
        self._custom: dict[int, _BareInput] = {}

    def feed(self, delta: Delta) -> list[Delta]:
        """The deltas to hand on for one delta of the engine."""
        if isinstance(delta, CallStart):
            hosted = self._tools.hosted.get(delta.name)
            if hosted is not None:
                return [CallStart(delta.index, delta.name, item=hosted.item)]
            name, namespace, custom = self._tools.resolve(delta.name)
            if custom:
                self._custom[delta.index] = _BareInput()
            return [CallStart(delta.index, name, delta.call_id, namespace, custom)]
        if self._custom:
            if isinstance(delta, CallArguments) and delta.index in self._custom:
                text = self._custom[delta.index].feed(delta.text)
                return [CallArguments(delta.index, text, delta.tokens)]
            if isinstance(delta, CallEnd) and delta.index in self._custom:
                return [self._rest(delta.index), delta]
            if isinstance(delta, Finished):
                # Cut off: these calls have had no end of their own.
                return [*map(self._rest, sorted(self._custom)), delta]
        return [delta]

    def _rest(self, index: int) -> Delta:
        return CallArguments(index, self._custom.pop(index).rest(), 0)


_OPENING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_OPENING_AT_MOST = 64  # characters: a model that pads more than that is not worth streaming
# Characters and whole escapes; surrogates only in pairs.
_WHOLE = re.compile(
    r'(?:[^"\\]+|\\["\\/bfnrt]|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}'
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*"
)
_LONGEST_ESCAPE = 12  # a surrogate pair


class _BareInput:
    """The string in ``{"input": "…"}``, read while it is written."""

    __slots__ = ("_pieces", "_unread", "_read", "_is_inside", "_is_over", "_given")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._unread = ""
        self._read = 0
        """Characters before ``_unread``."""
        self._is_inside = False
        self._is_over = False
        """Nothing more can be read before the call is whole."""
        self._given: list[str] = []

    def feed(self, text: str) -> str:
        """What of the string has become readable."""
        self._pieces.append(text)
        if self._is_over:
            return ""
        self._unread += text
        if not self._is_inside:
            opening = _OPENING.match(self._unread)
            if opening is None:
                self._is_over = len(self._unread) > _OPENING_AT_MOST
                return ""
            self._is_inside = True
            self._skip(opening.end())
        whole = _WHOLE.match(self._unread)
        assert whole is not None, "the pattern matches the empty string too"
        self._skip(whole.end())
        # What is left is the closing quote, or an escape: the beginning of one, or one that JSON does not have.
        self._is_over = self._unread.startswith('"') or len(self._unread) >= _LONGEST_ESCAPE
        said = _unescaped(whole[0])
        self._given.append(said)
        return said

    def rest(self) -> str:
        """What has not been given yet, now that no more comes."""
        arguments = "".join(self._pieces)
        given = "".join(self._given)
        try:
            decoded = json.loads(arguments, strict=False)
        except (ValueError, RecursionError):
            decoded = None
        if isinstance(decoded, dict) and isinstance(decoded.get("input"), str):
            text = decoded["input"].encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            return text.removeprefix(given) if text.startswith(given) else ""
        left = arguments[self._read :]
        return "" if self._is_inside and left.startswith('"') else left

    def _skip(self, characters: int) -> None:
        self._read += characters
        self._unread = self._unread[characters:]


def _unescaped(text: str) -> str:
    """``text`` is the inside of a JSON string. Models write line breaks in it as they are: tolerated."""
    return str(json.loads(f'"{text}"', strict=False)) if "\\" in text else text
