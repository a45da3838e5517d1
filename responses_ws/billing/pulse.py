"""Whether what bills is alive: usage does not wait for long, and beat is heard of."""

from datetime import datetime, timedelta

import msgspec

from responses_ws.models import Heartbeat, UsageRecord

LATE = timedelta(minutes=1)
"""When usage has waited for too long: the sweep comes every five seconds."""
SILENT = timedelta(minutes=2)
"""When beat has not been heard of for too long: its reaper comes every half minute."""


class Pulse(msgspec.Struct, frozen=True, kw_only=True):
    """What the tables say of billing."""

    unbilled: int
    """Records that wait for the ledger; of very many, not all are counted."""
    waiting: timedelta | None
    """Since the first of them ended; None without any."""
    silence: timedelta | None
    """Since beat was heard of; None where it never was: others may do its work."""

    @property
    def is_late(self) -> bool:
        """No worker takes anything."""
        return self.waiting is not None and self.waiting > LATE

    @property
    def is_silent(self) -> bool:
        """Beat has stopped, or every worker that would hear it."""
        return self.silence is not None and self.silence > SILENT


def take(now: datetime) -> Pulse:
    """Plain ORM."""
    unbilled, oldest = UsageRecord.objects.unbilled().backlog()
    beat = Heartbeat.objects.came_last(Heartbeat.BEAT)
    return Pulse(
        unbilled=unbilled,
        waiting=None if oldest is None else now - oldest,
        silence=None if beat is None else now - beat,
    )


def beat_was_heard() -> None:
    """A task has come that only beat asks for."""
    Heartbeat.objects.came(Heartbeat.BEAT)
