"""The request body shared by ``POST /v1/responses`` and ``response.create``."""

import re
from collections.abc import Container, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from .depth import check_depth
from .errors import InvalidRequest, PreviousResponseNotFound
from .ids import is_well_formed
from .json_schema import check_schema
from .moderation import ModerationConfig
from .shapes import shape

JsonObject = dict[str, Any]

_Penalty = Annotated[float, Meta(ge=-2, le=2)]
# Larger counts fit no engine's field.
_Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_ToolChoiceWord = Annotated[str, Meta(extra_json_schema={"enum": ["auto", "none", "required"]})]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]


class ContextManagement(msgspec.Struct, kw_only=True, tag_field="type", tag="compaction"):
    """Compact the context before the model goes on, if it has become too long."""

    compact_threshold: Annotated[float, Meta(ge=1)] | None = None
    """In tokens, as far as they can be estimated. Without it: four fifths of what the model can take, where known."""


class Request(msgspec.Struct, kw_only=True):
    """What a client asks for. Every field may be null; fields that we do not know are ignored.

    Source: OpenAI ``ResponseCreateParams``; liberal where real clients need it (``client_metadata``, null for
    every optional field, hosted tools that we do not run).
    """

    model: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    """Needed in every request: a chain does not inherit it."""
    input: str | list[Annotated[JsonObject, shape("InputItem")]] | None = None
    """What is new: a text, or items. May be missing where there is a context already, and in a warm-up."""
    instructions: str | None = None
    """Put before the context. Not inherited along a chain."""
    previous_response_id: str | None = None
    """Continue this response: its context and its output come before ``input``."""
    conversation: str | Annotated[JsonObject, shape("ConversationId")] | None = None
    """Continue this conversation, and add to it what is said: its id, or an object with it."""
    store: bool | None = None
    """True unless false: the response can be found again, from any socket and over HTTP."""
    include: list[str] | None = None
    """What else to send. ``reasoning.encrypted_content``, ``message.output_text.logprobs``,
    ``web_search_call.action.sources`` and ``file_search_call.results`` mean something here; other words are ignored."""
    tools: list[Annotated[JsonObject, shape("Tool")]] | None = None
    """Not inherited along a chain."""
    tool_choice: _ToolChoiceWord | Annotated[JsonObject, shape("ToolChoice")] | None = None
    parallel_tool_calls: bool | None = None
    """True unless false."""
    max_tool_calls: _Count | None = None
    """Calls of hosted tools in the whole response; further ones are not run."""
    max_output_tokens: _Count | None = None
    """Reasoning included. When it is reached, the response is ``incomplete``."""
    reasoning: Annotated[JsonObject, shape("ReasoningConfig")] | None = None
    text: Annotated[JsonObject, shape("TextConfig")] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    truncation: Literal["auto", "disabled"] | None = None
    context_management: list[Annotated[JsonObject, shape("ContextManagement")]] | None = None
    """``[{type: "compaction", compact_threshold?}]``: compact the context before it gets too long."""
    metadata: Metadata | None = None
    """Given back with the response."""
    service_tier: str | None = None
    moderation: ModerationConfig | None = None
    """Which moderation model is to look at the input and the answer, and whether it may block them."""
    safety_identifier: Annotated[str, Meta(max_length=128)] | None = None
    user: str | None = None
    prompt: Annotated[JsonObject, shape("StoredPrompt")] | None = None
    """A template of this project, and what to put into it."""
    prompt_cache_key: str | None = None
    client_metadata: Any = None
    """Whatever; only ``ws_request_header_traceparent`` and ``ws_request_header_tracestate`` in it mean something: the
    trace that this turn belongs to."""
    background: bool | None = None
    stream: bool | None = None
    """HTTP: answer with server-sent events. On a socket without meaning."""
    generate: bool | None = None
    """WebSocket only. False: a warm-up, everything but the sampling."""

    @property
    def is_stored(self) -> bool:
        """``store``, true unless the client says otherwise."""
        return self.store is not False

    @property
    def is_warmup(self) -> bool:
        return self.generate is False

    @property
    def reasoning_summary(self) -> str | None:
        """Which summary is asked for, if one is; under its old name, too."""
        reasoning = self.reasoning or {}
        summary: str | None = reasoning.get("summary") or reasoning.get("generate_summary")
        return summary

    @property
    def includes_encrypted_reasoning(self) -> bool:
        return "reasoning.encrypted_content" in (self.include or ())

    @property
    def wants_logprobs(self) -> bool:
        return "message.output_text.logprobs" in (self.include or ())

    @property
    def conversation_id(self) -> str | None:
        """``conversation`` comes as an id or as ``{id}``; `check_request` has seen to the rest."""
        given = self.conversation
        return given["id"] if isinstance(given, dict) else given


_decode_request = msgspec.json.Decoder(Request).decode


def decode_request(body: bytes) -> Request:
    """The request in an HTTP body.

    Raises:
        InvalidRequest: not JSON, or a field of the wrong type, which ``param`` names.
    """
    try:
        return _decode_request(body)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise bad_json(exc) from exc


def bad_json(exc: Exception) -> InvalidRequest:
    """What to tell a client whose JSON could not be decoded."""
    if isinstance(exc, msgspec.ValidationError):
        return invalid(exc)
    if isinstance(exc, RecursionError):
        return InvalidRequest("The JSON is nested too deeply.", code="invalid_json")
    return InvalidRequest(f"The body is not valid JSON: {exc}.", code="invalid_json")


# Two forms: "… - at `$.tools[0]`", and of a key in a map "… - at `key` in `$.metadata`".
_PLACE = re.compile(r" - at (?:`key` in )?`\$([^`]*)`\Z")
_MISSING = re.compile(r"missing required field `(\w+)`")


def invalid(exc: msgspec.ValidationError) -> InvalidRequest:
    """A decoder's complaint in the API's words: the path becomes ``param``."""
    message = str(exc)
    path = ""
    place = _PLACE.search(message)
    if place is not None:
        message = message[: place.start()]
        # The decoder does not tell keys of a map, "metadata[...]": name the field then.
        path = place[1].partition("[...]")[0]
    missing = _MISSING.search(message)
    if missing is not None:
        path = f"{path}.{missing[1]}"
        code = "missing_required_parameter"
    elif "got `" in message:
        code = "invalid_type"
    else:
        code = "invalid_value"
    param = path.removeprefix(".") or None
    where = f" for '{param}'" if param else ""
    return InvalidRequest(f"Invalid request{where}: {message}.", code=code, param=param)


_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")
_FORMAT_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


def keep_nothing(request: Request) -> None:
    """Make this a request of somebody for whom nothing is kept.

    Raises:
        InvalidRequest: it asks for what cannot be without keeping something.

    Source: OpenAI's zero data retention: ``store`` is treated as false, whatever the request says.
    """
    if request.background:
        raise nothing_is_kept("background")
    if request.conversation is not None:
        raise nothing_is_kept("conversation")
    request.store = False


def nothing_is_kept(param: str) -> InvalidRequest:
    """A refusal of what has to be kept."""
    return InvalidRequest(f"{param!r} is not available with zero data retention.", code="zero_retention", param=param)


def check_request(
    request: Request,
    *,
    max_tools: int | None,
    max_schema_bytes: int,
    is_on_socket: bool = False,
    is_counted: bool = False,
) -> None:
    """The rules that a type cannot say. Raises InvalidRequest, ``param`` naming the field.

    A request whose input is only counted needs neither a model nor an input. Without ``max_tools`` the tools are not
    looked at: whoever knows the chain knows whether they were checked with its last turn.
    """
    if not request.model and not is_counted:
        raise _missing("model")
    previous = request.previous_response_id
    if previous is not None and request.conversation is not None:
        raise InvalidRequest(
            "'previous_response_id' and 'conversation' exclude each other.", code="mutually_exclusive_parameters"
        )
    if isinstance(request.conversation, dict):
        _check_required(request.conversation, "id", "conversation", str)
    if request.background:
        if is_on_socket:
            raise _unsupported("'background' is not supported over WebSocket: use POST.", "background")
        if not request.is_stored:
            raise InvalidRequest("'background' needs 'store' to be true: it is asked for later.", param="store")
    if previous is not None and not is_well_formed(previous):
        raise PreviousResponseNotFound(previous[:128])
    has_context = previous is not None or request.conversation is not None or request.prompt is not None
    if not request.input and not has_context and not request.is_warmup and not is_counted:
        raise _missing("input")
    if max_tools is not None:
        check_tools(request.tools or (), max_tools=max_tools)
    _check_tool_choice(request.tool_choice)
    for field in ("text", "reasoning", "tool_choice", "conversation", "prompt", "context_management"):
        value = getattr(request, field)
        if isinstance(value, dict | list):
            check_depth(value, field, within=2)
    text = request.text or {}
    if text.get("format") is not None:
        check_format(text["format"], "text.format", max_schema_bytes=max_schema_bytes)
    _check_choice(text, "verbosity", "text", ("low", "medium", "high"))
    reasoning = request.reasoning or {}
    # Efforts are not listed here: open models have words of their own.
    check_optional(reasoning, "effort", "reasoning", str)
    for field in ("summary", "generate_summary"):
        _check_choice(reasoning, field, "reasoning", ("auto", "concise", "detailed"))
    _check_context_management(request.context_management or ())


def _missing(param: str) -> InvalidRequest:
    return InvalidRequest(f"Missing required parameter: '{param}'.", code="missing_required_parameter", param=param)


def _unsupported(message: str, param: str) -> InvalidRequest:
    return InvalidRequest(message, code="unsupported_parameter", param=param)


def _check_object(value: Any, where: str) -> None:
    if not isinstance(value, dict):
        raise InvalidRequest(f"Invalid type for '{where}': expected an object.", code="invalid_type", param=where)


def check_optional(container: JsonObject, field: str, where: str, expected: type) -> None:
    """Refuse a field of another type; null is as good as absent. Raises InvalidRequest."""
    value = container.get(field)
    if value is not None and not isinstance(value, expected):
        noun = {str: "a string", bool: "a boolean", dict: "an object", list: "an array"}[expected]
        raise InvalidRequest(
            f"Invalid type for '{where}.{field}': expected {noun}.", code="invalid_type", param=f"{where}.{field}"
        )


def _check_choice(container: JsonObject, field: str, where: str, choices: Sequence[str]) -> None:
    check_optional(container, field, where, str)
    value = container.get(field)
    if value is not None and value not in choices:
        listed = ", ".join(f"'{choice}'" for choice in choices)
        raise InvalidRequest(
            f"Invalid value: {value[:100]!r}. Supported values are: {listed}.", param=f"{where}.{field}"
        )


def _check_required(container: JsonObject, field: str, where: str, expected: type) -> Any:
    if container.get(field) is None:
        raise _missing(f"{where}.{field}")
    check_optional(container, field, where, expected)
    return container[field]


def _check_name(container: JsonObject, where: str, pattern: re.Pattern[str]) -> str:
    name: str = _check_required(container, "name", where, str)
    if not pattern.match(name):
        raise InvalidRequest(
            f"Invalid value: {name[:200]!r}. Expected letters, digits, '_' and '-' only, and not too many.",
            param=f"{where}.name",
        )
    return name


def check_tools(tools: Sequence[Any], *, max_tools: int, within: str = "tools") -> set[str]:
    """The names of the client's own tools. Hosted kinds, known or not, only need a type."""
    names: set[str] = set()
    count = 0
    for index, tool in enumerate(tools):
        where = f"{within}[{index}]"
        _check_object(tool, where)
        inner_tools: Sequence[Any] = ()
        if _check_required(tool, "type", where, str) == "namespace":
            _check_name(tool, where, _TOOL_NAME)
            check_optional(tool, "tools", where, list)
            inner_tools = tool.get("tools") or ()
        else:
            _check_tool(tool, where, names)
        count += 1 + len(inner_tools)
        if count > max_tools:
            raise InvalidRequest(f"Too many tools: at most {max_tools} are allowed.", param=within)
        for inner_index, inner in enumerate(inner_tools):
            place = f"{where}.tools[{inner_index}]"
            _check_object(inner, place)
            _check_required(inner, "type", place, str)
            _check_tool(inner, place, names)
    return names


def _check_tool(tool: JsonObject, where: str, names: set[str]) -> None:
    if tool["type"] not in ("function", "custom"):
        return
    names.add(_check_name(tool, where, _TOOL_NAME))
    check_optional(tool, "description", where, str)
    if tool["type"] == "function":
        check_optional(tool, "parameters", where, dict)
        check_optional(tool, "strict", where, bool)


def check_chosen_tool(choice: str | JsonObject | None, names: Container[str]) -> None:
    """Refuse the choice of a tool by a name that none has. Raises InvalidRequest.

    Apart from `check_request`, because earlier items of a chain may bring tools too.
    """
    if isinstance(choice, dict) and choice["type"] in ("function", "custom") and choice["name"] not in names:
        raise InvalidRequest(
            f"Tool choice {choice['name'][:200]!r} not found in 'tools' parameter.", param="tool_choice"
        )


def _check_tool_choice(choice: str | JsonObject | None) -> None:
    if choice is None:
        return
    if isinstance(choice, str):
        if choice not in ("auto", "none", "required"):
            raise InvalidRequest(
                f"Invalid value: {choice[:100]!r}. Supported values are: 'none', 'auto', and 'required'.",
                param="tool_choice",
            )
        return
    kind = _check_required(choice, "type", "tool_choice", str)
    if kind in ("function", "custom"):
        _check_required(choice, "name", "tool_choice", str)
    elif kind == "allowed_tools":
        _check_required(choice, "mode", "tool_choice", str)
        _check_choice(choice, "mode", "tool_choice", ("auto", "required"))
        for index, tool in enumerate(_check_required(choice, "tools", "tool_choice", list)):
            place = f"tool_choice.tools[{index}]"
            _check_object(tool, place)
            _check_required(tool, "type", place, str)


def _check_context_management(entries: Sequence[JsonObject]) -> None:
    for index, entry in enumerate(entries):
        where = f"context_management[{index}]"
        _check_required(entry, "type", where, str)
        _check_choice(entry, "type", where, ("compaction",))
        threshold = entry.get("compact_threshold")
        if threshold is not None and (type(threshold) not in (int, float) or threshold < 1):
            raise InvalidRequest(
                f"Invalid value: {str(threshold)[:100]!r}. Expected a number of tokens, 1 or more.",
                param=f"{where}.compact_threshold",
            )


def check_format(text_format: Any, where: str, *, max_schema_bytes: int | None) -> None:
    """A ``text.format``, found at ``where``; without a limit its schema is not looked at. Raises InvalidRequest."""
    _check_object(text_format, where)
    _check_required(text_format, "type", where, str)
    _check_choice(text_format, "type", where, ("text", "json_object", "json_schema"))
    if text_format["type"] == "json_schema":
        _check_name(text_format, where, _FORMAT_NAME)
        _check_required(text_format, "schema", where, dict)
        check_optional(text_format, "strict", where, bool)
        check_optional(text_format, "description", where, str)
        if max_schema_bytes is not None:
            check_schema(text_format["schema"], f"{where}.schema", max_bytes=max_schema_bytes)
