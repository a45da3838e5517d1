"""Items: the units of context. JSON objects that must survive a round trip whole, whatever their type."""

from collections.abc import Mapping, Sequence
from typing import Any

from .depth import check_depth
from .errors import InvalidRequest
from .ids import NewId
from .images import check_image
from .request import check_format, check_optional, check_tools

Item = dict[str, Any]

ROLES = frozenset({"user", "assistant", "system", "developer"})

HOSTED_CALLS = frozenset({"mcp_call", "web_search_call", "file_search_call"})
"""Items of calls that were run here, their results in them."""
MODEL_OUTPUT = "model_output"
"""Key of what the model was told of a hosted call, where the item as clients know it does not say: only in our own
copy of it, and never on the wire."""

_RUN_CALLS = HOSTED_CALLS | {"code_interpreter_call", "image_generation_call"}
"""The same, and what upstreams run themselves."""
_CALLS = frozenset({"function_call", "custom_tool_call"})
_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})
_REQUIRED: dict[str, tuple[tuple[str, type | tuple[type, ...]], ...]] = {
    "function_call": (("call_id", str), ("name", str), ("arguments", str)),
    "function_call_output": (("call_id", str), ("output", (str, list))),
    "custom_tool_call": (("call_id", str), ("name", str), ("input", str)),
    "custom_tool_call_output": (("call_id", str), ("output", (str, list))),
    "compaction": (("encrypted_content", str),),
    "additional_tools": (("tools", list),),
    "item_reference": (("id", str),),
    "mcp_list_tools": (("server_label", str), ("tools", list)),
    "mcp_call": (("server_label", str), ("name", str), ("arguments", str)),
    "mcp_approval_request": (("id", str), ("server_label", str), ("name", str), ("arguments", str)),
    "mcp_approval_response": (("approval_request_id", str), ("approve", bool)),
}
# Of these types we read the parts; the parts of others are none of our business.
_WITH_PARTS = {
    "message": "content",
    "reasoning": "content",
    "function_call_output": "output",
    "custom_tool_call_output": "output",
}
_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
    "compaction": "cmp",
    "web_search_call": "ws",
    "file_search_call": "fs",
    "code_interpreter_call": "ci",
    "image_generation_call": "ig",
    "mcp_call": "mcp",
    "mcp_list_tools": "mcpl",
    "mcp_approval_request": "mcpr",
    "mcp_approval_response": "mcpa",
}


def is_run_call(item: Item) -> bool:
    """Whether it is a call that an engine has run by itself, and something has come of it."""
    return item["type"] in _RUN_CALLS and item.get("status") != "failed" and not item.get("error")


def prefix_of(kind: str) -> str:
    """What ids of such items begin with."""
    return _PREFIXES.get(kind, "item")


def input_items(
    given: str | Sequence[Item] | None, new_id: NewId, *, max_items: int, within: str = "input"
) -> list[Item]:
    """The items of a request's ``input``, checked, each with an id. Nothing else about them is changed.

    A string is one user message. Unknown types pass: they are stored and replayed as they are. References are left
    for others to resolve.

    Raises:
        InvalidRequest: with ``param`` such as ``input[3].role``.
    """
    if given is None or given == "":
        return []
    if isinstance(given, str):
        content = [{"type": "input_text", "text": given}]
        return [{"type": "message", "role": "user", "content": content, "id": new_id("msg")}]
    if len(given) > max_items:
        raise InvalidRequest(f"Too many input items: {len(given)}, at most {max_items} are allowed.", param=within)
    items = [_checked(item, f"{within}[{index}]", new_id) for index, item in enumerate(given)]
    for index, item in enumerate(items[:-1]):
        if item.get("type") == "compaction_trigger":
            raise InvalidRequest("A compaction trigger has to be the last input item.", param=f"{within}[{index}]")
    return items


def _checked(item: Item, where: str, new_id: NewId) -> Item:
    kind = item.get("type")
    if kind is None:
        # Of a reference the type is optional, as it is of a message.
        kind = "item_reference" if isinstance(item.get("id"), str) and item.keys() <= {"id", "type"} else "message"
    if not isinstance(kind, str):
        raise _wrong_type(f"{where}.type")
    if not kind:
        raise InvalidRequest("An item's type is not empty.", param=f"{where}.type")
    check_depth(item, where, within=3)
    for field, expected in _REQUIRED.get(kind, ()):
        value = item.get(field)
        if value is None:
            raise _missing(f"{where}.{field}")
        if not isinstance(value, expected):
            raise _wrong_type(f"{where}.{field}")
    if kind == "message":
        _check_message(item, where)
    elif kind == "reasoning":
        if not isinstance(item.get("content"), list | None):
            raise _wrong_type(f"{where}.content")
        if not isinstance(item.get("summary"), list | None):
            raise _wrong_type(f"{where}.summary")
        for index, part in enumerate(item.get("summary") or ()):
            check_part(part, f"{where}.summary[{index}]")
        if not isinstance(item.get("encrypted_content"), str | None):
            raise _wrong_type(f"{where}.encrypted_content")
    elif kind == "item_reference":
        item = {"type": kind, "id": item["id"]}
    elif kind == "configuration_update":
        _check_update(item, where)
    elif kind == "additional_tools":
        check_tools(item["tools"], max_tools=_NO_LIMIT, within=f"{where}.tools")
        for index, tool in enumerate(item["tools"]):
            _check_keeps_no_secret(tool, f"{where}.tools[{index}]")
    elif kind == "mcp_list_tools":
        _check_listed_tools(item["tools"], f"{where}.tools")
    elif kind in HOSTED_CALLS:
        # What we keep for ourselves is not for clients to say.
        item = told(item)
    namespace = item.get("namespace")
    if kind in _CALLS and namespace is not None and not isinstance(namespace, str):
        raise _wrong_type(f"{where}.namespace")
    parts_field = _WITH_PARTS.get(kind)
    # A key that is an empty string would be the client's own.
    parts = item.get(parts_field) if parts_field else None
    if isinstance(parts, list):
        for index, part in enumerate(parts):
            check_part(part, f"{where}.{parts_field}[{index}]")
    given_id = item.get("id")
    if given_id is None or given_id == "":
        return {**item, "id": new_id(prefix_of(kind))}
    if not isinstance(given_id, str):
        raise _wrong_type(f"{where}.id")
    if len(given_id) > 128 or "\0" in given_id:
        raise InvalidRequest("An item's id has at most 128 characters, none of them NUL.", param=f"{where}.id")
    return item


def _missing(param: str) -> InvalidRequest:
    return InvalidRequest(f"Missing required parameter: '{param}'.", code="missing_required_parameter", param=param)


def _wrong_type(param: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid type for '{param}'.", code="invalid_type", param=param)


def _check_message(item: Item, where: str) -> None:
    role = item.get("role")
    if role is None:
        raise _missing(f"{where}.role")
    if not isinstance(role, str):
        raise _wrong_type(f"{where}.role")
    if role not in ROLES:
        raise InvalidRequest(
            f"Invalid value: {role[:100]!r}. Supported values are: 'assistant', 'system', 'developer', and 'user'.",
            param=f"{where}.role",
        )
    content = item.get("content")
    if content is None:
        raise _missing(f"{where}.content")
    if not isinstance(content, str | list):
        raise InvalidRequest(
            f"Invalid type for '{where}.content': expected a string or an array of parts.",
            code="invalid_type",
            param=f"{where}.content",
        )


_NO_LIMIT = 2**31
# The tools of a whole chain are counted where they are put together.


def _check_update(item: Item, where: str) -> None:
    check_optional(item, "reasoning", where, dict)
    check_optional(item.get("reasoning") or {}, "effort", f"{where}.reasoning", str)
    check_optional(item, "text", where, dict)
    text_format = (item.get("text") or {}).get("format")
    if text_format is not None:
        # Its schema is looked at where it comes into force.
        check_format(text_format, f"{where}.text.format", max_schema_bytes=None)


def _check_keeps_no_secret(tool: Any, where: str) -> None:
    """Items are stored as they are. Credentials are not, so they come with each request, in its ``tools``."""
    for field in ("authorization", "headers"):
        if tool["type"] == "mcp" and tool.get(field) is not None:
            raise InvalidRequest(f"Put '{field}' into 'tools': items are stored.", param=f"{where}.{field}")


def _check_listed_tools(tools: Sequence[Any], where: str) -> None:
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise _wrong_type(f"{where}[{index}]")
        if not isinstance(tool.get("name"), str):
            raise _wrong_type(f"{where}[{index}].name")
        for field, expected in (("input_schema", dict), ("description", str), ("annotations", dict)):
            check_optional(tool, field, f"{where}[{index}]", expected)


def check_part(part: Any, where: str) -> None:
    """A content part, found at ``where``. Raises InvalidRequest."""
    if not isinstance(part, dict):
        raise _wrong_type(where)
    kind = part.get("type")
    if kind is None:
        raise _missing(f"{where}.type")
    if not isinstance(kind, str):
        raise _wrong_type(f"{where}.type")
    required = _PART_REQUIRED.get(kind)
    if required is not None and part.get(required) is None:
        raise _missing(f"{where}.{required}")
    for field in _PART_STRINGS:
        if field in part and not isinstance(part[field], str | None):
            raise _wrong_type(f"{where}.{field}")
    for field in ("image_url", "file_url"):
        url = part.get(field)
        # An engine that fetched such a URL would do so from inside our network.
        if url is not None and not url.startswith("data:"):
            raise InvalidRequest(
                f"Only data URLs are accepted here, not {url[:40]!r}.",
                code="unsupported_value",
                param=f"{where}.{field}",
            )
    if kind == "input_image":
        if part.get("image_url") is not None:
            check_image(part["image_url"], f"{where}.image_url")
        elif part.get("file_id") is None:
            raise _missing(f"{where}.image_url")
    if part.get("file_id") is not None:
        raise InvalidRequest(
            "File ids are not supported yet: send the data itself.",
            code="unsupported_value",
            param=f"{where}.file_id",
        )


def check_media_sizes(
    items: Sequence[Item], *, max_image_bytes: int, max_file_bytes: int, within: str = "input"
) -> None:
    """Refuse images and files that are too large. Raises InvalidRequest, ``param`` naming the place.

    Costs nothing for their contents: base64 tells its size by its length.
    """
    for index, item in enumerate(items):
        field = _WITH_PARTS.get(item.get("type") or "message")
        parts = item.get(field) if field else None
        for part_index, part in enumerate(parts if isinstance(parts, list) else ()):
            for name, limit in (
                ("image_url", max_image_bytes),
                ("file_data", max_file_bytes),
                ("file_url", max_file_bytes),
            ):
                data = (part.get(name) or "").rpartition(",")[2]
                size = len(data) * 3 // 4 - data.count("=", -2)
                if size > limit:
                    raise InvalidRequest(
                        f"An {'image' if name == 'image_url' else 'attached file'} of {size} bytes is too large: "
                        f"at most {limit} are allowed.",
                        code="image_too_large" if name == "image_url" else "file_too_large",
                        param=f"{within}[{index}].{field}[{part_index}].{name}",
                    )


# What stands where a part of that type is read.
_PART_REQUIRED = {
    "input_text": "text",
    "output_text": "text",
    "reasoning_text": "text",
    "summary_text": "text",
    "refusal": "refusal",
}
_PART_STRINGS = ("text", "refusal", "image_url", "detail", "file_url", "file_data", "file_id", "filename")


def calls_left_open(open_calls: Mapping[str, str], items: Sequence[Item]) -> dict[str, str]:
    """Pair tool outputs with calls, given the calls that the context left open: ``{call_id: name}``.

    Costs what is new: a context never has more open calls than its last response made. A call that was cut off
    waits for nothing, since nobody can run half a call; an output beside it does no harm.

    Raises:
        InvalidRequest: an output that answers no open call.

    Source: the texts of OpenAI's own 400s, which clients show.
    """
    still_open = dict(open_calls)
    cut_off: set[str] = set()
    for item in items:
        kind = item.get("type")
        if kind in _CALLS:
            if item.get("status") == "incomplete":
                cut_off.add(item["call_id"])
            else:
                still_open[item["call_id"]] = item["name"]
        elif kind in _OUTPUTS and still_open.pop(item["call_id"], None) is None and item["call_id"] not in cut_off:
            noun = "custom tool call" if kind == "custom_tool_call_output" else "function call"
            raise InvalidRequest(
                f"No tool call found for {noun} output with call_id {item['call_id']}.",
                code="invalid_request_error",
                param="input",
            )
        elif kind == "mcp_approval_request":
            # A model that has asked for something waits for the answer, whatever that is.
            still_open[item["id"]] = item["name"]
        elif kind == "mcp_approval_response" and still_open.pop(item["approval_request_id"], None) is None:
            raise InvalidRequest(
                f"No approval request found with id {item['approval_request_id'][:128]}.",
                code="invalid_request_error",
                param="input",
            )
    return still_open


def require_outputs(open_calls: Mapping[str, str]) -> None:
    """Refuse a context that has calls without outputs. Raises InvalidRequest."""
    for call_id in open_calls:
        message = f"No tool output found for function call {call_id}."
        if call_id.startswith("mcpr_"):
            message = f"No approval response found for approval request {call_id}."
        raise InvalidRequest(message, code="invalid_request_error", param="input")


def told(item: Item) -> Item:
    """An item of our own memory or stores as its client knows it."""
    if MODEL_OUTPUT not in item or item.get("type") not in HOSTED_CALLS:
        return item
    return {key: value for key, value in item.items() if key != MODEL_OUTPUT}


def listed(item: Item) -> Item:
    """An item as ``/input_items`` shows it: messages in full form, outputs with a status, everything else as it is."""
    item = told(item)
    kind = item.get("type") or "message"
    if kind in _OUTPUTS:
        return {**item, "status": item.get("status") or "completed"}
    if kind != "message":
        return item
    content = item.get("content")
    if isinstance(content, str):
        kind = "output_text" if item.get("role") == "assistant" else "input_text"
        part: dict[str, Any] = {"type": kind, "text": content}
        if kind == "output_text":
            part["annotations"] = []
        content = [part]
    return {**item, "type": "message", "status": item.get("status") or "completed", "content": content}
