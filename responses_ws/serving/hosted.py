"""What runs for the model within its response: hosted tools, listed and called."""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from responses_ws.conf import app_settings
from responses_ws.connection.turn import Turn
from responses_ws.protocol.items import MODEL_OUTPUT, Item
from responses_ws.runtime import background
from responses_ws.tools.base import HostedTool, Job, Outcome, ToolError
from responses_ws.tools.registry import tools

from .context import Asked, Context
from .mailbox import Mailbox
from .safety import Screening
from .sampling import Errand, Sign, Word

logger = logging.getLogger(__name__)

T = TypeVar("T")

_REFUSED = "Not run: this response may call no more tools. Answer with what there is."
_REST_LEFT_OUT = "\n[The rest was left out: it is too long.]"


class HostedWork:
    """The calls and listings of one response: started here, told through its mailbox, held to their limits.

    Whoever starts something goes on reading the mailbox and hands every `Errand` to ``hear``, as long as it
    ``is_busy``; and `leave`s.
    """

    def __init__(self, asked: Asked, turn: Turn, mailbox: Mailbox[Word]) -> None:
        request = asked.request
        self._include = frozenset(request.include or ())
        self._project_id = asked.principal.project_id
        self._span = asked.span
        self._turn = turn
        self._mailbox = mailbox
        most = app_settings.limits.hosted_calls
        self._calls_left = most if request.max_tool_calls is None else min(request.max_tool_calls, most)
        self.refusals = 0
        """Sampling steps in which the model has called more than it may."""
        self._asked: set[str] = set()
        """Labels of servers that have been asked for their tools: once a response, whatever they answered."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """What runs, by the id of its item."""
        self._keep_alive: asyncio.TimerHandle | None = None

    @property
    def is_busy(self) -> bool:
        return bool(self._tasks)

    def prepare(self, context: Context, items: Sequence[Item]) -> list[str]:
        """Start what has to end before the model is asked: listings, and the calls that ``items`` allow."""
        frames: list[str] = []
        for hosted, tool, label in self._unlisted(context):
            self._asked.add(label)
            item_id = self._turn.hosted.begin({"type": "mcp_list_tools", "server_label": label, "tools": []}, frames)
            self._start(item_id, self._list(item_id, hosted, tool))
        for request_id in _approved(items):
            self._call_approved(context, request_id, frames)
        return frames

    def needs_preparing(self, context: Context, items: Sequence[Item]) -> bool:
        """Whether there is any such thing."""
        if context.asks_compaction:
            return False
        return bool(_approved(items) or self._unlisted(context))

    def _unlisted(self, context: Context) -> list[tuple[HostedTool, dict[str, Any], str]]:
        found = tools.unlisted(context.tools_run_here, context.configuration.listings)
        return [one for one in found if one[2] not in self._asked]

    def run_waiting(self, context: Context) -> list[str]:
        """Start the calls that the model has made. Those beyond the limit end at once, and it is told why."""
        frames: list[str] = []
        calls, self._turn.hosted.waiting = self._turn.hosted.waiting, []
        may_run = max(self._calls_left, 0)
        self.refusals += len(calls) > may_run
        for call in calls[:may_run]:
            function = context.tools.hosted[call.name]
            kind = function.item["type"]
            self._run(call.item_id, kind, function.tool, function.name, call.arguments)
        for call in calls[may_run:]:
            kind = context.tools.hosted[call.name].item["type"]
            self._finish(call.item_id, kind, ToolError(_REFUSED), frames)
        return frames

    async def screened(self, errand: Errand, screening: Screening) -> Errand:
        """What it gave, as model and client may see it. Raises Overloaded."""
        given = errand.result
        if given is None:
            return errand
        if isinstance(given, list):
            # What a server says of its tools is told to the model as it is, or not at all.
            text = "\n".join(f"{one['name']}: {one.get('description', '')}" for one in given)
        else:
            text = given.output if isinstance(given, Outcome) else given.message
        seen = await screening.result(text)
        if seen == text:
            return errand
        if isinstance(given, list):
            return msgspec.structs.replace(errand, result=ToolError("What this server says of its tools was refused."))
        # Nothing that may hold the text again: only what was asked.
        fields = {key: value for key, value in given.fields.items() if key in ("action", "queries")}
        is_error = isinstance(given, ToolError)
        result = ToolError(seen, fields) if is_error else Outcome(output=seen, fields=fields)
        return msgspec.structs.replace(errand, result=result)

    def hear(self, errand: Errand) -> list[str]:
        """The events of something that has happened."""
        frames: list[str] = []
        if errand.word is not None:
            self._turn.hosted.progress(errand.item_id, errand.word, frames)
            return frames
        del self._tasks[errand.item_id]
        if errand.kind == "mcp_list_tools":
            failed = isinstance(errand.result, ToolError)
            fields = {"error": errand.result.message} if failed else {"tools": errand.result}
            self._turn.hosted.finish(errand.item_id, fields, frames, failed=failed)
        else:
            # What came to nothing is not charged, as an answer is not that its engine has failed.
            self._turn.hosted.calls_run -= isinstance(errand.result, ToolError)
            self._finish(errand.item_id, errand.kind, errand.result, frames)
        return frames

    async def leave(self) -> None:
        """Stop whatever still runs."""
        if self._keep_alive is not None:
            self._keep_alive.cancel()
        tasks, self._tasks = self._tasks, {}
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)

    def spoke(self) -> None:
        """An event has gone out: clients' patience begins anew."""
        if self._keep_alive is not None:
            self._keep_alive.cancel()
        seconds = app_settings.limits.keep_alive_seconds
        self._keep_alive = asyncio.get_running_loop().call_later(seconds, self._mailbox.put, Sign.SILENT)

    def _call_approved(self, context: Context, request_id: str, frames: list[str]) -> None:
        requests = (item for item in reversed(context.items) if item.get("type") == "mcp_approval_request")
        asked = next((item for item in requests if item["id"] == request_id), None)
        assert asked is not None, "a response without its request is refused with the input"
        label, name, arguments = asked["server_label"], asked["name"], asked["arguments"]
        begun = {"type": "mcp_call", "server_label": label, "name": name, "approval_request_id": request_id}
        item_id = self._turn.hosted.begin(begun, frames, arguments=arguments)
        tool = tools.labelled(context.tools_run_here, label)
        if self._calls_left <= 0:
            self._finish(item_id, "mcp_call", ToolError(_REFUSED), frames)
        elif tool is None:
            refused = ToolError(f"This request has no tool with the server label {label[:100]!r}.")
            self._finish(item_id, "mcp_call", refused, frames)
        else:
            self._run(item_id, "mcp_call", tool, name, arguments)

    def _run(self, item_id: str, kind: str, tool: dict[str, Any], name: str, arguments: str) -> None:
        self._calls_left -= 1
        # From here on it costs: also where the client leaves before it has ended.
        self._turn.hosted.calls_run += 1
        self._start(item_id, self._call(item_id, kind, tool, name, arguments))

    def _start(self, item_id: str, work: Any) -> None:
        self._tasks[item_id] = asyncio.get_running_loop().create_task(work)

    async def _list(self, item_id: str, hosted: HostedTool, tool: dict[str, Any]) -> None:
        listing: Any
        try:
            listing = await _within(hosted.seconds, hosted.listed(tool))
        except Exception as exc:
            listing = self._error_of(exc, hosted)
        self._mailbox.put(Errand(item_id, "mcp_list_tools", result=listing))

    async def _call(self, item_id: str, kind: str, tool: dict[str, Any], name: str, arguments: str) -> None:
        hosted = tools.find(tool)
        assert hosted is not None, "only tools that somebody answers for are offered"
        of = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": hosted.name, "gen_ai.tool.type": "extension"}
        result: Outcome | ToolError
        try:
            job = Job(
                tool=tool,
                name=name,
                arguments=_decoded(arguments),
                project_id=self._project_id,
                include=self._include,
            )
            with self._span.child(f"execute_tool {hosted.name}", of) as span:
                span.make_current()
                result = await _within(hosted.seconds, hosted.run(job, partial(self._tell, item_id, kind)))
            result = msgspec.structs.replace(result, output=_shortened(result.output, hosted.output_bytes))
        except Exception as exc:
            result = self._error_of(exc, hosted)
        self._mailbox.put(Errand(item_id, kind, result=result))

    def _tell(self, item_id: str, kind: str, word: str) -> None:
        self._mailbox.put(Errand(item_id, kind, word=word))

    def _error_of(self, exc: Exception, hosted: HostedTool) -> ToolError:
        """What the model is told. A broken tool breaks no response: the model can go on without it."""
        if isinstance(exc, ToolError):
            return exc
        if isinstance(exc, TimeoutError):
            return ToolError(f"No answer within {hosted.seconds:g} s.")
        # Not the exception itself: what it says may hold a key.
        logger.error("Response %s: the tool %s has failed: %s", self._turn.id, hosted.name, type(exc).__name__)
        logger.debug("Response %s: how", self._turn.id, exc_info=exc)
        return ToolError("Something went wrong with this tool.")

    def _finish(self, item_id: str, kind: str, result: Outcome | ToolError, frames: list[str]) -> None:
        failed = isinstance(result, ToolError)
        fields = dict(result.fields)
        if isinstance(result, Outcome):
            self._turn.sources |= result.sources
        if kind == "mcp_call" and isinstance(result, Outcome):
            fields["output"] = result.output
        elif kind == "mcp_call" and "error" not in fields:
            content = [{"type": "text", "text": str(result)}]
            fields["error"] = {"type": "mcp_tool_execution_error", "content": content}
        told = result.output if isinstance(result, Outcome) else f"Error: {result.message}"
        kept = None if kind == "mcp_call" else {MODEL_OUTPUT: told}
        self._turn.hosted.finish(item_id, fields, frames, failed=failed, kept=kept)


def _approved(items: Sequence[Item]) -> list[str]:
    """Ids of requests for approval that were granted, and not acted upon: a client may send back all that was said."""
    done = {item.get("approval_request_id") for item in items if item.get("type") == "mcp_call"}
    granted = (item for item in items if item.get("type") == "mcp_approval_response" and item["approve"])
    return [item["approval_request_id"] for item in granted if item["approval_request_id"] not in done]


async def _within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """What the work gives. Once it has had its time, or nobody waits for it any more, it is cancelled, and may take as
    long as it likes to let go. Raises TimeoutError."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
            background.spawn(_let_go(task))
    if not done:
        raise TimeoutError
    return task.result()


async def _let_go(task: "asyncio.Task[Any]") -> None:
    await asyncio.wait({task})
    if not task.cancelled():
        # Nobody wants to know any more.
        task.exception()


def _decoded(arguments: str) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise ToolError("The arguments are not JSON.") from exc
    if not isinstance(decoded, dict):
        raise ToolError("The arguments are not a JSON object.")
    return decoded


def _shortened(text: str, most_bytes: int) -> str:
    # Half of a surrogate pair, as some JSON holds, could not be sent.
    encoded = text.encode("utf-8", "replace")
    rest = _REST_LEFT_OUT if len(encoded) > most_bytes else ""
    return encoded[:most_bytes].decode("utf-8", "ignore") + rest
