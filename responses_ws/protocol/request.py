"""The request body shared by ``POST /v1/responses`` and ``response.create``."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from .errors import InvalidRequest

JsonObject = dict[str, Any]

_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]


class Request(msgspec.Struct, kw_only=True):
    """What a client asks for. Every field may be null; fields that we do not know are ignored.

    Source: OpenAI ``ResponseCreateParams``; liberal where real clients need it (``client_metadata``, null for
    every optional field, hosted tools that we do not run).
    """

    model: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    input: str | list[JsonObject] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | JsonObject | None = None
    store: bool | None = None
    include: list[str] | None = None
    tools: list[JsonObject] | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    reasoning: JsonObject | None = None
    text: JsonObject | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: _Metadata | None = None
    service_tier: str | None = None
    safety_identifier: Annotated[str, Meta(max_length=128)] | None = None
    user: str | None = None
    prompt: JsonObject | None = None
    prompt_cache_key: str | None = None
    background: bool | None = None
    stream: bool | None = None
    generate: bool | None = None
    """WebSocket only. False: a warm-up, everything but the sampling."""

    @property
    def is_stored(self) -> bool:
        """``store``, true unless the client says otherwise."""
        return self.store is not False

    @property
    def is_warmup(self) -> bool:
        return self.generate is False


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


def invalid(exc: msgspec.ValidationError) -> InvalidRequest:
    """A decoder's complaint in the API's words: the path becomes ``param``."""
    message, _, path = str(exc).partition(" - at `$")
    param = path.rstrip("`").removeprefix(".") or None
    if "got `" in message:
        code = "invalid_type"
    elif "missing required field" in message:
        code = "missing_required_parameter"
    else:
        code = "invalid_value"
    where = f" for '{param}'" if param else ""
    return InvalidRequest(f"Invalid request{where}: {message}.", code=code, param=param)


_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")


def check_request(request: Request, *, max_tools: int) -> None:
    """The rules that a type cannot say. Raises InvalidRequest, ``param`` naming the field."""
    if not request.model:
        raise InvalidRequest("Missing required parameter: 'model'.", code="missing_required_parameter", param="model")
    if request.previous_response_id is not None and request.conversation is not None:
        raise InvalidRequest(
            "'previous_response_id' and 'conversation' exclude each other.", code="mutually_exclusive_parameters"
        )
    for field in ("conversation", "prompt"):
        if getattr(request, field) is not None:
            raise _unsupported(f"'{field}' is not supported yet.", field)
    if request.background:
        raise _unsupported("'background' is not supported yet.", "background")
    if not request.input and request.previous_response_id is None and not request.is_warmup:
        raise InvalidRequest("Missing required parameter: 'input'.", code="missing_required_parameter", param="input")
    _check_tools(request.tools or (), max_tools)
    _check_tool_choice(request.tool_choice)
    text_format = (request.text or {}).get("format")
    if text_format is not None:
        _check_format(text_format)


def _unsupported(message: str, param: str) -> InvalidRequest:
    return InvalidRequest(message, code="unsupported_parameter", param=param)


def _check_tools(tools: Sequence[JsonObject], max_tools: int, where: str = "tools") -> None:
    if len(tools) > max_tools:
        raise InvalidRequest(f"Too many tools: {len(tools)}, at most {max_tools} are allowed.", param=where)
    for index, tool in enumerate(tools):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if not isinstance(kind, str):
            raise InvalidRequest("Every tool needs a type.", param=f"{where}[{index}].type")
        if kind in ("function", "custom", "namespace"):
            name = tool.get("name")
            if not isinstance(name, str) or not _NAME.match(name):
                raise InvalidRequest(
                    f"Invalid tool name {name!r}: letters, digits, '_' and '-', at most 128.",
                    param=f"{where}[{index}].name",
                )
        if kind == "function" and not isinstance(tool.get("parameters") or {}, dict):
            raise InvalidRequest("'parameters' must be a JSON schema.", param=f"{where}[{index}].parameters")
        if kind == "namespace":
            inner = tool.get("tools") or []
            if not isinstance(inner, list):
                raise InvalidRequest("'tools' must be an array.", param=f"{where}[{index}].tools")
            _check_tools(inner, max_tools, f"{where}[{index}].tools")


def _check_tool_choice(choice: str | JsonObject | None) -> None:
    if isinstance(choice, str) and choice not in ("auto", "none", "required"):
        raise InvalidRequest(f"Invalid value: {choice!r}.", param="tool_choice")
    if isinstance(choice, dict):
        kind = choice.get("type")
        if not isinstance(kind, str):
            raise InvalidRequest("'tool_choice' needs a type.", param="tool_choice.type")
        if kind in ("function", "custom") and not isinstance(choice.get("name"), str):
            raise InvalidRequest("'tool_choice' needs a name.", param="tool_choice.name")


def _check_format(text_format: Any) -> None:
    kind = text_format.get("type") if isinstance(text_format, dict) else None
    if kind not in ("text", "json_object", "json_schema"):
        raise InvalidRequest(f"Invalid value: {kind!r}.", param="text.format.type")
    if kind == "json_schema":
        name = text_format.get("name")
        if not isinstance(name, str) or not re.match(r"[A-Za-z0-9_-]{1,64}\Z", name):
            raise InvalidRequest(f"Invalid value: {name!r}.", param="text.format.name")
        if not isinstance(text_format.get("schema"), dict):
            raise InvalidRequest("'schema' must be a JSON schema.", param="text.format.schema")
