"""Named points at which a test breaks this process: the steps of a turn and of its billing, one before and one after.

``RESPONSES_WS_FAULT=end.durable:1:kill`` kills the process, with SIGKILL, the first time it passes that point. The
actions are ``kill``; ``raise``: a `Fault`; ``cancel``: the task that passes; ``sleep:SECONDS``: the thread, and with it
the event loop where there is one. Without the variable a point costs one comparison.
"""

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Iterator

import msgspec

POINTS = (
    # Admission: rates, nothing durable yet.
    "admission.before",
    "admission.after",
    # A background response is accepted, in the writer's thread between them.
    "queue.before",
    "queue.after",
    # Another process takes it over: before, within its transaction, and durable.
    "claim.before",
    "claim.written",
    "claim.after",
    # The engine is called, and has taken the call.
    "engine.before",
    "engine.after",
    # The row of the usage record: before its transaction, within it, and durable.
    "row.before",
    "row.written",
    "row.durable",
    # The first output, and every run of events that has gone out (the 1st is usually `created`).
    "output.before",
    "output.after",
    # Counts of a running turn.
    "checkpoint.before",
    "checkpoint.written",
    # The end: before its transaction, within it at its beginning and its end, and durable.
    "end.before",
    "end.begun",
    "end.written",
    "end.durable",
    # With a journal: told before it is durable.
    "journal.written",
    # The copy of a stored chain in Redis.
    "copy.before",
    "copy.after",
    # The terminal event, before it is handed to the door and when it has left.
    "terminal.before",
    "terminal.after",
    # A kick of billing, in the dispatcher's thread.
    "kick.before",
    "kick.after",
    # The billing task, and the steps of its transaction.
    "sweep.before",
    "bill.selected",
    "bill.journalled",
    "bill.drawn",
    "bill.balanced",
    "bill.marked",
    "bill.committed",
    "sweep.after",
    # An invoice is finalised: the steps of its transaction, and durable; and the entries of a void one are let go.
    "invoice.numbered",
    "invoice.claimed",
    "invoice.lined",
    "invoice.posted",
    "invoice.written",
    "invoice.committed",
    "invoice.released",
    # The rest of a grant is written off.
    "expiry.written",
    # Sinks are told: nothing claimed, claimed, one message has arrived, and noted.
    "deliver.before",
    "deliver.claimed",
    "deliver.told",
    "deliver.noted",
    # Records of processes that died.
    "reap.before",
    "reap.after",
    # The journal of a process that died, one record of it.
    "replay.before",
    "replay.after",
)
ACTIONS = ("kill", "raise", "cancel", "sleep")


class Fault(Exception):
    """What a point raises when it is told to."""


class _Armed(msgspec.Struct):
    point: str
    action: str
    seconds: float
    passes: Iterator[int]
    """How often the point has still to be passed: ends at 0, and goes on below."""


def read(text: str) -> "_Armed | None":
    """``name:n:action[:seconds]``; nothing from an empty text. Raises ValueError: it says something else."""
    if not text:
        return None
    name, number, action, *rest = text.split(":")
    if name not in POINTS:
        raise ValueError(f"no fault point is called {name!r}")
    if action not in ACTIONS or len(rest) != (action == "sleep"):
        raise ValueError(f"not an action of a fault point: {':'.join([action, *rest])!r}")
    return _Armed(name, action, float(rest[0]) if rest else 0.0, itertools.count(int(number) - 1, -1))


_armed = read(os.environ.get("RESPONSES_WS_FAULT", ""))


def arm(text: str) -> None:
    """Take this in the place of what the environment said when the process began."""
    global _armed
    _armed = read(text)


def faultpoint(name: str) -> None:
    """Break here, if this is where the process is to break."""
    if _armed is not None:
        _pass(_armed, name)


async def sent(name: str) -> None:
    """A point behind something that was sent: sockets write when the event loop comes round."""
    if _armed is not None:
        if name == _armed.point:
            await asyncio.sleep(0)
        _pass(_armed, name)


def _pass(armed: _Armed, name: str) -> None:
    assert name in POINTS, f"the fault point {name} is not declared"
    if name != armed.point or next(armed.passes):
        return
    if armed.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif armed.action == "sleep":
        time.sleep(armed.seconds)
    elif armed.action == "raise":
        raise Fault(name)
    else:
        task = asyncio.current_task()
        assert task is not None, f"the fault point {name} is not in a task"
        task.cancel()
