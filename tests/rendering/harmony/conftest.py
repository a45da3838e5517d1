"""One renderer for all tests: its vocabulary takes a second to load."""

from datetime import date
from typing import Any

import pytest


@pytest.fixture(scope="session")
def renderer() -> Any:
    # Where the extra is not installed, the modules that use this are skipped.
    from responses_ws.rendering.harmony.renderer import HarmonyRenderer
    from responses_ws.runtime.harmony import encoding_of, packaged_vocabulary

    encoding = encoding_of(packaged_vocabulary().read_bytes())
    return HarmonyRenderer(encoding, today=lambda: date(2026, 11, 29))
