"""Steering: user input for a response that is already running."""

from typing import Any

import msgspec

from .errors import InvalidRequest
from .ids import NewId
from .items import Item, input_items
from .request import JsonObject

MAX_PENDING = 16
"""Steers that may wait for one response."""


class Steer(msgspec.Struct, frozen=True):
    """Input that a client has put into a running response."""

    previous_response_id: str
    input: str | list[JsonObject]
    id: str = ""
    """Given when it is accepted."""

    def items(self, new_id: NewId, *, max_items: int) -> list[Item]:
        """The input as user messages. Raises InvalidRequest: only those may steer."""
        items = input_items(self.input, new_id, max_items=max_items)
        if not items or any((item.get("type") or "message") != "message" or item["role"] != "user" for item in items):
            raise InvalidRequest("A steer is a string or a non-empty list of user messages.", param="input")
        return items

    def wire(self) -> dict[str, Any]:
        """``{id, previous_response_id}``, as accepted and pending events carry it."""
        return {"id": self.id, "previous_response_id": self.previous_response_id}

    def returned(self) -> dict[str, Any]:
        """With its input, as failed events give it back; in full form, as the official type wants it."""
        given = self.input if isinstance(self.input, str) else [{"type": "message", **item} for item in self.input]
        steer: dict[str, Any] = {"input": given, "previous_response_id": self.previous_response_id}
        if self.id:
            steer["id"] = self.id
        return steer


def steer_error(code: str, message: str) -> JsonObject:
    """The ``error`` of a ``response.steer.failed``."""
    return {"type": "invalid_request_error", "code": code, "message": message}


def required_inputs(open_items: list[Item]) -> list[JsonObject]:
    """What answers these calls: one stub each."""
    stubs: list[JsonObject] = []
    for item in open_items:
        if item["type"] == "custom_tool_call":
            stubs.append({"type": "custom_tool_call_output", "call_id": item["call_id"]})
        elif item["type"] == "mcp_approval_request":
            stubs.append({"type": "mcp_approval_response", "approval_request_id": item["id"]})
        else:
            stubs.append({"type": "function_call_output", "call_id": item["call_id"], "name": item["name"]})
    return stubs
