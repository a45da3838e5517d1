"""What is kept in the journal of this process until the database has it: how turns began, and how they ended."""

import logging
from concurrent.futures import Future
from typing import Any

from responses_ws.conf import app_settings
from responses_ws.runtime.journal import File, journal

from .ending import Ending, encoded

logger = logging.getLogger(__name__)


def may_run_ahead() -> bool:
    """Whether a client may be told of what only the journal has."""
    return app_settings.DURABILITY == "journal" and bool(app_settings.JOURNAL_DIR)


def kept(ending: Ending) -> File | None:
    """The file that has it now; None where the journal cannot keep it. Raises what `encoded` raises."""
    try:
        return journal.append(encoded(ending))
    except OSError as exc:
        logger.error("The journal cannot be written, turns wait for the database: %s", exc)
        return None


async def synced(file: File) -> bool:
    """Whether the disk has it now."""
    try:
        await file.sync()
    except OSError as exc:
        logger.error("The journal cannot be synced, ends wait for the database: %s", exc)
        return False
    return True


def settle_when_written(writing: "Future[Any]", *files: File) -> None:
    """What the journal has is news until the database has it, too."""

    def settle(done: "Future[Any]") -> None:
        if done.exception() is None:
            for file in files:
                file.settle()

    writing.add_done_callback(settle)
