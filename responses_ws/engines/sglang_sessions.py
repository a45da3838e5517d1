"""SGLang's streaming sessions: the server keeps what a chain has said, and is told new ids only."""

import asyncio
import logging
from uuid import uuid4

import msgspec

from responses_ws.rendering.tokens import TokenLog

from .base import EngineError
from .http import HttpClient

logger = logging.getLogger(__name__)

SECONDS_KEPT = 600.0
"""A session that is not used for so long is closed by the server."""
SECONDS_EARLIER = 10.0  # than the server we take it for closed
SECONDS_TO_OPEN = 5.0
SECONDS_UNTIL_NEXT_TRY = 60.0
"""After a session that could not be opened: the server may have been started without them."""

Key = tuple[str | None, str | None]
"""Organisation and chain."""


class Session:
    """What one session of the server holds."""

    __slots__ = ("id", "key", "prompt", "sampled", "is_busy", "used_at")

    def __init__(self, key: Key) -> None:
        self.id = f"chain-{uuid4().hex}"
        self.key = key
        self.prompt = TokenLog()
        """Of its last request that has ended by itself."""
        self.sampled: list[int] = []
        """The answer to it."""
        self.is_busy = True
        """It takes one request at a time."""
        self.used_at = 0.0

    def __len__(self) -> int:
        return len(self.prompt) + len(self.sampled)


class Sessions:
    """The open sessions of one engine, ``limit`` at most: those used last."""

    def __init__(self, client: HttpClient, root: str, limit: int) -> None:
        self._client = client
        self._root = root
        self._limit = limit
        self._by_key: dict[Key, Session] = {}
        """Those used last at the end."""
        self._opens_again_at = 0.0

    async def take(self, key: Key, prompt: TokenLog) -> Session | None:
        """A session that holds a beginning of ``prompt``, maybe none of it, for one request; None: there is none.

        `give_back` it, or `drop` it.
        """
        now = asyncio.get_running_loop().time()
        session = self._by_key.get(key)
        if session is not None:
            if session.is_busy:
                return None
            is_kept = now < session.used_at + SECONDS_KEPT - SECONDS_EARLIER
            if is_kept and len(session) < len(prompt) and prompt.begins_with(session.prompt, session.sampled):
                session.is_busy = True
                return session
            # A fork, or a log that was cut back: a session cannot be.
            self.drop(session)
        return await self._opened(key, now)

    def give_back(self, session: Session, held: tuple[TokenLog, list[int]] | None) -> None:
        """Its request is over. ``held``: prompt and answer; None if it was left: then it holds what it held before."""
        session.is_busy = False
        session.used_at = asyncio.get_running_loop().time()
        if held is not None:
            session.prompt, session.sampled = held
        if self._by_key.get(session.key) is session:
            self._by_key[session.key] = self._by_key.pop(session.key)

    def drop(self, session: Session) -> None:
        if self._by_key.get(session.key) is session:
            del self._by_key[session.key]
        self._client.tell(f"{self._root}/close_session", msgspec.json.encode({"session_id": session.id}))

    def close(self) -> None:
        for session in list(self._by_key.values()):
            self.drop(session)

    async def _opened(self, key: Key, now: float) -> Session | None:
        if now < self._opens_again_at or not self._has_room():
            return None
        session = self._by_key[key] = Session(key)
        asked = {
            "session_id": session.id,
            "streaming": True,
            "timeout": SECONDS_KEPT,
            # Required, and read by nobody.
            "capacity_of_str_len": 2**31 - 1,
        }
        try:
            await self._client.ask(f"{self._root}/open_session", msgspec.json.encode(asked), seconds=SECONDS_TO_OPEN)
        except BaseException as exc:
            self.drop(session)
            if not isinstance(exc, EngineError):
                raise
            self._opens_again_at = now + SECONDS_UNTIL_NEXT_TRY
            logger.warning("SGLang opens no session, needs --enable-streaming-session: %s", exc)
            return None
        return session

    def _has_room(self) -> bool:
        if len(self._by_key) >= self._limit:
            idle = next((session for session in self._by_key.values() if not session.is_busy), None)
            if idle is None:
                return False
            self.drop(idle)
        return True
