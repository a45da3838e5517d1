"""A finished response told once more as a stream."""

from collections.abc import Callable
from typing import Any

from responses_ws.protocol import server_events as events
from responses_ws.protocol.items import Item

from .turn import without_bytes

_UNTOLD: dict[str, Any] = {
    "status": "in_progress",
    "completed_at": None,
    "error": None,
    "incomplete_details": None,
    "output": [],
    "usage": None,
}
"""What a Response does not say before its end."""

_MakesEvent = Callable[..., events.ServerEvent]
_SUMMARY = (events.ReasoningSummaryPartAdded, events.ReasoningSummaryPartDone)
_CONTENT = (events.ContentPartAdded, events.ContentPartDone)
# By type of part: the key of its text, its delta and its done event.
_TEXTS: dict[str, tuple[str, _MakesEvent, _MakesEvent]] = {
    "output_text": ("text", events.OutputTextDelta, events.OutputTextDone),
    "refusal": ("refusal", events.RefusalDelta, events.RefusalDone),
    "reasoning_text": ("text", events.ReasoningTextDelta, events.ReasoningTextDone),
    "summary_text": ("text", events.ReasoningSummaryTextDelta, events.ReasoningSummaryTextDone),
}
_CALLS: dict[str, tuple[str, _MakesEvent, _MakesEvent]] = {
    "function_call": ("arguments", events.FunctionCallArgumentsDelta, events.FunctionCallArgumentsDone),
    "custom_tool_call": ("input", events.CustomToolCallInputDelta, events.CustomToolCallInputDone),
}


def replay(response: dict[str, Any]) -> list[str]:
    """The events of a response that has ended, each text in one delta. An honest stream, but not the first one."""
    telling = _Telling()
    begun = events.encode_response({**response, **_UNTOLD})
    telling.say(events.ResponseCreated, response=begun)
    telling.say(events.ResponseInProgress, response=begun)
    for index, item in enumerate(response["output"]):
        telling.tell(index, item)
    telling.say(events.terminal_event(response), response=events.encode_response(response))
    return telling.frames


class _Telling:
    def __init__(self) -> None:
        self.frames: list[str] = []

    def say(self, event: _MakesEvent, **fields: Any) -> None:
        self.frames.append(events.encode(event(sequence_number=len(self.frames), **fields)))

    def tell(self, index: int, item: Item) -> None:
        """One output item. Of types whose pieces have no events here it is told whole."""
        place = {"item_id": item["id"], "output_index": index}
        kind = item["type"]
        if kind in _CALLS:
            field = _CALLS[kind][0]
            self._open(index, {**item, field: "", "status": "in_progress"})
            self._tell_text(item[field], _CALLS[kind], place)
        elif kind == "message":
            self._open(index, {**item, "content": [], "status": "in_progress"})
        elif kind == "reasoning":
            self._open(index, {"id": item["id"], "type": "reasoning", "summary": []})
        else:
            self._open(index, item)
        if kind in ("message", "reasoning"):
            self._tell_parts(item.get("content"), _CONTENT, "content_index", place)
            self._tell_parts(item.get("summary"), _SUMMARY, "summary_index", place)
        self.say(events.OutputItemDone, output_index=index, item=item)

    def _open(self, index: int, item: Item) -> None:
        self.say(events.OutputItemAdded, output_index=index, item=item)

    def _tell_parts(
        self, parts: list[dict[str, Any]] | None, brackets: tuple[_MakesEvent, _MakesEvent], index: str, item: Item
    ) -> None:
        added, done = brackets
        for number, part in enumerate(parts or ()):
            field = _TEXTS[part["type"]][0]
            place = {**item, index: number}
            logprobs = part.get("logprobs")
            told = {"logprobs": without_bytes(logprobs)} if logprobs else {}
            self.say(added, part={**part, field: "", **({"logprobs": []} if logprobs else {})}, **place)
            self._tell_text(part[field], _TEXTS[part["type"]], {**place, **told})
            self.say(done, part=part, **place)

    def _tell_text(self, text: str, words: tuple[str, _MakesEvent, _MakesEvent], place: dict[str, Any]) -> None:
        field, delta, done = words
        if text:
            self.say(delta, delta=text, **place)
        self.say(done, **{field: text}, **place)
