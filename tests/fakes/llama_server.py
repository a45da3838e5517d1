"""A llama.cpp server with a tiny model, for real, in a process of its own: ``with LlamaServer(folder) as server:``.

``python -m tests.fakes.llama_server tiny.gguf 0 KEY`` prints ``{"url": …}`` and serves until its standard input ends.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from tests.fakes.tiny_gguf import write_tiny

SLOTS = 2
CONTEXT_TOKENS = 16384
"""Of each slot. Read whole it takes seconds, which is room to leave in."""
KEY = "secret"
MODEL = "tiny"


class LlamaServer:
    """``url`` is where it listens; the port stays the same when it is started again."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "tiny.gguf"
        write_tiny(self._path)
        self._port = 0
        self.url = ""

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.fakes.llama_server", str(self._path), str(self._port), KEY]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdout is not None, "asked for as a pipe"
        self.url = json.loads(self._process.stdout.readline())["url"]
        self._port = urlsplit(self.url).port or 0

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def busy(self) -> int:
        """How many slots work, as the server itself says."""
        return sum(slot["is_processing"] for slot in json.loads(self._get("/slots")))

    def deferred(self) -> int:
        """How many calls wait for a slot."""
        name = b"llamacpp:requests_deferred "
        return next(int(line.split()[1]) for line in self._get("/metrics").splitlines() if line.startswith(name))

    def _get(self, path: str) -> bytes:
        request = Request(self.url + path, headers={"Authorization": f"Bearer {KEY}"})
        with urlopen(request, timeout=10) as response:
            body: bytes = response.read()
        return body

    def __enter__(self) -> "LlamaServer":
        self.start()
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.kill()


def main(path: str, port: int, key: str) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = path
    params.model_alias = {MODEL}
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.api_keys = [key]
    params.n_parallel = SLOTS
    params.n_ctx = SLOTS * CONTEXT_TOKENS
    params.n_batch = params.n_ubatch = 64
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.cache_ram_mib = 64
    params.warmup = False
    params.ui = False
    params.endpoint_metrics = True
    server = xllamacpp.Server(params)
    print(json.dumps({"url": server.listening_address}), flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
