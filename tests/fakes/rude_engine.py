"""The scripted engine, without manners: it blocks the event loop of its process, and takes memory for good."""

import re
import time

from responses_ws.engines.base import ChatRequest
from responses_ws.engines.script import Plan
from responses_ws.engines.scripted import Scripted


class Rude(Scripted):
    """Obeys two more directives in the user's text.

    ==============  ===================================================
    ``!block S``    nothing else happens in this process for S seconds
    ``!hold MIB``   so much memory is never given back
    ==============  ===================================================
    """

    kept: list[bytearray] = []

    def plan(self, request: ChatRequest) -> Plan:
        plan = super().plan(request)
        said = "".join(plan.text)
        if found := re.search(r"!block ([\d.]+)", said):
            time.sleep(float(found[1]))
        if found := re.search(r"!hold (\d+)", said):
            # Not zeros, which would take no memory before they are written.
            self.kept.append(bytearray(b"x") * (int(found[1]) * 1024 * 1024))
        return plan
