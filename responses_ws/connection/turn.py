"""One turn: deltas of an engine in, server events out, numbered."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from responses_ws.protocol import server_events as events
from responses_ws.protocol.errors import ApiError, response_error
from responses_ws.protocol.ids import NewId
from responses_ws.protocol.items import Item, is_run_call, prefix_of
from responses_ws.protocol.request import JsonObject, Request
from responses_ws.protocol.response import response_object
from responses_ws.protocol.sampling import (
    Annotation,
    CallArguments,
    CallEnd,
    CallStart,
    Delta,
    Finished,
    OutputItem,
    Progress,
    ReasoningDelta,
    RefusalDelta,
    Started,
    TextDelta,
)
from responses_ws.protocol.steering import Steer, required_inputs
from responses_ws.protocol.usage import Usage

from .citations import citations
from .hosted import HostedItems
from .reasoning import Form, concise, form_of

Seal = Callable[[str], str]
"""Makes raw reasoning into text that only we can read again."""

Outcome = Literal["completed", "incomplete", "failed"]

CANCELLED = "cancelled"
"""The status of a response that its client has stopped."""
_INCOMPLETE_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}


class Turn:
    """The state machine of one response.

    ``begin()`` → ``feed(delta)``… → ``close()`` → ``end()``; or ``fail(error)`` any time after ``begin()``. Each
    gives encoded frames, in order. Between ``close()`` and ``end()`` the response is whole and can be saved: the
    terminal event goes out only afterwards. A background response has a ``queue()`` before all that.

    Source: the event orders of the OpenAI types; sequence numbers are per response and start at 0.
    """

    def __init__(
        self,
        request: Request,
        *,
        response_id: str,
        new_id: NewId,
        created_at: int,
        seal: Seal,
        stream_id: str | None = None,
        shows_raw_reasoning: bool = True,
    ) -> None:
        self.response = response_object(request, response_id=response_id, created_at=created_at)
        """The Response object. Its ``output`` grows by whole items only."""
        self.output_tokens = 0
        """Counted from the deltas: what was made so far, if the engine never says."""
        self.reasoning_tokens = 0
        self.past_usage = Usage()
        """Of the sampling steps before this one."""
        self.started: Started | None = None
        self.finished: Finished | None = None
        self.has_begun = False
        """``response.created`` has been said: a failure is an event from here on."""
        self._new_id = new_id
        self._stream_id: str | UnsetType = UNSET if stream_id is None else stream_id
        self._sequence_number = 0
        self._next_output_index = 0
        self._block: _TextBlock | None = None
        self._calls: dict[int, _Call] = {}
        self._call_ids: set[str] = set()
        self._output: dict[int, Item] = {}
        self._kept: dict[int, Item] = {}
        """Output items that hold more than the client is sent."""
        self.hosted = HostedItems(self._encode, self._add_item, self._finish_item, new_id)
        """Items of what is run here for the model."""
        self.sources: dict[str, str] = {}
        """Titles of the pages that searches of this response have found, by URL: what its texts may cite."""
        self._compaction: tuple[int, Item] | None = None
        """The output index and the item of a compaction that is being made."""
        self._summary: list[str] = []
        self._seal = seal
        self._reasoning_form: Form = form_of(request, shows_raw=shows_raw_reasoning)
        self._is_summarised = request.reasoning_summary is not None
        self._includes_sealed = request.includes_encrypted_reasoning

    @property
    def id(self) -> str:
        return str(self.response["id"])

    @property
    def next_sequence_number(self) -> int:
        return self._sequence_number

    def queue(self) -> list[str]:
        """``response.created`` and ``response.queued``: accepted, and not yet begun."""
        self.response["status"] = "queued"
        return self._lifecycle(events.ResponseCreated, events.ResponseQueued)

    def resume(self, response: JsonObject, number: int) -> None:
        """Begin with a response that was queued some time ago; its next event has this number."""
        self.response = {**response, "status": "queued"}
        self.has_begun = True
        self._sequence_number = number

    def begin(self) -> list[str]:
        """``response.created``, unless the response was queued before, and ``response.in_progress``."""
        if self.is_queued:
            self.response["status"] = "in_progress"
            return self._lifecycle(events.ResponseInProgress)
        return self._lifecycle(events.ResponseCreated, events.ResponseInProgress)

    @property
    def is_queued(self) -> bool:
        return self.status == "queued"

    def _lifecycle(self, *kinds: Callable[..., events.ServerEvent]) -> list[str]:
        self.has_begun = True
        encoded = events.encode_response(self.response)
        return [self._encode(kind, response=encoded) for kind in kinds]

    def keep_alive(self) -> str:
        """``response.in_progress`` again: the one event that every client takes at any time, and that says nothing."""
        return self._encode(events.ResponseInProgress, response=events.encode_response(self.response))

    def feed(self, delta: Delta) -> list[str]:
        """The events of one delta, often just one."""
        frames: list[str] = []
        if isinstance(delta, TextDelta):
            self.output_tokens += delta.tokens
            self._continue_block("output_text", delta.text, frames, delta.logprobs)
        elif isinstance(delta, CallArguments):
            self.output_tokens += delta.tokens
            if delta.text and delta.index in self.hosted.said:
                self.hosted.hear(delta, frames)
            elif delta.text:
                self._continue_call(delta, frames)
        elif isinstance(delta, CallStart):
            self._close_block(frames, "completed")
            if delta.item is not None:
                self.hosted.start(delta, frames)
            else:
                self._start_call(delta, frames)
        elif isinstance(delta, CallEnd) and delta.index in self.hosted.said:
            self.hosted.close_call(delta.index, frames, "completed")
        elif isinstance(delta, CallEnd):
            self._close_call(delta.index, frames, "completed")
        elif isinstance(delta, ReasoningDelta):
            self.output_tokens += delta.tokens
            self.reasoning_tokens += delta.tokens
            self._continue_block(self._reasoning_form, delta.text, frames)
        elif isinstance(delta, RefusalDelta):
            self.output_tokens += delta.tokens
            self._continue_block("refusal", delta.text, frames)
        elif isinstance(delta, Started):
            self.started = delta
        elif isinstance(delta, Finished):
            self.finished = delta
            if delta.reason in ("stop", "tool_calls"):
                # Some engines do not end their calls one by one; hosted ones are run now.
                self.hosted.close(frames, "completed")
        elif isinstance(delta, OutputItem):
            self._close_block(frames, "completed")
            self._take_item(delta.item, frames)
        elif isinstance(delta, Annotation):
            if self._block is not None:
                self._block.annotations.append(delta.annotation)
        elif isinstance(delta, Progress):
            pass
        else:
            raise AssertionError(f"an engine yielded {type(delta).__name__}, which is not a delta")
        return frames

    def count(self, deltas: Sequence[Delta]) -> None:
        """Count what will not be told any more."""
        for delta in deltas:
            if isinstance(delta, TextDelta | ReasoningDelta | RefusalDelta | CallArguments):
                self.output_tokens += delta.tokens
                self.reasoning_tokens += delta.tokens if isinstance(delta, ReasoningDelta) else 0

    def close(self, usage: Usage, *, completed_at: int, cut_off: str | None = None) -> list[str]:
        """Close what is still open. The Response then is as the terminal event will carry it.

        After Finished; or before it, with the reason why it is ``cut_off`` here, or CANCELLED.
        """
        assert self.finished is not None or cut_off, "a turn is closed only after its engine has finished"
        reason = cut_off or _INCOMPLETE_REASONS.get(self.finished.reason if self.finished else "")
        frames = self._close_items("incomplete" if reason else "completed")
        is_incomplete = reason is not None and reason != CANCELLED
        self.response["status"] = "incomplete" if is_incomplete else reason or "completed"
        self.response["incomplete_details"] = {"reason": reason} if is_incomplete else None
        self.response["completed_at"] = None if reason else completed_at
        self.response["usage"] = usage.wire()
        return frames

    def end_step(self, usage: Usage) -> list[str]:
        """A sampling step is over and another will follow in the same response."""
        frames = self._close_items("completed")
        self.past_usage = self.past_usage.plus(usage)
        self.output_tokens = self.reasoning_tokens = 0
        self.started = self.finished = None
        return frames

    def begin_compaction(self, *, samples: bool) -> list[str]:
        """A compaction item is being made; ``samples``: the model is asked for a summary."""
        frames: list[str] = []
        item: Item = {"id": self._new_id("cmp"), "type": "compaction", "encrypted_content": ""}
        index = self._add_item(item, frames)
        self._compaction, self._summary = (index, item), []
        if samples:
            place = {"item_id": item["id"], "output_index": index}
            frames.append(self._encode(events.ResponseCompactionCompacting, **place))
        return frames

    def hear_summary(self, delta: Delta) -> list[str]:
        """`feed` for the sampling step that makes a summary: counts, remembers the text, tells nothing."""
        if isinstance(delta, TextDelta):
            self._summary.append(delta.text)
        elif isinstance(delta, ReasoningDelta):
            self.reasoning_tokens += delta.tokens
        elif isinstance(delta, Started):
            self.started = delta
        elif isinstance(delta, Finished):
            self.finished = delta
        if isinstance(delta, TextDelta | ReasoningDelta | RefusalDelta | CallArguments):
            self.output_tokens += delta.tokens
        return []

    @property
    def is_compacting(self) -> bool:
        """Whether the client waits for a compaction item that has begun."""
        return self._compaction is not None

    @property
    def summary(self) -> str:
        """What the model has written of it."""
        return "".join(self._summary).strip()

    def end_compaction(self, encrypted_content: str) -> list[str]:
        """The item is whole."""
        assert self._compaction is not None, "a compaction ends after it has begun"
        (index, item), self._compaction = self._compaction, None
        frames: list[str] = []
        self._finish_item(index, {**item, "encrypted_content": encrypted_content}, frames)
        return frames

    def append(self, items: Sequence[Item]) -> None:
        """Items of the client become part of the output; no event tells of them."""
        for item in items:
            self._output[self._next_output_index] = item
            self._next_output_index += 1
        self.response["output"] = [self._output[key] for key in sorted(self._output)]

    def replace(self, items: Sequence[Item]) -> None:
        """The last items of the output become these: what was appended is not to be read again."""
        for index, item in enumerate(items, self._next_output_index - len(items)):
            self._output[index] = item
        self.response["output"] = [self._output[key] for key in sorted(self._output)]

    def wait_for_outputs(self, open_items: list[Item]) -> str:
        """``response.done``: these calls want their outputs appended."""
        required = required_inputs(open_items)
        return self._encode(events.ResponseDone, response_id=self.id, reason="waiting_for_append", required=required)

    def accept_steer(self, steer: Steer) -> str:
        """``response.steer.accepted``, in this response's numbering."""
        return self._encode(events.SteerAccepted, steer=steer.wire())

    def keep_steer(self, steer: Steer, open_items: list[Item]) -> str:
        """``response.steer.pending``: the one kind of event that may follow a terminal one."""
        required = required_inputs(open_items)
        return self._encode(
            events.SteerPending, steer=steer.wire(), reason="waiting_for_required_input", required_input=required
        )

    def refuse_steer(self, steer: Steer, error: dict[str, Any]) -> str:
        """``response.steer.failed``, with the input."""
        return self._encode(events.SteerFailed, steer=steer.returned(), error=error)

    @property
    def is_within_call(self) -> bool:
        """Whether a tool call is half said: no place to stop."""
        return bool(self._calls or self.hosted.said)

    def end(self) -> str:
        """The one terminal event of a closed turn."""
        event = events.terminal_event(self.response)
        return self._encode(event, response=events.encode_response(self.response))

    def fail(self, error: ApiError) -> str:
        """``response.failed``, after ``begin()``, even of a closed turn; nothing follows. Open items stay open."""
        self.response["status"] = "failed"
        self.response["completed_at"] = None
        self.response["incomplete_details"] = None
        self.response["error"] = response_error(error)
        return self._encode(events.ResponseFailed, response=events.encode_response(self.response))

    @property
    def status(self) -> str:
        return str(self.response["status"])

    @property
    def incomplete_reason(self) -> str:
        """Why the response is incomplete, or an empty string."""
        details = self.response["incomplete_details"]
        return str(details["reason"]) if details else ""

    @property
    def output(self) -> list[Item]:
        """The finished items, in order of their index."""
        output: list[Item] = self.response["output"]
        return output

    @property
    def kept_output(self) -> list[Item]:
        """The same for our own memory and stores: reasoning that the client is not told in full is sealed within."""
        return [self._kept.get(key) or self._output[key] for key in sorted(self._output)]

    def _encode(self, event: Callable[..., events.ServerEvent], **fields: Any) -> str:
        number = self._sequence_number
        self._sequence_number = number + 1
        return events.encode(event(sequence_number=number, stream_id=self._stream_id, **fields))

    def _add_item(self, item: Item, frames: list[str]) -> int:
        index = self._next_output_index
        self._next_output_index = index + 1
        frames.append(self._encode(events.OutputItemAdded, output_index=index, item=item))
        return index

    def _finish_item(self, index: int, item: Item, frames: list[str], kept: Item | None = None) -> None:
        frames.append(self._encode(events.OutputItemDone, output_index=index, item=item))
        self._output[index] = item
        if kept is not None:
            self._kept[index] = kept
        self.response["output"] = [self._output[key] for key in sorted(self._output)]

    def _take_item(self, item: Item, frames: list[str]) -> None:
        """An item that the engine has made: it begins and ends here, under an id of ours."""
        self.hosted.calls_run += is_run_call(item)
        item = {**item, "id": self._new_id(prefix_of(item["type"]))}
        begun = {**item, "status": "in_progress"} if "status" in item else item
        self._finish_item(self._add_item(begun, frames), item, frames)

    def _close_items(self, status: str) -> list[str]:
        frames: list[str] = []
        self._close_block(frames, status)
        for index in sorted(self._calls):
            self._close_call(index, frames, status)
        self.hosted.close(frames, status)
        return frames

    def _continue_block(self, kind: str, text: str, frames: list[str], logprobs: Sequence[dict[str, Any]] = ()) -> None:
        if not text:
            # Some engines begin with an empty piece. It must not open a message before a call.
            return
        block = self._block
        if block is None or block.kind != kind:
            block = self._open_block(kind, frames)
        block.pieces.append(text)
        if logprobs:
            block.logprobs += logprobs
            told = without_bytes(logprobs)
            frames.append(self._encode(events.OutputTextDelta, delta=text, logprobs=told, **block.place))
        elif kind != "untold":
            frames.append(self._encode(_DELTA_EVENTS[kind], delta=text, **block.place))

    def _open_block(self, kind: str, frames: list[str]) -> "_TextBlock":
        is_reasoning = kind in _REASONING_FORMS
        previous = self._block
        if previous is not None and not is_reasoning and previous.kind not in _REASONING_FORMS:
            # Text after a refusal, or the reverse: a second part of the same message.
            self._close_part(previous, frames, "completed")
            block = _TextBlock(kind, previous.item, previous.output_index, previous.parts)
        else:
            self._close_block(frames, "completed")
            if is_reasoning:
                item: Item = {"id": self._new_id("rs"), "type": "reasoning", "summary": []}
            else:
                item = {
                    "id": self._new_id("msg"),
                    "type": "message",
                    "status": "in_progress",
                    "role": "assistant",
                    "content": [],
                }
            block = _TextBlock(kind, item, self._add_item(item, frames), [])
        self._block = block
        self._open_part(block, frames)
        return block

    def _open_part(self, block: "_TextBlock", frames: list[str]) -> None:
        if block.kind == "summary_text":
            event: Callable[..., events.ServerEvent] = events.ReasoningSummaryPartAdded
        else:
            event = events.ContentPartAdded
        if block.kind != "untold":
            frames.append(self._encode(event, part=_part(block.kind, ""), **block.place))

    def _close_part(self, block: "_TextBlock", frames: list[str], status: str) -> None:
        text = block.text
        if block.kind == "untold":
            text = concise(text) if self._is_summarised else ""
            if not text:
                return
            block.kind = "summary_text"
            self._open_part(block, frames)
            frames.append(self._encode(events.ReasoningSummaryTextDelta, delta=text, **block.place))
        part = _part(block.kind, text)
        block.parts.append(part)
        if block.kind == "output_text":
            part["annotations"] = [*block.annotations, *citations(text, self.sources)]
            part["logprobs"] = block.logprobs
            for index, annotation in enumerate(part["annotations"]):
                where = {**block.place, "annotation_index": index}
                frames.append(self._encode(events.OutputTextAnnotationAdded, annotation=annotation, **where))
            told = without_bytes(block.logprobs)
            frames.append(self._encode(events.OutputTextDone, text=text, logprobs=told, **block.place))
        elif block.kind == "refusal":
            frames.append(self._encode(events.RefusalDone, refusal=text, **block.place))
        elif block.kind == "reasoning_text":
            frames.append(self._encode(events.ReasoningTextDone, text=text, **block.place))
        else:
            frames.append(self._encode(events.ReasoningSummaryTextDone, text=text, **block.place))
            cut_off = UNSET if status == "completed" else status
            frames.append(self._encode(events.ReasoningSummaryPartDone, part=part, status=cut_off, **block.place))
            return
        frames.append(self._encode(events.ContentPartDone, part=part, **block.place))

    def _close_block(self, frames: list[str], status: str) -> None:
        block = self._block
        if block is None:
            return
        self._block = None
        self._close_part(block, frames, status)
        is_reasoning = block.kind in _REASONING_FORMS
        field = "content" if block.kind == "reasoning_text" or not is_reasoning else "summary"
        item = {**block.item, field: block.parts}
        if not is_reasoning or status == "incomplete":
            # A reasoning item says so only when it was cut off.
            item["status"] = status
        if is_reasoning and (self._includes_sealed or block.kind != "reasoning_text"):
            sealed = {**item, "encrypted_content": self._seal(block.text)}
            if self._includes_sealed:
                item = sealed
            else:
                self._kept[block.output_index] = sealed
        self._finish_item(block.output_index, item, frames)

    def _start_call(self, start: CallStart, frames: list[str]) -> None:
        if start.index in self._calls:
            self._close_call(start.index, frames, "completed")
        call_id = start.call_id
        if not call_id or call_id in self._call_ids:
            # Some engines call all their calls the same. Outputs are told apart by this id.
            call_id = self._new_id("call")
        self._call_ids.add(call_id)
        kind = "custom_tool_call" if start.custom else "function_call"
        item: Item = {
            "id": self._new_id("ctc" if start.custom else "fc"),
            "type": kind,
            "status": "in_progress",
            "call_id": call_id,
            "name": start.name,
            "input" if start.custom else "arguments": "",
        }
        if start.namespace is not None:
            item["namespace"] = start.namespace
        self._calls[start.index] = _Call(item, self._add_item(item, frames), is_custom=start.custom)

    def _continue_call(self, delta: CallArguments, frames: list[str]) -> None:
        call = self._calls[delta.index]
        call.pieces.append(delta.text)
        event = events.CustomToolCallInputDelta if call.is_custom else events.FunctionCallArgumentsDelta
        frames.append(self._encode(event, item_id=call.item["id"], output_index=call.output_index, delta=delta.text))

    def _close_call(self, index: int, frames: list[str], status: str) -> None:
        call = self._calls[index]
        if not call.pieces and not call.is_custom and status == "completed":
            # A tool without parameters, called with nothing: clients parse the arguments as JSON.
            self._continue_call(CallArguments(index, "{}", 0), frames)
        del self._calls[index]
        text = "".join(call.pieces)
        place = {"item_id": call.item["id"], "output_index": call.output_index}
        if call.is_custom:
            frames.append(self._encode(events.CustomToolCallInputDone, input=text, **place))
        else:
            frames.append(self._encode(events.FunctionCallArgumentsDone, arguments=text, **place))
        field = "input" if call.is_custom else "arguments"
        self._finish_item(call.output_index, {**call.item, "status": status, field: text}, frames)


class _TextBlock:
    """An open content or summary part, and the item it belongs to."""

    __slots__ = ("kind", "item", "output_index", "parts", "place", "pieces", "logprobs", "annotations")

    def __init__(self, kind: str, item: Item, output_index: int, parts: list[dict[str, Any]]) -> None:
        self.kind = kind
        self.item = item
        self.output_index = output_index
        self.parts = parts
        """Those before this one."""
        position = "summary_index" if kind in ("summary_text", "untold") else "content_index"
        self.place = {"item_id": item["id"], "output_index": output_index, position: len(parts)}
        """What every event of this part says of where it is."""
        self.pieces: list[str] = []
        self.annotations: list[dict[str, Any]] = []
        self.logprobs: list[dict[str, Any]] = []

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class _Call:
    """An open tool call."""

    __slots__ = ("item", "output_index", "is_custom", "pieces")

    def __init__(self, item: Item, output_index: int, *, is_custom: bool) -> None:
        self.item = item
        self.output_index = output_index
        self.is_custom = is_custom
        self.pieces: list[str] = []


_DELTA_EVENTS: dict[str, Callable[..., events.ServerEvent]] = {
    "output_text": events.OutputTextDelta,
    "refusal": events.RefusalDelta,
    "reasoning_text": events.ReasoningTextDelta,
    "summary_text": events.ReasoningSummaryTextDelta,
}
_REASONING_FORMS = frozenset({"reasoning_text", "summary_text", "untold"})


def without_bytes(logprobs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """As the events of text carry them. Source: the official types, where only parts have ``bytes``."""
    return [
        {
            "token": one["token"],
            "logprob": one["logprob"],
            "top_logprobs": [{"token": top["token"], "logprob": top["logprob"]} for top in one["top_logprobs"]],
        }
        for one in logprobs
    ]


def _part(kind: str, text: str) -> dict[str, Any]:
    if kind == "output_text":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    if kind == "refusal":
        return {"type": "refusal", "refusal": text}
    return {"type": kind, "text": text}
