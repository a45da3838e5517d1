"""Settings of a server that is watched: what it opens for writing is noted, and a moderation endpoint looks at all."""

import os
import sys
from typing import Any

from tests.live_settings import *  # noqa: F403
from tests.live_settings import RESPONSES_WS

CELERY_BROKER_URL = os.environ["CELERY_BROKER_URL"]
RESPONSES_WS["SAFETY"] = [
    {
        "CLASSIFIER": "responses_ws.safety.moderation.ModerationEndpoint",
        "BASE_URL": os.environ["MODERATION_URL"],
        "FAIL": "open",
        "FLAG": {"spam": 0.1},
        "REFUSE": {"violence": 0.5},
    }
]
_WRITES = os.O_WRONLY | os.O_RDWR


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    # A temporary file has no name that anybody could look for later: its directory is what is opened.
    if event == "open" and arguments[2] & _WRITES:
        os.write(_opened, f"{arguments[0]}\n".encode())


_opened = os.open(os.environ["OPENED"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
sys.addaudithook(_note)
