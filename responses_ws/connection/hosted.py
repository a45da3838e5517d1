"""The items of hosted tools in one response: what the model calls, what is listed, what becomes of it."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from responses_ws.protocol import server_events as events
from responses_ws.protocol.ids import NewId
from responses_ws.protocol.items import Item, prefix_of
from responses_ws.protocol.sampling import CallArguments, CallStart

Frames = list[str]

_WITHOUT_STATUS = frozenset({"mcp_list_tools", "mcp_approval_request"})


class Encode(Protocol):
    def __call__(self, event: Callable[..., events.ServerEvent], **fields: Any) -> str: ...


class FinishItem(Protocol):
    def __call__(self, index: int, item: Item, frames: Frames, kept: Item | None = None) -> None: ...


class WaitingCall(msgspec.Struct, frozen=True):
    """A whole call that has not been run yet."""

    item_id: str
    name: str
    """As it was offered to the model."""
    arguments: str


class HostedItems:
    """From their first event to their last, in whichever order they end.

    The engine's deltas come first: ``start``, ``hear``, ``close_call``. What is whole then is in ``waiting``. Whoever
    runs it calls ``progress`` and, once, ``finish``. Items that no engine has asked for ``begin`` here.
    """

    def __init__(
        self, encode: Encode, add_item: Callable[[Item, Frames], int], finish_item: FinishItem, new_id: NewId
    ) -> None:
        self._encode = encode
        self._add_item = add_item
        self._finish_item = finish_item
        self._new_id = new_id
        self.said: dict[int, _SaidCall] = {}
        """Calls that the engine is saying, by its index."""
        self.waiting: list[WaitingCall] = []
        self.has_dropped_call = False
        """Nothing has come out of a call that was begun: not even its beginning."""
        self.calls_run = 0
        """Calls that were run, here or by the engine, without those that came to nothing."""
        self._open: dict[str, tuple[int, Item]] = {}
        """Output index and item of everything that has begun and not ended, by id."""

    def start(self, start: CallStart, frames: Frames) -> None:
        """The engine begins a call."""
        assert start.item is not None, "asked for calls of hosted tools only"
        if start.index in self.said:
            self.close_call(start.index, frames, "completed")
        # Somebody has to allow it: then it comes out whole, or not at all.
        is_request = start.item["type"] == "mcp_approval_request"
        item_id = None if is_request else self._begin(start.item, frames)
        self.said[start.index] = _SaidCall(start.name, start.item, item_id)

    def hear(self, delta: CallArguments, frames: Frames) -> None:
        call = self.said[delta.index]
        call.pieces.append(delta.text)
        self._say_arguments(call.item_id, delta.text, frames)

    def close_call(self, index: int, frames: Frames, status: str) -> None:
        """The engine has said all of the call, or no more of it will come."""
        call = self.said.pop(index)
        if not call.pieces and status == "completed":
            call.pieces.append("{}")
            self._say_arguments(call.item_id, "{}", frames)
        arguments = "".join(call.pieces)
        if call.item_id is None:
            if status == "completed":
                item = {**call.item, "id": self._new_id(prefix_of(call.item["type"])), "arguments": arguments}
                self._finish_item(self._add_item({**item}, frames), item, frames)
            else:
                self.has_dropped_call = True
            return
        self._end_arguments(call.item_id, arguments, frames)
        if status == "completed":
            self.waiting.append(WaitingCall(call.item_id, call.name, arguments))
        else:
            self._end(call.item_id, {}, "incomplete", frames)

    def begin(self, item: Item, frames: Frames, *, arguments: str | None = None) -> str:
        """An item that no engine has just asked for, with the arguments of its call if it is one. Returns its id."""
        item_id = self._begin(item, frames)
        if arguments is not None:
            self._say_arguments(item_id, arguments, frames)
            self._end_arguments(item_id, arguments, frames)
        return item_id

    def progress(self, item_id: str, word: str, frames: Frames) -> None:
        """Tell how far it is, if there is an event for it."""
        index, item = self._open[item_id]
        event = events.progress_event(item["type"], word)
        if event is not None:
            frames.append(self._encode(event, item_id=item_id, output_index=index))

    def finish(
        self,
        item_id: str,
        fields: Mapping[str, Any],
        frames: Frames,
        *,
        failed: bool = False,
        kept: Mapping[str, Any] | None = None,
    ) -> None:
        """It has ended: ``fields`` are what is known of the item now, ``kept`` what we keep of it besides."""
        status = "failed" if failed else "completed"
        self.progress(item_id, status, frames)
        self._end(item_id, fields, status, frames, kept)

    def close(self, frames: Frames, status: str) -> None:
        """What the engine has not ended is ended so. Unless that is ``completed``, so is what has not been run."""
        for index in sorted(self.said):
            self.close_call(index, frames, status)
        if status == "completed":
            return
        self.waiting = []
        for item_id in list(self._open):
            fields = {"error": "The response has ended."} if self._open[item_id][1]["type"] == "mcp_list_tools" else {}
            self._end(item_id, fields, status, frames)

    def _begin(self, item: Item, frames: Frames) -> str:
        kind = item["type"]
        item = {"id": self._new_id(prefix_of(kind)), **item}
        if kind not in _WITHOUT_STATUS:
            item["status"] = "in_progress"
        if kind == "mcp_call":
            item["arguments"] = ""
        item_id: str = item["id"]
        self._open[item_id] = self._add_item(item, frames), item
        self.progress(item_id, "in_progress", frames)
        return item_id

    def _say_arguments(self, item_id: str | None, text: str, frames: Frames) -> None:
        if item_id is not None and self._open[item_id][1]["type"] == "mcp_call":
            index = self._open[item_id][0]
            frames.append(self._encode(events.McpCallArgumentsDelta, item_id=item_id, output_index=index, delta=text))

    def _end_arguments(self, item_id: str, arguments: str, frames: Frames) -> None:
        index, item = self._open[item_id]
        if item["type"] == "mcp_call":
            event = events.McpCallArgumentsDone
            frames.append(self._encode(event, item_id=item_id, output_index=index, arguments=arguments))
            self._open[item_id] = index, {**item, "arguments": arguments}

    def _end(
        self,
        item_id: str,
        fields: Mapping[str, Any],
        status: str,
        frames: Frames,
        kept: Mapping[str, Any] | None = None,
    ) -> None:
        index, begun = self._open.pop(item_id)
        item = {**begun, **fields}
        if item["type"] not in _WITHOUT_STATUS:
            item["status"] = status
        self._finish_item(index, item, frames, {**item, **kept} if kept else None)


class _SaidCall:
    """A call whose arguments are being said."""

    __slots__ = ("name", "item", "item_id", "pieces")

    def __init__(self, name: str, item: Item, item_id: str | None) -> None:
        self.name = name
        self.item = item
        self.item_id = item_id
        self.pieces: list[str] = []
