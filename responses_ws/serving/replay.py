"""What dead processes of this machine have promised, and their database never heard of."""

import asyncio
import logging
from pathlib import Path

from django.db import transaction

from responses_ws.conf import app_settings
from responses_ws.protocol.errors import ApiError
from responses_ws.runtime import dbpool
from responses_ws.runtime.faults import faultpoint
from responses_ws.runtime.journal import legacies
from responses_ws.runtime.sql import UNAVAILABLE

from .ending import decoded, keep_word, reopen

logger = logging.getLogger(__name__)

SECONDS_BETWEEN = 10.0


def replay() -> int:
    """Write what lies in the journals of dead processes. Returns how many records. Uses the ORM: not on the loop.

    Any number of processes may do it at once, and again: a lock gives each file to one of them, and an end that is
    there already is left alone.
    """
    total = 0
    for legacy in legacies(Path(app_settings.JOURNAL_DIR)) if app_settings.JOURNAL_DIR else ():
        is_broken = False
        for record in legacy.records:
            faultpoint("replay.before")
            try:
                told = decoded(record)
                with transaction.atomic():
                    if told.fields:
                        keep_word(told)
                    else:
                        reopen(told)
                total += 1
            except UNAVAILABLE:
                # The file stays for the next one who comes by.
                raise
            except Exception as exc:
                # Its content does not belong into a log, and the text of an exception may quote it.
                logger.error("A record of %s cannot be replayed: %s", legacy.path.name, type(exc).__name__)
                is_broken = True
            faultpoint("replay.after")
        if is_broken:
            legacy.set_aside()
        else:
            legacy.delete()
    if total:
        logger.warning("Replayed %d records of responses from the journals of processes that died", total)
    return total


async def keep_replaying() -> None:
    """Look for what dead processes have left: now, and from time to time."""
    while app_settings.JOURNAL_DIR:
        try:
            await dbpool.run(replay)
        except ApiError:
            # The database is down, which is logged where it is noticed.
            pass
        except OSError as exc:
            logger.error("JOURNAL_DIR cannot be read: %s", exc)
        await asyncio.sleep(SECONDS_BETWEEN)
