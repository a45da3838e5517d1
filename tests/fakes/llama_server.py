"""A llama.cpp server with a tiny model, for real, in a process of its own: ``with LlamaServer(folder) as server:``.

``python -m tests.fakes.llama_server --model tiny.gguf --host 127.0.0.1`` takes the options of a llama-server, tells
its ``{"url": …}`` and serves; the key is ``LLAMA_API_KEY``.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from tests.fakes.tiny_gguf import write_tiny

SLOTS = 2
CONTEXT_TOKENS = 16384
"""Of each slot. Read whole it takes seconds, which is room to leave in."""
KEY = "secret"
MODEL = "tiny"
_COMMAND = [sys.executable, "-m", "tests.fakes.llama_server"]


class LlamaServer:
    """``url`` is where it listens; the port stays the same when it is started again."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "tiny.gguf"
        write_tiny(self.path)
        self._port = 0
        self.url = ""

    def start(self) -> None:
        options = {
            "--model": self.path,
            "--host": "127.0.0.1",
            "--port": self._port,
            "--alias": MODEL,
            "--parallel": SLOTS,
            "--ctx-size": SLOTS * CONTEXT_TOKENS,
            "--batch-size": 64,
            "--ubatch-size": 64,
            "--threads": 1,
            "--cache-ram": 64,
        }
        self._process = subprocess.Popen(
            [*_COMMAND, "--ends-with-stdin", *(str(word) for pair in options.items() for word in pair)],
            env={**os.environ, "LLAMA_API_KEY": KEY},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
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

    def tasks(self) -> set[int]:
        """The numbers of the calls that its slots work on."""
        return {slot["id_task"] for slot in json.loads(self._get("/slots")) if slot["is_processing"]}

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for text in ("model", "host", "alias", "chat-template"):
        parser.add_argument(f"--{text}", default="")
    for number in ("port", "parallel", "ctx-size", "batch-size", "ubatch-size", "threads", "cache-ram"):
        parser.add_argument(f"--{number}", type=int, default=0)
    for flag in ("no-warmup", "jinja", "ends-with-stdin"):
        parser.add_argument(f"--{flag}", action="store_true")
    given = parser.parse_args()
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = given.model
    params.model_alias = {given.alias or given.model}
    params.hostnames = [given.host]
    params.port = given.port
    params.api_keys = [os.environ["LLAMA_API_KEY"]]
    params.n_parallel = given.parallel
    params.n_ctx = given.ctx_size
    params.n_batch = given.batch_size
    params.n_ubatch = given.ubatch_size
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = given.threads
    params.cache_ram_mib = given.cache_ram
    params.warmup = False
    params.ui = False
    params.endpoint_metrics = True
    server = xllamacpp.Server(params)
    print(json.dumps({"url": server.listening_address}), flush=True)
    if given.ends_with_stdin:
        sys.stdin.read()
    else:
        threading.Event().wait()
    os._exit(0)


if __name__ == "__main__":
    main()
