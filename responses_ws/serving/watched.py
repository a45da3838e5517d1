"""A running turn, for people who watch."""

import time
from collections.abc import Hashable

from responses_ws.runtime import live
from responses_ws.runtime.live import SeenConnection, SeenTurn

from .context import Asked
from .mailbox import Mailbox
from .run import Run
from .sampling import Sign, Word


class Watched:
    """What can be seen of a turn from outside, read off what it counts anyway."""

    __slots__ = ("_asked", "_mailbox", "_agent", "connection", "run")

    def __init__(self, asked: Asked, mailbox: Mailbox[Word], run: Run | None = None) -> None:
        self._asked = asked
        self._mailbox = mailbox
        self._agent = live.user_agent.get()
        self.connection: Hashable = None if asked.chains is None else id(asked.chains)
        self.run = run
        """Once its context is known; with a steer its successor's."""

    @property
    def response_id(self) -> str:
        return "" if self.run is None else self.run.record.response_id

    def cancel(self) -> None:
        asked = self._asked if self.run is None else self.run.asked
        asked.why_cancelled = "cancelled_by_the_operator"
        self._mailbox.put(Sign.CANCELLED)

    def seen(self) -> SeenTurn:
        asked, run = self._asked, self.run
        if run is None:
            record, model, tokens, is_background = None, asked.request.model, 0, False
        else:
            asked, record, model = run.asked, run.record, run.response["model"]
            tokens = 0 if record.is_closed else record.count().output_tokens
            is_background = bool(run.response["background"])
        first_ms = None if record is None else record.first_token_ms
        return SeenTurn(
            response_id=self.response_id,
            model=str(model or ""),
            lane=asked.stream_id,
            seconds=time.perf_counter() - asked.received_at,
            first_token_seconds=None if first_ms is None else first_ms / 1000,
            tokens=tokens,
            is_background=is_background,
        )

    def seen_alone(self) -> SeenConnection:
        turn, principal = self.seen(), self._asked.principal
        return SeenConnection(
            id=turn.response_id,
            transport=self._asked.transport,
            project_id=principal.project_id,
            api_key_id=principal.api_key_id,
            key=principal.name,
            agent=self._agent,
            seconds=turn.seconds,
            turns=[turn],
        )
