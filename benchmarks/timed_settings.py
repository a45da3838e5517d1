"""The demo project's settings for `benchmarks.timed`."""

import json
import os

from project.settings import *  # noqa: F403
from project.settings import DATABASES, RESPONSES_WS

ASGI_APPLICATION = "benchmarks.timed.application"
RESPONSES_WS |= json.loads(os.environ["BENCHMARK_SETTINGS"])
if "pool" in DATABASES["default"]["OPTIONS"]:
    # Several servers share one benchmark's database, each with a schema of its own.
    DATABASES["default"]["OPTIONS"]["options"] = f"-c search_path={os.environ['BENCHMARK_SCHEMA']}"
