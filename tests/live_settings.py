"""The demo project's settings for servers that tests start: with scaled limits, and a log of every token made."""

import json
import os

from project.settings import *  # noqa: F403
from project.settings import RESPONSES_WS

# Tests look for rows when a turn has ended. Those of the journal set it.
RESPONSES_WS["DURABILITY"] = os.environ.get("DURABILITY", "commit")
# These two pass by themselves on a busy machine; the tests of what then happens set them.
RESPONSES_WS["LIMITS"] = {"created_seconds": 10.0, "redis_seconds": 10.0} | json.loads(os.environ["LIMITS"])
RESPONSES_WS["TOOLS"] = json.loads(os.environ.get("TOOLS", "{}"))
RESPONSES_WS["ENGINES"]["scripted"]["TOKEN_LOG"] = os.environ["TOKEN_LOG"]
for name, engine in json.loads(os.environ.get("MORE_ENGINES", "{}")).items():
    RESPONSES_WS["ENGINES"][name] = engine
    RESPONSES_WS["MODELS"][name] = {"ENGINE": name, "UPSTREAM": "scripted"}
RESPONSES_WS["MODELS"] |= json.loads(os.environ.get("MORE_MODELS", "{}"))
RESPONSES_WS["BACKGROUND_RUNNERS"] = os.environ.get("BACKGROUND_RUNNERS") == "1"
RESPONSES_WS["PLAYGROUND"] = os.environ.get("PLAYGROUND") == "1"
RESPONSES_WS["RATES"] = json.loads(os.environ.get("RATES", "{}"))
