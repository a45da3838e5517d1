"""WebSocket mode: reads frames, obeys the connection's commands, writes frames."""

import asyncio
import logging
import time
from collections.abc import Hashable, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

from channels.exceptions import StopConsumer
from channels.generic.websocket import AsyncWebsocketConsumer

from responses_ws.conf import app_settings
from responses_ws.connection.commands import Close, Command, Send, StartTurn, Tell
from responses_ws.connection.state import Connection
from responses_ws.protocol.client_events import InvalidCreate, ResponseCreate
from responses_ws.protocol.errors import ApiError, InvalidRequest, ServerError, Unauthorized, websocket_error
from responses_ws.runtime import connections
from responses_ws.runtime.live import MOST_AGENT, SeenConnection, SeenTurn
from responses_ws.runtime.protocols import TEXTS
from responses_ws.runtime.stamps import encoded, stamps
from responses_ws.serving.admission import Principal
from responses_ws.serving.context import Asked
from responses_ws.serving.mailbox import Mailbox
from responses_ws.serving.sampling import Word
from responses_ws.serving.turns import run_turn
from responses_ws.stores.fallback import SealedFallback

from . import control
from .authentication import authenticator
from .browsers import chosen

logger = logging.getLogger(__name__)

FALLBACK_HEADER = "x-responses-ws-fallback"
"""The key of what a client can find again after its socket: told at the handshake, and brought back at the next."""
_ROLLOUT = "responses_rollout=v1"
"""In ``OpenAI-Beta`` at the handshake: opts in to responses that wait for appended outputs."""


class ResponsesConsumer(AsyncWebsocketConsumer):
    """One socket. `Connection` decides, `run_turn` serves; here is only the coming and going.

    Every turn is a task of its own, so that frames and the disconnect are seen while one runs. A turn writes its
    frames directly: the server's ``send`` is the brake for an engine that is faster than its reader.
    """

    # A dead Redis must not close sockets, as it does to every consumer that listens to a channel layer.
    channel_layer_alias = None

    project_id: int
    api_key_id: int | None
    id: str
    _connection: Connection

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Read without the task per message that the stock method makes to hear a channel layer, too."""
        self.scope, self.base_send = scope, send
        # What is ready together leaves in one write, where the server can do that.
        self._is_grouped = TEXTS in scope.get("extensions", ())
        with suppress(StopConsumer):
            while True:
                await self.dispatch(await receive())

    async def dispatch(self, message: dict[str, Any]) -> None:
        """Handle an ASGI message without the thread hop per message that the stock method makes."""
        kind = message["type"]
        if kind == "websocket.receive":
            await self.websocket_receive(message)
        elif kind == "websocket.connect":
            await self.websocket_connect(message)
        elif kind == "websocket.disconnect":
            await self._leave()
            raise StopConsumer

    async def connect(self) -> None:
        limits = app_settings.limits
        now = time.monotonic()
        self._headers: dict[str, str] = self.scope["request_headers"]
        self.project_id = self.scope["principal"].project_id
        self.api_key_id = self.scope["principal"].api_key_id
        self.id = self.scope["connection_id"]
        self._opened_at = now
        opted_in = _ROLLOUT in self._headers.get("openai-beta", "")
        self._connection = Connection(limits, opened_at=now, may_append=opted_in)
        self._mailboxes: dict[str | None, Mailbox[Word]] = {}
        self._turns: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._why_left = "client_left"
        loop = asyncio.get_running_loop()
        self._timers = [loop.call_later(limits.connection_seconds, self._is_old, limits.connection_grace_seconds)]
        # For servers without a lifespan; elsewhere this process listens already.
        await control.listen()
        connections.opened(self)
        headers = encoded(stamps(self.id, self.scope["asked_at"]))
        self._fallback: SealedFallback | None = None
        if self.scope["principal"].sealed_fallback and app_settings.REDIS_URL:
            self._fallback = SealedFallback(self._headers.get(FALLBACK_HEADER))
            headers.append((FALLBACK_HEADER.encode(), self._fallback.key.encode()))
        await self.accept(chosen(self.scope.get("subprotocols", ())), headers=headers)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if text_data is None:
            error = InvalidRequest("Only text frames are understood here.", code="invalid_event")
            await self._obey([Send(websocket_error(error)), Close(1003, "text frames only")])
            return
        if not _fits(text_data, app_settings.limits.max_frame_bytes):
            await self._obey([Close(1009, "message too big")])
            return
        await self._obey(self._connection.receive(text_data, now=time.monotonic()))

    @property
    def waiting_turns(self) -> int:
        return self._connection.waiting_turns

    @property
    def lanes(self) -> int:
        return self._connection.lanes

    @property
    def active_turns(self) -> int:
        return self._connection.active_turns

    @property
    def connection(self) -> Hashable:
        return id(self._connection.chains)

    def seen(self, turns: list[SeenTurn]) -> SeenConnection:
        connection = self._connection
        return SeenConnection(
            id=self.id,
            transport="websocket",
            project_id=self.project_id,
            api_key_id=self.api_key_id,
            key=self.scope["principal"].name,
            agent=self._headers.get("user-agent", "")[:MOST_AGENT],
            seconds=time.monotonic() - self._opened_at,
            lanes=connection.lanes,
            waiting=connection.waiting_turns,
            held_bytes=connection.held_bytes,
            items=connection.chains.longest,
            turns=turns,
        )

    def restart(self, seconds: float) -> None:
        """The process is about to end."""
        self._connection.restart()
        self._timers.append(asyncio.get_running_loop().call_later(seconds, self._time_is_up))

    def forget(self, response_ids: set[str]) -> None:
        """Responses were deleted elsewhere."""
        self._connection.chains.forget(response_ids)

    async def recheck(self) -> None:
        """The rights of its key have changed. Without any it closes: now, or when running turns have finished."""
        try:
            await self._authenticate()
        except Unauthorized:
            if app_settings.CUT_REVOKED:
                self.end(1008, "key revoked")
            else:
                await self._obey(self._connection.close_when_idle(1008, "key revoked"))

    def end(self, code: int, reason: str) -> None:
        """Close from our side. Turns that still run are told by the disconnect that follows."""
        self._keep(self._obey([Close(code, reason)]))

    async def _obey(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if self._is_closed:
                return
            if isinstance(command, StartTurn):
                self._keep(self._run(command.lane, command.create))
            elif isinstance(command, Send):
                await self._write([command.frame])
            elif isinstance(command, Tell):
                self._mailboxes[command.lane].put(command.word)
            else:
                await self._close(command)

    async def _send(self, message: Any) -> None:
        if self._is_closed:
            return
        try:
            await self.base_send(message)
        except OSError:
            # The client has gone; the message that says so is still on its way to us.
            self._is_closed = True

    async def _write(self, frames: Sequence[str]) -> None:
        """Frames that are ready together."""
        if self._is_grouped:
            await self._send({"type": "websocket.send", "texts": frames})
            return
        for frame in frames:
            await self._send({"type": "websocket.send", "text": frame})

    async def _close(self, command: Close) -> None:
        self._is_closed = True
        self._why_left = command.reason.replace(" ", "_")
        try:
            await self.base_send({"type": "websocket.close", "code": command.code, "reason": command.reason})
        except OSError:
            pass

    def _keep(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._turns.add(task)
        task.add_done_callback(self._turns.discard)

    async def _run(self, lane: str | None, create: ResponseCreate | InvalidCreate) -> None:
        """One turn to its end, whatever that is; the frame boundary catches what is nobody's."""
        try:
            await self._serve(lane, create)
        except ApiError as error:
            await self._obey([Send(websocket_error(error, stream_id=lane))])
        except Exception:
            logger.exception("A turn broke outside of its own error handling")
            failure = ServerError("The server had an error while processing your request.")
            await self._obey([Send(websocket_error(failure, stream_id=lane))])
        await self._obey(self._connection.turn_ended(lane, now=time.monotonic()))

    async def _serve(self, lane: str | None, create: ResponseCreate | InvalidCreate) -> None:
        chains = self._connection.chains
        if isinstance(create, InvalidCreate):
            chains.evict_failed(lane, create.previous_response_id)
            raise create.error
        # Rights are checked on every turn: a socket lives for an hour, a key may be revoked meanwhile.
        principal = await self._authenticate()
        self._mailboxes[lane] = Mailbox()
        asked = Asked(
            principal=principal,
            request=create,
            transport="websocket",
            stream_id=lane,
            chains=chains,
            fallback=self._fallback if principal.sealed_fallback else None,
            mailbox=self._mailboxes[lane],
            may_append=self._connection.may_append,
            recheck=self._authenticate,
            began=partial(self._connection.response_began, lane),
            ended=self._connection.response_ended,
            why_left=lambda: self._why_left,
        )
        async with aclosing(run_turn(asked)) as runs:
            async for frames in runs:
                await self._write(frames)
                if self._is_closed:
                    return

    async def _authenticate(self) -> Principal:
        return await authenticator().authenticate(self._headers)

    def _is_old(self, grace_seconds: float) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(grace_seconds, self._grace_is_over))
        self._time_is_up()

    def _time_is_up(self) -> None:
        self._keep(self._obey(self._connection.time_is_up()))

    def _grace_is_over(self) -> None:
        # Not 1000: with that code a client's iterator would end as if the response were whole.
        self.end(1011, "connection limit reached")

    async def _leave(self) -> None:
        """The client has gone: free the engines, forget the state. What was made is recorded by the turns."""
        if not hasattr(self, "_turns"):
            return
        self._is_closed = True
        connections.closed(self)
        for timer in self._timers:
            timer.cancel()
        turns = set(self._turns)
        for task in turns:
            task.cancel()
        if turns:
            await asyncio.wait(turns)


def _fits(text: str, limit: int) -> bool:
    """Whether a frame has at most so many bytes; encoded only where its characters do not tell."""
    return len(text) <= limit and (4 * len(text) <= limit or text.isascii() or len(text.encode()) <= limit)
