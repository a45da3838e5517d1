"""What a legal event sequence of one response is, written down a second time.

`read` takes the frames of one response from the first to its terminal event and raises AssertionError, with the
event, where they are not a legal sequence. It also holds every event against the official client's types, against
`shapes`, and against the documents that we publish.
"""

import functools
import json
from collections.abc import Iterable
from typing import Any

import pydantic

from tests.described import check_event

from . import shapes

TERMINAL = {"response.completed": "completed", "response.incomplete": "incomplete", "response.failed": "failed"}

Event = dict[str, Any]

# type of part: (its text's key, delta event, done event, the done event's key)
PARTS = {
    "output_text": ("text", "response.output_text.delta", "response.output_text.done", "text"),
    "refusal": ("refusal", "response.refusal.delta", "response.refusal.done", "refusal"),
    "reasoning_text": ("text", "response.reasoning_text.delta", "response.reasoning_text.done", "text"),
    "summary_text": (
        "text",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "text",
    ),
}
# Which parts an item may have: (its field, what the events call their place, the name of the events).
PLACES = {
    "output_text": ("message", "content", "content_index", "response.content_part"),
    "refusal": ("message", "content", "content_index", "response.content_part"),
    "reasoning_text": ("reasoning", "content", "content_index", "response.content_part"),
    "summary_text": ("reasoning", "summary", "summary_index", "response.reasoning_summary_part"),
}
# type of call item: (its text's key, delta event, done event, the done event's key)
CALLS = {
    "function_call": (
        "arguments",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "arguments",
    ),
    "custom_tool_call": (
        "input",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "input",
    ),
    "mcp_call": (
        "arguments",
        "response.mcp_call_arguments.delta",
        "response.mcp_call_arguments.done",
        "arguments",
    ),
}
# type of an item of a hosted tool: the words that are said of it, in this order, the last one at its end.
HOSTED = {
    "mcp_call": ("in_progress", "completed", "failed"),
    "mcp_list_tools": ("in_progress", "completed", "failed"),
    "web_search_call": ("in_progress", "searching", "completed"),
    "file_search_call": ("in_progress", "searching", "completed"),
}
DELTAS = {row[1]: kind for table in (PARTS, CALLS) for kind, row in table.items()}
DONES = {row[2]: kind for table in (PARTS, CALLS) for kind, row in table.items()}


class OpenPart:
    def __init__(self, event: Event) -> None:
        self.kind = event["part"]["type"]
        self.position = PLACES[self.kind][2]
        self.index = event[self.position]
        self.said = ""
        self.logprobs: list[Any] = []
        self.annotations: list[Any] = []
        self.is_said = False


class OpenItem:
    def __init__(self, event: Event) -> None:
        self.added = event["item"]
        self.output_index = event["output_index"]
        self.parts: list[dict[str, Any]] = []
        self.part: OpenPart | None = None
        self.said = ""
        self.is_said = False
        self.words: list[str] = []
        """How far a hosted tool has been said to be."""

    @property
    def id(self) -> str:
        return str(self.added["id"])


class Grammar:
    """A state machine that accepts exactly the legal event sequences of one response."""

    def __init__(self) -> None:
        self.next_number = 0
        self.stream_id: str | None = None
        self.response: dict[str, Any] | None = None
        self.has_progressed = False
        self.open: dict[int, OpenItem] = {}
        self.done: dict[int, dict[str, Any]] = {}
        self.ids: set[str] = set()
        self.ended: str | None = None
        self.deltas = 0
        """How many have come."""
        self.steers: set[str] = set()
        self.has_waited = False
        """For appended outputs, which become part of the output without an event of their own."""

    @property
    def items(self) -> list[dict[str, Any]]:
        """Those that are done, in order."""
        return [self.done[index] for index in sorted(self.done)]

    def feed(self, event: Event) -> None:
        kind = event["type"]
        # The one kind of event that may follow the end: a steer that waits for the next create.
        assert self.ended is None or kind == "response.steer.pending", f"{kind} after the terminal {self.ended}"
        assert event["sequence_number"] == self.next_number, f"{kind} out of number"
        self.next_number += 1
        if self.response is None:
            assert kind == "response.created", f"{kind} before response.created"
            self.stream_id = event.get("stream_id")
            self._created(event["response"])
            return
        assert event.get("stream_id") == self.stream_id, "the lane changed"
        if kind == "response.queued":
            assert (self.next_number, self.response["status"]) == (2, "queued"), "queued is said once, and then"
            assert event["response"] == self.response
            return
        if kind == "response.in_progress":
            # A second one later is a sign of life.
            assert event["response"]["id"] == self.response["id"]
            assert event["response"]["status"] == "in_progress"
            self.has_progressed = True
            return
        # What is queued may fail or be cancelled before it ever begins.
        is_early_end = kind in TERMINAL and kind != "response.completed" and self.response["status"] == "queued"
        assert self.has_progressed or is_early_end, f"{kind} before response.in_progress"
        if kind in TERMINAL:
            self._terminal(kind, event["response"])
        elif kind.startswith("response.steer."):
            self._steer(event)
        elif kind == "response.done":
            assert not self.open, "an item is still open"
            calls = {item.get("call_id", item["id"]) for item in self.items}
            assert {stub.get("call_id", stub.get("approval_request_id")) for stub in event["required"]} <= calls
            self.has_waited = True
        elif kind == "response.output_item.added":
            self._added(event)
        elif kind == "response.output_item.done":
            self._done(event)
        elif kind in ("response.content_part.added", "response.reasoning_summary_part.added"):
            self._part_added(event)
        elif kind in ("response.content_part.done", "response.reasoning_summary_part.done"):
            self._part_done(event)
        elif kind == "response.compaction.compacting":
            opened = self._item(event)
            assert opened.added["type"] == "compaction"
            assert not opened.is_said, "said twice"
            opened.is_said = True
        elif kind == "response.output_text.annotation.added":
            part = self._part(event)[1]
            assert event["annotation_index"] == len(part.annotations)
            part.annotations.append(event["annotation"])
        elif kind.split(".")[1] in HOSTED:
            self._hosted(event)
        elif kind in DELTAS:
            self._delta(event, DELTAS[kind])
        elif kind in DONES:
            self._said(event, DONES[kind])
        else:
            raise AssertionError(f"no such event: {kind}")

    def _created(self, response: dict[str, Any]) -> None:
        assert response["status"] == ("queued" if response["background"] else "in_progress")
        assert (response["output"], response["usage"], response["error"]) == ([], None, None)
        self.response = response

    def _added(self, event: Event) -> None:
        index, item = event["output_index"], event["item"]
        told = len(self.open) + len(self.done)
        assert index >= told if self.has_waited else index == told, "indexes count up"
        assert item["id"] not in self.ids, "an item id was used twice"
        self.ids.add(item["id"])
        if item["type"] in HOSTED or item["type"] == "mcp_approval_request":
            assert item.get("status", "in_progress") == "in_progress"
            assert not item.get("tools") and "output" not in item
            assert item.get("arguments", "") == "" or item["type"] == "mcp_approval_request"
        elif item["type"] in CALLS:
            assert item[CALLS[item["type"]][0]] == ""
            assert item["status"] == "in_progress"
            assert item["call_id"] and item["call_id"] != item["id"]
            others = [other.added for other in self.open.values()] + list(self.done.values())
            assert item["call_id"] not in [other.get("call_id") for other in others], "a call id was used twice"
        elif item["type"] == "message":
            assert (item["content"], item["status"], item["role"]) == ([], "in_progress", "assistant")
        elif item["type"] == "compaction":
            assert item["encrypted_content"] == ""
        else:
            assert item == {"id": item["id"], "type": "reasoning", "summary": []}
        self.open[index] = OpenItem(event)

    def _hosted(self, event: Event) -> None:
        opened = self._item(event)
        _, kind, word = event["type"].split(".")
        assert opened.added["type"] == kind
        assert word in HOSTED[kind]
        assert word not in opened.words, "said twice"
        assert (not opened.words) == (word == "in_progress")
        assert not {"completed", "failed"} & set(opened.words), "said after the end"
        opened.words.append(word)

    def _steer(self, event: Event) -> None:
        steer = event["steer"]
        assert self.response is not None and steer["previous_response_id"] == self.response["id"]
        if event["type"] == "response.steer.accepted":
            assert steer["id"] not in self.steers, "accepted twice"
            self.steers.add(steer["id"])
        elif event["type"] == "response.steer.pending":
            assert self.ended == "response.completed", "only calls of a whole response are waited for"
            assert event["required_input"]
            # At most once for each.
            self.steers.remove(steer["id"])
        else:
            assert "input" in steer, "what is refused comes back"

    def _item(self, event: Event) -> OpenItem:
        item = self.open.get(event["output_index"])
        assert item is not None, "no such item is open"
        assert event["item_id"] == item.id, "the item's id changed"
        return item

    def _part(self, event: Event) -> tuple[OpenItem, OpenPart]:
        item = self._item(event)
        assert item.part is not None, "no part is open"
        assert event[item.part.position] == item.part.index
        return item, item.part

    def _part_added(self, event: Event) -> None:
        item = self._item(event)
        assert item.part is None, "the part before is still open"
        kind = event["part"]["type"]
        owner, _, position, name = PLACES[kind]
        assert (item.added["type"], event["type"]) == (owner, f"{name}.added")
        assert event[position] == len(item.parts)
        assert all(PLACES[part["type"]][1] == PLACES[kind][1] for part in item.parts), "raw text and a summary"
        assert event["part"][PARTS[kind][0]] == ""
        item.part = OpenPart(event)

    def _delta(self, event: Event, kind: str) -> None:
        target: OpenItem | OpenPart
        if kind in CALLS:
            target = self._item(event)
            assert target.added["type"] == kind
        else:
            target = self._part(event)[1]
            assert target.kind == kind
        assert not target.is_said, "a delta after its done"
        assert event["delta"], "an empty delta says nothing"
        if isinstance(target, OpenPart):
            target.logprobs += event.get("logprobs", [])
        self.deltas += 1
        target.said += event["delta"]

    def _said(self, event: Event, kind: str) -> None:
        target: OpenItem | OpenPart
        if kind in CALLS:
            target = self._item(event)
            assert target.added["type"] == kind
            assert event[CALLS[kind][3]] == target.said, "deltas do not make the whole"
        else:
            target = self._part(event)[1]
            assert target.kind == kind
            assert event[PARTS[kind][3]] == target.said, "deltas do not make the whole"
            assert event.get("logprobs", []) == target.logprobs, "logprobs of the deltas do not make those of the whole"
        assert not target.is_said, "said twice"
        target.is_said = True

    def _part_done(self, event: Event) -> None:
        item, part = self._part(event)
        assert part.is_said
        assert event["type"] == f"{PLACES[part.kind][3]}.done"
        assert event["part"]["type"] == part.kind
        assert event["part"][PARTS[part.kind][0]] == part.said
        assert event["part"].get("annotations", []) == part.annotations
        item.parts.append(event["part"])
        item.part = None

    def _done(self, event: Event) -> None:
        index, item = event["output_index"], event["item"]
        opened = self.open.pop(index, None)
        assert opened is not None, "no such item is open"
        assert opened.part is None, "its part is still open"
        kind = item["type"]
        changing = {"status", "content", "summary", "encrypted_content", *(row[0] for row in CALLS.values())}
        if kind in HOSTED:
            changing |= {"tools", "error", "output", "action", "queries", "results"}
        for key in {*opened.added, *item} - changing:
            assert opened.added[key] == item[key], f"the item's {key} changed"
        if kind in HOSTED:
            self._hosted_done(opened, item)
        elif kind == "mcp_approval_request":
            assert item == opened.added
        elif kind in CALLS:
            assert opened.is_said
            assert item[CALLS[kind][0]] == opened.said
            assert item["status"] in ("completed", "incomplete")
        elif kind == "compaction":
            assert item["encrypted_content"]
        elif kind == "message":
            assert opened.parts, "a message without parts"
            assert item["content"] == opened.parts
            assert item["status"] in ("completed", "incomplete")
        else:
            assert [*item.get("content", ()), *item["summary"]] == opened.parts
            assert item.get("content", True), "content is left out rather than empty"
        self.done[index] = item

    def _hosted_done(self, opened: OpenItem, item: dict[str, Any]) -> None:
        kind = item["type"]
        assert opened.words[:1] == ["in_progress"]
        if kind in CALLS:
            assert opened.is_said
            assert item["arguments"] == opened.said
        if kind == "mcp_list_tools":
            return
        ended = item["status"]
        assert ended in ("completed", "failed", "incomplete")
        if kind == "mcp_call":
            assert ("output" in item, "error" in item) == (ended == "completed", ended == "failed")
        if ended == "completed" or (ended == "failed" and "failed" in HOSTED[kind]):
            assert opened.words[-1] == ended
        else:
            assert not {"completed", "failed"} & set(opened.words)

    def _terminal(self, kind: str, response: dict[str, Any]) -> None:
        assert self.response is not None
        status = TERMINAL[kind]
        if response["background"] and status == "incomplete" and response["status"] == "cancelled":
            # The official union has no event of its own for it.
            status = "cancelled"
        assert response["status"] == status
        varying = {"status", "output", "usage", "error", "incomplete_details", "completed_at"}
        for key in {*self.response, *response} - varying:
            assert response[key] == self.response[key], f"the response's {key} changed"
        output = response["output"]
        if self.has_waited:
            output = [item for item in output if item in self.items]
        assert output == self.items
        statuses = {item.get("status", "completed") for item in response["output"]}
        if status != "failed":
            assert not self.open, "an item is still open"
            assert response["error"] is None
            assert response["usage"] is not None
        if status == "completed":
            assert response["completed_at"] is not None and response["completed_at"] >= response["created_at"]
            # A hosted call may come to nothing, and the response to an end.
            assert statuses <= {"completed", "failed"}
            assert all(item["type"] in HOSTED for item in response["output"] if item.get("status") == "failed")
        else:
            assert response["completed_at"] is None
        assert (response["incomplete_details"] is not None) == (status == "incomplete")
        assert (response["error"] is not None) == (status == "failed")
        self.ended = kind


def read(frames: Iterable[str]) -> list[Event]:
    """The events of one whole response. Raises AssertionError where anything is not as it must be."""
    events = [json.loads(frame) for frame in frames]
    grammar = Grammar()
    for event in events:
        try:
            grammar.feed(event)
        except AssertionError as exc:
            raise AssertionError(f"{exc} at {event}") from exc
        check_types(event)
        shapes.check_event(event)
        check_event(event)
    assert grammar.ended is not None, "no terminal event"
    return events


def check_types(event: Event) -> None:
    """Raises ValidationError if the official client could not read the event, in a stream or on a socket."""
    for adapter in _adapters():
        adapter.validate_json(json.dumps(event), strict=True)


@functools.cache
def _adapters() -> list["pydantic.TypeAdapter[Any]"]:
    # Takes seconds to import.
    from openai.types.responses import ResponsesServerEvent, ResponseStreamEvent

    return [pydantic.TypeAdapter(ResponsesServerEvent), pydantic.TypeAdapter(ResponseStreamEvent)]
