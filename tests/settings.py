"""The demo project's settings on a database file of the tests' own."""

import os
import tempfile
from pathlib import Path

os.environ["RESPONSES_WS_VAR"] = tempfile.mkdtemp(prefix="responses_ws_tests_")

from project.settings import *  # noqa: F403
from project.settings import DATABASES, RESPONSES_WS, VAR_DIR

# A file, not memory: the group writer and the pool are threads with connections of their own.
if "sqlite3" in DATABASES["default"]["ENGINE"]:
    DATABASES["default"]["TEST"] = {"NAME": str(Path(VAR_DIR) / "test.sqlite3")}
SECRET_KEY = "tests"

# In messages a word is a token, which tests can count. Those with live servers ask the scripted model in token ids.
RESPONSES_WS["ENGINES"]["scripted"]["TOKEN_IDS"] = False
# Tests look for rows when a turn has ended. Those of the journal set it.
RESPONSES_WS["DURABILITY"] = "commit"
# Where it is tested, it is on: the usage of other tests grows old and is on no invoice.
RESPONSES_WS["INVOICES"] = "off"
RESPONSES_WS["PLAYGROUND"] = True
# What a turn does when these pass is tested where they are set; a busy machine must not get there by itself.
RESPONSES_WS["LIMITS"] = {"created_seconds": 10.0, "redis_seconds": 10.0}

# Since Django 6.1 mail asks for this, and nothing else.
MAILERS = {"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}}
