"""The demo project for benchmarks, with one response whose reading takes half a second in the database's thread."""

import time

from benchmarks.idle import SLOW_ID, SLOW_SECONDS
from project.asgi import application
from responses_ws.stores import rows

__all__ = ["application"]


_load = rows.load


def _slow_load(project_id: int, response_id: str):
    if response_id == SLOW_ID:
        time.sleep(SLOW_SECONDS)
    return _load(project_id, response_id)


rows.load = _slow_load
